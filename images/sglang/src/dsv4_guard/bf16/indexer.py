"""The indexer of DeepSeek-V4 with bf16 keys: write, query, scores and top-k, in place of SGLang's own.

`forward` follows C4IndexerBackendMixin.forward_c4_indexer of its release; what it leaves out (fp4, HiSparse, tilelang,
aiter, the gathered path of long extends) is refused at start. Streams, chunks, top-k and metadata are the release's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

INDEX_DIM = 128
"""Head dim of index keys; the compressor also serves the main cache (512)."""


def store(original: Callable[..., None]) -> Callable[..., None]:
    """compress_norm_rope_store: keys of the indexer go to the bf16 pool, all others where they went."""

    @functools.wraps(original)
    def compress_norm_rope_store(kv: Any, plan: Any, **kwargs: Any) -> None:
        if kv.shape[-1] != INDEX_DIM:
            return original(kv, plan, **kwargs)
        import torch

        from dsv4_guard.bf16 import launch

        if kwargs.get("use_fp4"):
            raise RuntimeError("index-K is bf16, but the compressor was told to store fp4")
        launch.store_keys(
            kv,
            plan[1],
            decode=plan.is_decode,
            ratio=plan.compress_ratio,
            norm_weight=kwargs["norm_weight"],
            norm_eps=kwargs["norm_eps"],
            freqs=torch.view_as_real(kwargs["freq_cis"]).flatten(-2),
            loc=kwargs["out_loc"],
            buffer=kwargs["kvcache"],
        )
        return None

    return compress_norm_rope_store


def query(original: Callable[..., Any]) -> Callable[..., Any]:
    """fused_q_indexer_rope_hadamard_quant without the quantisation: (bf16 query, fp32 weights [rows, heads, 1])."""

    @functools.wraps(original)
    def fused_q_indexer_rope_hadamard(
        q_input: Any, weight: Any, weight_scale: float, freqs_cis: Any, positions: Any
    ) -> tuple[Any, Any]:
        import torch

        from dsv4_guard.bf16 import launch

        freqs = torch.view_as_real(freqs_cis).flatten(-2)
        prepared, weights = launch.prepare_query(q_input, weight, float(weight_scale), freqs, positions)
        return prepared, weights.unsqueeze(-1)

    return fused_q_indexer_rope_hadamard


def forward(version: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Maker of forward_c4_indexer for a release."""
    steps: dict[str, Callable[..., None]] = {"0.5.17": _scores_0_5_17, "0.5.23": _scores_0_5_23}
    scores = steps[version]

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def forward_c4_indexer(
            self: Any,
            x: Any,
            q_lora: Any,
            c4_indexer: Any,
            forward_batch: Any,
            alt_streams: Any = None,
            enable_multi_stream: bool = False,
            q_lora_ready: Any = None,
            skip_compressor: bool = False,
            **optional: Any,
        ) -> None:
            if forward_batch.forward_mode.is_idle():
                return
            metadata = self.forward_metadata
            positions = metadata.core_metadata.positions
            rows = min(x.shape[0], q_lora.shape[0], positions.shape[0])
            if q_lora.shape[0] != rows and "q_lora_quant" in optional:
                optional["q_lora_quant"] = None
            prepare: dict[str, Any] = {
                "x": x[:rows],
                "q_lora": q_lora[:rows],
                "c4_indexer": c4_indexer,
                "positions": positions[:rows],
                "forward_batch": forward_batch,
            }
            if enable_multi_stream:
                prepared, weights = self._forward_prepare_multi_stream(
                    **prepare, alt_streams=alt_streams, q_lora_ready=q_lora_ready
                )
            else:
                assert q_lora_ready is None
                prepared, weights = self._forward_prepare_normal(**prepare, skip_compressor=skip_compressor, **optional)
            # Gated by the layer's load, and asked for after the compressor wrote this step's keys.
            buffer = self.token_to_kv_pool.get_index_k_with_scale_buffer(layer_id=c4_indexer.layer_id)
            scores(self, prepared, weights.squeeze(-1), buffer, c4_indexer, forward_batch)

        return forward_c4_indexer

    return make


