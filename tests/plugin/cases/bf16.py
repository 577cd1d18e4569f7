"""Index-K in bf16 on the real classes of a release, on a CPU; kernels under Triton's interpreter."""

from __future__ import annotations

import json
import tempfile
import types
from pathlib import Path
from typing import Any

from dsv4_guard import patching
from dsv4_guard.bf16 import limits, pool, targets, wiring
from dsv4_guard.refusal import GuardError

Plain = types.SimpleNamespace


def run_scheduler_process(version: str) -> None:
    """Named as SGLang's entry, by which the plugin knows where it is."""
    wiring.install(version)
    wiring.verify(version)


def installed(version: str) -> list[str]:
    """Targets that carry our wrapper."""
    run_scheduler_process(version)
    return [target for target in patching.verify() if target.startswith("sglang.")]


def in_api(version: str) -> list[str]:
    """The API process: nothing is replaced."""
    wiring.install(version)
    wiring.verify(version)
    return list(patching.verify())


def refused(version: str, break_target: str | None = None, edit: str | None = None) -> str:
    """The line with which install refuses: a target taken away, or its source changed."""
    if break_target is not None:
        owner, name, _ = patching.resolve(break_target)
        delattr(owner, name)
    if edit is not None:
        owner, name, _ = patching.resolve(edit)
        setattr(owner, name, lambda self, *args, **kwargs: None)
    try:
        run_scheduler_process(version)
    except GuardError as error:
        return str(error)
    return ""


def _indexer_pool(size: int = 64 * 5, layers: int = 2, fp4: bool = False, head_dim: int = 128) -> Any:
    """The real pool class as the engine would build it."""
    import torch

    module = patching.resolve(targets.POOL_CLASS)[0]
    module.get_exec = lambda: Plain(kernel=Plain(enable_deepseek_v4_fp4_indexer=fp4))
    return module.DeepSeekV4IndexerPool(size, 64, torch.uint8, head_dim, layers, "cpu", False)


def buffers(version: str) -> dict[str, Any]:
    """Shapes, bytes and what PD registers of the bf16 pool."""
    run_scheduler_process(version)
    module = patching.resolve(targets.POOL_CLASS)[0]
    made = _indexer_pool()
    found = {
        "shape": list(made.index_k_with_scale_buffer[0].shape),
        "dtype": str(made.index_k_with_scale_buffer[0].dtype),
        "bytes_per_slot": made.get_bytes_per_token(),
        "class": type(made).__name__,
        "original": type(made).__mro__[1].__name__,
    }
    class_ = module.DeepSeekV4TokenToKVPool
    import torch

    c4 = Plain(kv_buffer=[torch.zeros((6, 37440), dtype=torch.uint8)] * 2)
    c128 = Plain(kv_buffer=[torch.zeros((6, 1728), dtype=torch.uint8)])
    self = Plain(_unified_kv=False, c4_kv_pool=c4, c128_kv_pool=c128, c4_indexer_kv_pool=made)
    self.kv_pools, self.index_pools = {4: c4, 128: c128}, {4: made}
    self.compression_ratios, self._stage_start, self._stage_end, self._unified_kv_fp8 = [4, 4, 128], 0, 3, False
    found["items"] = list(class_.get_contiguous_buf_infos(self)[2])
    return found


def budget(version: str) -> dict[str, Any]:
    """Bytes of index-K per token and ratio-4 layer in the memory budget, before and after."""
    module = patching.resolve(f"{targets.BUDGET}:DSV4PoolConfigurator")[0]
    class_ = module.DSV4PoolConfigurator

    def counted() -> float:
        if hasattr(module, "get_dsv4_indexer_bytes_per_token"):
            return float(module.get_dsv4_indexer_bytes_per_token(128, False)) / 4
        module._get_dsv4_compress_state_dtype_sizes = lambda: (4, 4)
        self = Plain(
            indexer_head_dim=128,
            num_layers_ca4=1,
            qk_nope_head_dim=0,
            qk_rope_head_dim=0,
            c4_ring_size=0,
            swa_page_size=256,
            c4_shrink_factor=1,
            swa_ratio=0,
            num_layers_total=0,
            num_layers_ca128=0,
        )
        # What is not index-K: eight bytes of scale a slot of the C4 cache, a quarter slot a token.
        return float(class_._get_bytes_per_full_token(self)) - 8 / 4

    before = counted()
    run_scheduler_process(version)
    found: dict[str, Any] = {"before": before, "after": counted()}
    if hasattr(module, "get_dsv4_indexer_bytes_per_token"):
        found["fp4"] = module.get_dsv4_indexer_bytes_per_token(128, True)
    return found


def fp4_pool(version: str) -> None:
    """A pool asked for fp4 ends the process."""
    run_scheduler_process(version)
    _indexer_pool(fp4=True)


