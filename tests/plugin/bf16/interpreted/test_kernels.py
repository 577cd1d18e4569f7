"""The Triton kernels of bf16 index-K under Triton's interpreter, against double precision."""

from __future__ import annotations

import pytest
import torch

from dsv4_guard.bf16 import launch, reference, sizes

HEADS, DIM, ROPE = 4, 32, 16
"""Small: the interpreter runs each operation in numpy. 64 heads of 128 are proved on a GPU (images/sglang/proof)."""
UNWRITTEN = 1e6
"""Far from every score."""
DECODE = [
    sizes.DecodeConfig(pages=p, stages=3, warps=4, waves=w, split=split)
    for p, w, split in ((1, 1, False), (2, 8, False), (1, 2, True))
]
PREFILL = [
    sizes.PrefillConfig(pages=p, rows=r, step=s, stages=2, warps=4, registers=None, held=held)
    for p, r, s, held in ((1, 4, 1, False), (2, 8, 2, True), (4, 16, 1, False))
]


class Case:
    """Random keys in permuted pages; every page outside the lengths, and every slot past a length, is NaN."""

    def __init__(self, lengths: list[int], pages: int, shared: dict[int, int] | None = None, seed: int = 0) -> None:
        make = torch.Generator().manual_seed(seed)
        need = [-(-n // 64) for n in lengths]
        total = sum(need) + 2
        self.pool = torch.full((total * 64, DIM), float("nan"), dtype=torch.bfloat16)
        order = (torch.randperm(total - 1, generator=make) + 1).tolist()
        rows = len(lengths)
        self.table = torch.full((rows, pages), -1, dtype=torch.int32)
        for row, n in enumerate(lengths):
            source = (shared or {}).get(row)
            for page in range(need[row]):
                if source is not None and page < need[source]:
                    self.table[row, page] = self.table[source, page]
                else:
                    self.table[row, page] = order.pop()
            slot = torch.arange(n)
            where = self.table[row, slot // 64].long() * 64 + slot % 64
            fresh = torch.isnan(self.pool[where].float()).any(-1)
            self.pool[where[fresh]] = torch.randn(int(fresh.sum()), DIM, generator=make).to(torch.bfloat16)
        self.query = torch.randn(rows, HEADS, DIM, generator=make).to(torch.bfloat16)
        self.weight = torch.randn(rows, HEADS, generator=make)
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.columns = pages * 64

    @property
    def buffer(self) -> torch.Tensor:
        """As the engine holds it: uint8 pages."""
        return self.pool.view(torch.uint8).view(-1, 64 * DIM * 2)

    def run(self, config: sizes.DecodeConfig | sizes.PrefillConfig) -> torch.Tensor:
        kernel = launch.decode_logits if isinstance(config, sizes.DecodeConfig) else launch.prefill_logits
        out = launch.allocate_logits(len(self.lengths), self.columns, self.query.device).fill_(UNWRITTEN)
        return kernel(
            self.query, self.weight, self.buffer, self.table, self.lengths, self.columns, out=out, config=config
        )

    def check(self, out: torch.Tensor) -> None:
        want = reference.logits(self.query, self.weight, self.pool, self.table, self.lengths, self.columns)
        for row, n in enumerate(self.lengths.tolist()):
            assert torch.isfinite(out[row, :n]).all(), f"row {row} of length {n} holds unwritten or poisoned scores"
            past = out[row, n:]
            assert ((past == UNWRITTEN) | (past == float("-inf"))).all(), f"row {row}: a score past the length {n}"
            assert (out[row, n : -(-n // 64) * 64] == float("-inf")).all(), f"row {row}: the last page is not masked"
            torch.testing.assert_close(out[row, :n].double(), want[row, :n], rtol=1e-5, atol=1e-4)
            k = min(16, n)
            if k:
                mine, theirs = out[row, :n].topk(k).indices, want[row, :n].topk(k).indices
                common = len(set(mine.tolist()) & set(theirs.tolist()))
                assert common == k, f"row {row}: {common} of the best {k} slots agree with double precision"


@pytest.mark.parametrize("config", [*DECODE, *PREFILL], ids=str)
@pytest.mark.parametrize(
    "lengths",
    [[1], [64], [65, 0, 128, 127], [0, 0], [300, 1, 63, 64, 65, 512, 511]],
    ids=["one", "page", "edges", "empty", "ragged"],
)
def test_scores_of_ragged_rows(config: sizes.DecodeConfig | sizes.PrefillConfig, lengths: list[int]) -> None:
    case = Case(lengths, pages=8)
    case.check(case.run(config))


@pytest.mark.parametrize("config", [DECODE[1], PREFILL[1]], ids=str)
@pytest.mark.parametrize("rows", [32, 256])
def test_many_rows(config: sizes.DecodeConfig | sizes.PrefillConfig, rows: int) -> None:
    case = Case([(37 * row) % 65 for row in range(rows)], pages=1, seed=rows)
    case.check(case.run(config))


@pytest.mark.parametrize("config", PREFILL, ids=str)
def test_one_request_of_growing_length(config: sizes.PrefillConfig) -> None:
    """A prefill: row r of a request sees r // 4 slots more than the first; all rows share one list of pages."""
    lengths = [60 + row // 4 for row in range(40)]
    longest = len(lengths) - 1
    order = [longest, *range(longest)]
    case = Case([lengths[row] for row in order], pages=2, shared=dict.fromkeys(range(1, len(order)), 0))
    back = torch.tensor([*range(1, len(order)), 0])
    case.table, case.lengths = case.table[back].contiguous(), case.lengths[back].contiguous()
    case.check(case.run(config))


@pytest.mark.parametrize("config", PREFILL, ids=str)
def test_requests_that_share_a_prefix_and_part(config: sizes.PrefillConfig) -> None:
    """Rows of several requests in one program: same first page, different second; a short row between long ones."""
    case = Case([130, 64, 190, 20, 190, 129], pages=3, shared={1: 0, 2: 0, 4: 2}, seed=3)
    case.table[4] = case.table[2]
    case.table[2, 1], case.table[4, 1] = case.table[0, 1].item(), case.table[2, 1].item()
    case.check(case.run(config))


@pytest.mark.parametrize("config", [DECODE[0], PREFILL[0]], ids=str)
def test_moving_pages_moves_no_score(config: sizes.DecodeConfig | sizes.PrefillConfig) -> None:
    case = Case([200, 130], pages=4)
    before = case.run(config)
    order = torch.randperm(case.pool.shape[0] // 64, generator=torch.Generator().manual_seed(9))
    moved = torch.empty_like(case.pool).view(-1, 64, DIM)
    moved[order] = case.pool.view(-1, 64, DIM)
    case.pool = moved.view(-1, DIM)
    case.table = torch.where(case.table >= 0, order[case.table.clamp(min=0).long()].int(), case.table)
    after = case.run(config)
    assert torch.equal(before.nan_to_num(0.5), after.nan_to_num(0.5)), "the scores depend on where the pages are"


def test_decode_and_prefill_kernels_agree_to_the_bit() -> None:
    case = Case([300, 64, 200], pages=5)
    a, b = case.run(DECODE[0]), case.run(PREFILL[2])
    for row, n in enumerate(case.lengths.tolist()):
        assert torch.equal(a[row, :n], b[row, :n])


def test_splits_do_not_change_scores() -> None:
    case = Case([700, 5], pages=11)
    outs = [
        case.run(sizes.DecodeConfig(pages=1, stages=2, warps=4, waves=w, split=split))
        for w, split in ((1, False), (3, False), (50, False), (1, True), (9, True))
    ]
    for out in outs[1:]:
        assert torch.equal(out.nan_to_num(0.5), outs[0].nan_to_num(0.5))


def freqs(positions: int, seed: int = 1) -> torch.Tensor:
    angle = torch.rand(positions, ROPE // 2, generator=torch.Generator().manual_seed(seed)) * 6.28
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(1).contiguous()


def plan_of(lengths: list[int], second: list[int]) -> torch.Tensor:
    """The engine's plan, [rows, 16] uint8: length, then index into loc (low 16 bits) and ring length (high)."""
    words = torch.zeros(len(lengths), 4, dtype=torch.int32)
    words[:, 0] = torch.tensor(lengths, dtype=torch.int32)
    words[:, 1] = torch.tensor(second, dtype=torch.int32)
    return words.view(torch.uint8)


def bf16_steps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Distance in units of half a bf16 step of the row's largest value; 1 is perfect rounding of the largest."""
    top = want.abs().amax(-1, keepdim=True)
    step = torch.exp2(torch.floor(torch.log2(top))) * 2.0**-8
    return (got.double() - want).abs() / step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_store_in_decode_writes_complete_keys_alone(dtype: torch.dtype) -> None:
    lengths = [4, 5, 8, 7, 400, 0] * 5
    rows = len(lengths)
    make = torch.Generator().manual_seed(2)
    x = (torch.randn(rows, DIM, generator=make) * 3).to(dtype)
    norm = torch.rand(DIM, generator=make) + 0.5
    table = freqs(401)
    loc = torch.randperm(3 * 64, generator=make)[:rows]
    buffer = torch.full((3 * 64, DIM), float("nan"), dtype=torch.bfloat16)
    launch.store_keys(
        x,
        plan_of(lengths, [12345] * rows),
        decode=True,
        ratio=4,
        norm_weight=norm,
        norm_eps=1e-6,
        freqs=table,
        loc=loc,
        buffer=buffer.view(torch.uint8).view(3, -1),
    )
    complete = torch.tensor([n > 0 and n % 4 == 0 for n in lengths])
    want = reference.keys(x, norm, 1e-6, table, (torch.tensor(lengths) - 4).clamp(min=0))
    assert bf16_steps(buffer[loc[complete]], want[complete]).max() < 1.05
    others = torch.ones(3 * 64, dtype=torch.bool)
    others[loc[complete]] = False
    assert torch.isnan(buffer[others].float()).all(), "a slot was written that belongs to no complete key"


def test_store_in_prefill_takes_slots_by_ragged_index_and_skips_unused_rows() -> None:
    lengths = [4, 8, -1, 300, -1]
    second = [3 | (7 << 16), 7, 0, 300 | (1 << 20), 0]
    make = torch.Generator().manual_seed(4)
    x = torch.randn(5, DIM, generator=make)
    norm = torch.ones(DIM)
    table = freqs(301)
    loc = torch.arange(301, dtype=torch.int64) % 128
    buffer = torch.full((128, DIM), float("nan"), dtype=torch.bfloat16)
    launch.store_keys(
        x,
        plan_of(lengths, second),
        decode=False,
        ratio=4,
        norm_weight=norm,
        norm_eps=1e-6,
        freqs=table,
        loc=loc,
        buffer=buffer.view(torch.uint8).view(2, -1),
    )
    used = [0, 1, 3]
    slots = [3, 7, 300 % 128]
    want = reference.keys(x[used], norm, 1e-6, table, torch.tensor(lengths)[used] - 4)
    assert bf16_steps(buffer[slots], want).max() < 1.05
    assert int(torch.isfinite(buffer.float()).all(-1).sum()) == len(used)


def test_finished_keys_are_stored_as_they_are() -> None:
    x = torch.randn(20, DIM, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    loc = torch.arange(20, dtype=torch.int64) * 6
    buffer = torch.zeros((2, 64 * DIM * 2), dtype=torch.uint8)
    launch.store_rotated(x, loc, buffer)
    assert torch.equal(launch.key_rows(buffer, DIM)[loc], x)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_query(rows: int) -> None:
    make = torch.Generator().manual_seed(rows)
    wide = torch.randn(rows, HEADS * DIM + 8, generator=make).to(torch.bfloat16)
    q = wide[:, : HEADS * DIM].view(rows, HEADS, DIM)
    gate = torch.randn(rows, HEADS + 3, generator=make).to(torch.bfloat16)[:, :HEADS]
    positions = torch.randint(0, 300, (rows,), generator=make)
    table = freqs(300)
    query, weight = launch.prepare_query(q, gate, 0.125, table, positions)
    assert bf16_steps(query, reference.query(q, table, positions)).max() < 1.05
    assert torch.equal(weight, gate.float() * 0.125)


def test_query_and_key_meet_as_without_hadamard() -> None:
    """The rotation is orthonormal and on both sides, so it changes no score beyond rounding."""
    make = torch.Generator().manual_seed(8)
    q = torch.randn(3, HEADS, DIM, generator=make, dtype=torch.float64)
    k = torch.randn(3, DIM, generator=make, dtype=torch.float64)
    matrix = reference.hadamard(DIM)
    torch.testing.assert_close(torch.einsum("rhd,rd->rh", q @ matrix, k @ matrix), torch.einsum("rhd,rd->rh", q, k))


@pytest.mark.parametrize(
    ("rows", "columns", "splits"),
    [(1, 64, 1), (1, 262144, 1056), (256, 262144, 5), (4096, 262144, 1), (8, 128, 1)],
)
def test_splits_fill_the_chip_and_never_exceed_the_tiles(rows: int, columns: int, splits: int) -> None:
    h200 = sizes.Chip(processors=132, shared=232448)
    assert sizes.decode_splits(rows, columns, sizes.decode_config(h200), h200.processors) == splits


def test_small_shared_memory_gets_small_tiles() -> None:
    sm120 = sizes.Chip(processors=188, shared=101376)
    config = sizes.decode_config(sm120)
    assert config.pages * 64 * 256 * config.stages + 64 * 256 <= sm120.shared
    prefill = sizes.prefill_config(sm120)
    assert prefill.pages * 64 * 256 + prefill.stages * prefill.step * 64 * 256 <= sm120.shared


def test_warming_up_touches_no_slot() -> None:
    buffer = torch.full((2, 64 * DIM * 2), 7, dtype=torch.uint8)
    launch.warm(buffer, heads=HEADS, dim=DIM, rope=ROPE)
    assert (buffer == 7).all()


def test_wrong_shapes_are_refused() -> None:
    case = Case([10], pages=1)
    with pytest.raises(ValueError, match="more pages than the table"):
        launch.decode_logits(case.query, case.weight, case.buffer, case.table, case.lengths, 65)
    with pytest.raises(ValueError, match="not pages of 64"):
        launch.key_rows(torch.zeros((3, 8448), dtype=torch.uint8), 128)
    with pytest.raises(ValueError, match="page table is not int32"):
        launch.decode_logits(case.query, case.weight, case.buffer, case.table.long(), case.lengths, 64)