def _fitted(tensor: Any, rows: int, value: int) -> Any:
    """The first `rows` rows; missing ones (a padded batch) hold `value`."""
    import torch.nn.functional as F  # noqa: N812

    if tensor.shape[0] >= rows:
        return tensor[:rows]
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, rows - tensor.shape[0]), value=value)


def _rows(forward_batch: Any) -> dict[str, bool]:
    """Whether each row has keys of its own (decode), or a few rows in a row the same (speculative verify)."""
    mode = forward_batch.forward_mode
    return {"walk": bool(mode.is_decode()), "shared": bool(mode.is_target_verify())}


def _raw_indices(self: Any, core: Any, selected: Any, module: Any, core_first: bool) -> tuple[Any, bool]:
    """(buffer for positions within the row or None, whether they are to be captured)."""
    import torch

    capture = module.get_global_indexer_capturer() is not None
    assert self.hisparse_coordinator is None, "HiSparse is refused at start with index-K in bf16"
    if core_first and core.c4_sparse_raw_indices is not None:
        return core.c4_sparse_raw_indices, capture
    if capture:
        return torch.empty_like(selected), True
    return core.c4_sparse_raw_indices, False


def _capture(self: Any, module: Any, c4_indexer: Any, raw: Any) -> None:
    item = self.token_to_kv_pool.layer_mapping[c4_indexer.layer_id]
    module.get_global_indexer_capturer().capture(item.compress_layer_id, raw)


def _scores_0_5_17(self: Any, prepared: Any, weights: Any, buffer: Any, c4_indexer: Any, forward_batch: Any) -> None:
    import torch
    from sglang.srt.layers.attention.dsv4 import indexer as module

    from dsv4_guard.bf16 import launch

    core, plan = self.forward_metadata.core_metadata, self.forward_metadata.indexer_metadata
    rows = prepared.shape[0]
    lengths = _fitted(plan.c4_seq_lens, rows, 1)
    table = _fitted(plan.page_table, rows, 0)
    selected = _fitted(core.c4_sparse_page_indices, rows, -1)
    logits = launch.logits(
        prepared,
        weights,
        buffer,
        table.to(torch.int32),
        lengths.reshape(-1).to(torch.int32),
        plan.max_c4_seq_len,
        **_rows(forward_batch),
    )
    assert plan.page_table is core.page_table
    if self.debug_use_external_c4_sparse_indices:
        return
    raw, capture = _raw_indices(self, core, selected, module, core_first=False)
    envs = module.envs
    arguments = (logits, lengths, table, selected, plan.c4_page_size)
    if envs.SGLANG_TOPK_TRANSFORM_512_TORCH.get() or self.dsa_topk_backend.is_torch():
        module.topk_transform_512_pytorch_vectorized(*arguments, raw)
    elif self.dsa_topk_backend.is_flashinfer():
        module.topk_transform_512_flashinfer_unfused(*arguments, raw)
    elif envs.SGLANG_OPT_USE_TOPK_V2.get() and raw is None:
        module.topk_transform_512_v2(*arguments, plan.topk_metadata)
    else:
        module.topk_transform_512(*arguments, raw)
    if capture:
        _capture(self, module, c4_indexer, raw)