def wide_heads(version: str) -> None:
    """Heads that the kernels were not built for end the process."""
    run_scheduler_process(version)
    _indexer_pool(head_dim=64)


def host(version: str) -> dict[str, Any]:
    """HiCache: item bytes and whole pages only; and the tag of stored pages."""
    import torch

    run_scheduler_process(version)
    made = _indexer_pool()
    found: dict[str, Any] = {}
    if targets.RELEASES[version].regions_function:
        module = patching.resolve(f"{targets.STACKS}:_dsv4_indexer_regions")[0]
        regions = module._dsv4_indexer_regions(Plain(c4_indexer_kv_pool=made), 256)
        found["regions"] = [[region.item_bytes, region.page_aligned_only] for region in regions]
    host_class = patching.resolve(targets.HOST_POOL)[2]
    copier = host_class.__new__(host_class)
    copier.pool_name, copier.slot_page_size, copier.page_aligned_only = pool.HOST_POOL_NAME, 256, True
    for method, rest in (("backup_from_device_all_layer", ("kernel",)), ("load_to_device_per_layer", (0, "kernel"))):
        try:
            getattr(copier, method)(None, torch.arange(100), torch.arange(100), *rest)
        except ValueError as error:
            found[method] = str(error)
    logical = patching.resolve(targets.LOGICAL_POOL)[2](512, 256)
    found["tag"] = getattr(logical, "storage_format_tag", None)
    return found


def arguments(version: str, folder: bool = True, **values: Any) -> str:
    """The line with which the scheduler refuses server arguments; empty when it does not."""
    run_scheduler_process(version)
    if "compress_ratios" in values:
        made = tempfile.mkdtemp()
        (Path(made) / "config.json").write_text(json.dumps({"compress_ratios": values.pop("compress_ratios")}))
        values["model_path"] = made
    given = Plain(**{"model_path": "none", "hicache_storage_backend": None, "device": "cuda", **values})
    try:
        limits.arguments(given, targets.of(version))
    except GuardError as error:
        return str(error)
    return ""


def scheduler_ends(version: str) -> None:
    """The real Scheduler's constructor ends the process before it does anything."""
    run_scheduler_process(version)
    scheduler = patching.resolve(f"{targets.SCHEDULER}:Scheduler")[2]
    scheduler.__new__(scheduler).__init__(Plain(model_path="none", device="cuda", enable_hisparse=True))


def environment(version: str) -> str:
    """The line for a variable that selects another indexer."""
    try:
        run_scheduler_process(version)
    except GuardError as error:
        return str(error)
    return ""


class Mode:
    """A forward mode."""

    def __init__(self, decode: bool) -> None:
        self.decode = decode

    def is_idle(self) -> bool:
        return False

    def is_decode(self) -> bool:
        return self.decode

    def is_target_verify(self) -> bool:
        return False