def _scores_0_5_23(self: Any, prepared: Any, weights: Any, buffer: Any, c4_indexer: Any, forward_batch: Any) -> None:
    import torch
    from sglang.srt.layers.attention.dsv4 import indexer as module

    from dsv4_guard.bf16 import launch

    core, plan = self.forward_metadata.core_metadata, self.forward_metadata.indexer_metadata
    rows = prepared.shape[0]
    lengths = _fitted(plan.compressed_seq_lens, rows, 1)
    table = _fitted(plan.page_table, rows, 0)
    selected = _fitted(core.c4_sparse_page_indices, rows, -1)
    if self.debug_use_external_c4_sparse_indices:
        return
    raw, capture = _raw_indices(self, core, selected, module, core_first=True)
    narrow_table, narrow_lengths = table.to(torch.int32), lengths.reshape(-1).to(torch.int32)
    chunks = list(module.iter_row_chunks(num_rows=rows, rows_per_chunk=plan.rows_per_chunk))
    # The plans of the chunks were made for the rows of the metadata; a batch of other rows is cut elsewhere.
    plans = plan.topk_metadata_chunks if plan.compressed_seq_lens.shape[0] == rows else None
    for number, part in enumerate(chunks):
        logits = launch.logits(
            prepared[part],
            weights[part],
            buffer,
            narrow_table[part],
            narrow_lengths[part],
            plan.max_compressed_seq_len,
            **_rows(forward_batch),
        )
        raw_part = raw[part] if raw is not None else None
        arguments = (logits, lengths[part], table[part], selected[part], plan.compressed_page_size)
        if self.dsa_topk_backend.is_torch():
            module.topk_transform_pytorch_vectorized(*arguments, raw_part)
        elif self.dsa_topk_backend.is_flashinfer():
            self.flashinfer_topk_transform(*arguments, raw_part)
        elif self.dsa_topk_backend.should_use_topk_v2():
            # A plan routes rows by their index in the range it was made for.
            if len(chunks) == 1:
                topk_plan = plan.topk_metadata
            else:
                topk_plan = plans[number] if plans is not None else module.plan_topk_v2(lengths[part])
            module.topk_transform_paged_v2(*arguments, topk_plan, raw_part)
        else:
            module.topk_transform_paged(*arguments, raw_part)
        del logits
    if capture:
        _capture(self, module, c4_indexer, raw)


def plan_0_5_17(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """PagedIndexerMetadata.__post_init__ without the schedule of DeepGEMM's kernel."""

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:  # noqa: N807
        import torch
        from sglang.kernels.ops.attention.dsv4 import plan_topk_v2
        from sglang.srt.environ import envs

        self.deep_gemm_metadata = None
        if envs.SGLANG_OPT_USE_TOPK_V2.get():
            self.topk_metadata = plan_topk_v2(self.c4_seq_lens)
        else:
            self.topk_metadata = torch.empty((0,))
        assert self.page_size == 256, "the system hardcodes page_size=256"

    return __post_init__


def plan_0_5_23(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """PagedIndexerMetadata.__post_init__ without the schedule of DeepGEMM's kernel; rows in chunks as before."""

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:  # noqa: N807
        import torch
        from sglang.srt.layers.attention.dsv4 import metadata as module

        assert self.compress_ratio == 4 and self.rows_per_request == 1, "index-K in bf16 is DeepSeek-V4's, ratio 4"
        self.deep_gemm_metadata = None
        rows = self.compressed_seq_lens.shape[0]
        self.mqa_logits_budget_bytes = self._mqa_logits_budget(num_rows=rows)
        self.rows_per_chunk = module.plan_indexer_row_chunks(
            num_rows=rows,
            num_cols=self.max_compressed_seq_len,
            budget_bytes=self.mqa_logits_budget_bytes,
            sm120_row_cap=None,
        )
        if self.use_topk_v2:
            from sglang.kernels.ops.attention.dsv4 import plan_topk_v2

            self.topk_metadata = plan_topk_v2(self.compressed_seq_lens)
            if self.rows_per_chunk is not None:
                self.topk_metadata_chunks = [
                    plan_topk_v2(self.compressed_seq_lens[part])
                    for part in module.iter_row_chunks(num_rows=rows, rows_per_chunk=self.rows_per_chunk)
                ]
        else:
            self.topk_metadata = torch.empty((0,))
        assert self.page_size == 256, "the system hardcodes page_size=256"

    return __post_init__