def indexer(version: str, decode: bool, rows_per_chunk: int | None = None, padded: int = 0) -> dict[str, Any]:
    """forward_c4_indexer of the real mixin, from hidden state to pool slots, against double precision.

    Keys are written through the real store entry. The top-k is the release's own torch version.
    """
    import torch

    from dsv4_guard.bf16 import reference

    run_scheduler_process(version)
    module = __import__(targets.INDEXER, fromlist=["x"])
    compressor = __import__(targets.COMPRESSOR, fromlist=["x"])
    metadata_module = __import__(targets.METADATA, fromlist=["x"])
    module.get_global_indexer_capturer = lambda: None
    made = torch.Generator().manual_seed(1)
    heads, dim, hidden, lora, topk = 64, 128, 32, 48, 16
    lengths = [40, 7, 100, 0, 130] if not decode else [90, 16, 17, 0, 64]
    rows = len(lengths)
    pages = 4
    pool_object = _indexer_pool(size=64 * (rows * pages + 1), layers=1)
    angle = torch.rand(2000, 32, generator=made) * 6.28
    freqs = torch.polar(torch.ones_like(angle), angle)
    table = (torch.randperm(rows * pages, generator=made) + 1).to(torch.int32).view(rows, pages)
    # Keys of every row, through the store entry that the compressor calls, as a prefill.
    slots, seen = [], []
    for row, n in enumerate(lengths):
        for slot in range(n):
            slots.append(int(table[row, slot // 64]) * 64 + slot % 64)
            seen.append((slot + 1) * 4)
    compressed = torch.randn(len(slots), dim, generator=made)
    norm = torch.rand(dim, generator=made) + 0.5
    words = torch.zeros((len(slots), 4), dtype=torch.int32)
    words[:, 0] = torch.tensor(seen, dtype=torch.int32)
    words[:, 1] = torch.arange(len(slots), dtype=torch.int32)
    compressor.compress_norm_rope_store(
        compressed,
        Plan(4, words.view(torch.uint8), is_decode=False),
        norm_weight=norm,
        norm_eps=1e-6,
        freq_cis=freqs,
        out_loc=torch.tensor(slots, dtype=torch.int64),
        kvcache=pool_object.index_k_with_scale_buffer[0],
        page_size=64,
    )
    keys = torch.zeros((pool_object.index_k_with_scale_buffer[0].shape[0] * 64, dim), dtype=torch.float64)
    keys[torch.tensor(slots)] = reference.keys(compressed, norm, 1e-6, _real(freqs), torch.tensor(seen) - 4)

    c_lengths = torch.tensor(lengths, dtype=torch.int32)
    if version == "0.5.17":
        metadata_module.envs.SGLANG_OPT_USE_TOPK_V2.set(False)
        plan = metadata_module.PagedIndexerMetadata(page_size=256, page_table=table, c4_seq_lens=c_lengths)
    else:
        plan = metadata_module.PagedIndexerMetadata(
            page_size=256,
            compressed_page_size=64,
            page_table=table,
            compressed_seq_lens=c_lengths,
            use_topk_v2=False,
        )
        plan.rows_per_chunk = rows_per_chunk
    positions = torch.tensor([max(0, 4 * n + 1) for n in lengths])
    selected = torch.full((rows, topk), -7, dtype=torch.int32)
    core = Plain(positions=positions, page_table=table, c4_sparse_page_indices=selected, c4_sparse_raw_indices=None)
    wq = torch.randn(lora, heads * dim, generator=made) * 0.1
    wg = torch.randn(hidden, heads, generator=made)
    one = module.C4Indexer.__new__(module.C4Indexer)
    torch.nn.Module.__init__(one)
    one.__dict__.update(
        layer_id=0,
        wq_b=lambda x: ((x.float() @ wq).to(torch.bfloat16), None),
        weights_proj=lambda x: ((x.float() @ wg).to(torch.bfloat16), None),
        n_local_heads=heads,
        head_dim=dim,
        use_fp4_indexer=False,
        weight_scale=dim**-0.5 * heads**-0.5,
        freqs_cis=freqs,
        compressor=None,
        index_topk=topk,
    )
    backend_class = type("Backend", (module.C4IndexerBackendMixin,), {"forward_indexer_compressor": _compressed})
    backend = backend_class.__new__(backend_class)
    backend.__dict__.update(
        token_to_kv_pool=Plain(get_index_k_with_scale_buffer=_reader(pool_object)),
        forward_metadata=Plain(indexer_metadata=plan, core_metadata=core),
        hisparse_coordinator=None,
        debug_use_external_c4_sparse_indices=False,
        dsa_topk_backend=module.DSATopKBackend.TORCH,
        flashinfer_topk_transform=None,
    )
    x = torch.randn(rows + padded, hidden, generator=made).to(torch.bfloat16)
    q_lora = torch.randn(rows + padded, lora, generator=made).to(torch.bfloat16)
    _ORDER.clear()
    backend.forward_c4_indexer(
        x=x,
        q_lora=q_lora,
        c4_indexer=one,
        forward_batch=Plain(forward_mode=Mode(decode)),
    )
    raw_q = (q_lora.float() @ wq).to(torch.bfloat16).view(-1, heads, dim)[:rows]
    query = reference.query(raw_q, _real(freqs), positions[:rows])
    gate = (x.float() @ wg).to(torch.bfloat16)[:rows].double() * one.weight_scale
    want = reference.logits(query, gate, keys, table, c_lengths, pages * 64)
    wrong, common, of = [], 0, 0
    for row, n in enumerate(lengths):
        got = {int(slot) for slot in selected[row] if slot >= 0}
        k = min(n, topk)
        best = want[row, :n].topk(k).indices if n else torch.zeros(0, dtype=torch.long)
        expect = {int(table[row, int(s) // 64]) * 64 + int(s) % 64 for s in best}
        if len(got) != k:
            wrong.append([row, len(got), k])
        common += len(got & expect)
        of += k
    return {
        "wrong_counts": wrong,
        "common": common,
        "of": of,
        "order": list(_ORDER),
        "schedule": plan.deep_gemm_metadata,
    }


_ORDER: list[str] = []


def _compressed(self: Any, **_: Any) -> None:
    _ORDER.append("write")


def _reader(pool_object: Any) -> Any:
    def get_index_k_with_scale_buffer(layer_id: int) -> Any:
        _ORDER.append("read")
        return pool_object.get_index_k_with_scale_buffer(layer_id)

    return get_index_k_with_scale_buffer


def _real(freqs: Any) -> Any:
    import torch

    return torch.view_as_real(freqs).flatten(-2)


class Plan(tuple[Any, ...]):
    """A compress plan: (ratio, words), as the compressor's NamedTuples."""

    is_decode: bool
    compress_ratio: int

    def __new__(cls, ratio: int, words: Any, is_decode: bool) -> Plan:
        made = super().__new__(cls, (ratio, words))
        made.is_decode, made.compress_ratio = is_decode, ratio
        return made
