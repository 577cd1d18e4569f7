"""Triton kernels for index keys kept in bf16.

Layout of one index-K buffer: `[pages, page_slots, dim]` bf16, seen by the engine as `[pages, page_slots * dim * 2]`
uint8. There are no scales, so slot s of the pool is row s of one dense `[slots, dim]` matrix.

Sizes and the alignment of rows are kept out of Triton's specialisation: a batch of another size must not compile anew.
Nothing here is specific to one GPU generation: plain loads, `tl.dot` and reductions, which Triton lowers to the matrix
instructions of the chip at hand. The launchers are in `launch.py`.
"""

# A kernel's parameters are values of the device, without Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803, N806, PLR0915 - compile-time constants are in capitals, as everywhere in Triton; a kernel is one piece
# Triton reads the annotations of a kernel's parameters at run time, so they must not be strings.
import triton
import triton.language as tl


@triton.jit
def product(a, b, COMPILED: tl.constexpr):
    """`a @ b` of bf16 operands, summed in fp32. Triton's interpreter has no bf16 dot; fp32 has the same products."""
    if COMPILED:
        return tl.dot(a, b)
    return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")


@triton.jit
def tile_pages(table, tile, last, lane, PAGE: tl.constexpr, PAGES: tl.constexpr, COMPILED: tl.constexpr):
    """The page of every slot of one tile. Pages past `last`, the row's last page, repeat it: no slot there is used.

    Compiled, the entry is read by a PTX load that the compiler does not know for a load. A plain one would be made a
    pipeline stage of its own, with a full wait on it in every step, and the key loads would no longer overlap.
    """
    page = tl.zeros_like(lane)
    for i in tl.static_range(PAGES):
        source = table + tl.minimum(tile * PAGES + i, last)
        if COMPILED:
            entry = tl.inline_asm_elementwise(
                "ld.global.b32 $0, [$1];", "=r,l", [source], dtype=tl.int32, is_pure=True, pack=1
            )
        else:
            entry = tl.load(source)
        page = tl.where(lane // PAGE == i, entry, page)
    return page


@triton.jit
def tile_scores(keys, query, weight, COMPILED: tl.constexpr):
    """Sum over the heads of weight x max(0, key . query), for every key of a tile."""
    score = product(keys, query, COMPILED)
    return tl.sum(tl.maximum(score, 0.0) * weight[None, :], axis=1)


@triton.jit
def row_tiles(
    q_ptr,
    weight_ptr,
    k_ptr,
    table_ptr,
    out_ptr,
    row,
    length,
    first,
    stop,
    step,
    table_stride,
    out_stride,
    columns,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,
    STAGES: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """Scores of one row over its tiles first, first + step, ... below stop, STAGES key tiles in flight."""
    TILE: tl.constexpr = PAGE * PAGES
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, DIM)
    lane = tl.arange(0, TILE)
    wide = row.to(tl.int64)
    table = table_ptr + wide * table_stride
    last = tl.cdiv(length, PAGE) - 1
    # The pages of the next tile are read one step ahead, so that no key load waits for them.
    page = tile_pages(table, first, last, lane, PAGE, PAGES, COMPILED)
    query = tl.load(q_ptr + wide * (HEADS * DIM) + heads[None, :] * DIM + dims[:, None])
    weight = tl.load(weight_ptr + wide * HEADS + heads)
    for tile in tl.range(first, stop, step, num_stages=STAGES):
        here = page
        page = tile_pages(table, tile + step, last, lane, PAGE, PAGES, COMPILED)
        slot = tile * TILE + lane
        inside = slot < length
        source = here.to(tl.int64) * PAGE + lane % PAGE
        keys = tl.load(k_ptr + source[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
        score = tile_scores(keys, query, weight, COMPILED)
        tl.store(out_ptr + wide * out_stride + slot, tl.where(inside, score, float("-inf")), mask=slot < columns)


@triton.jit(do_not_specialize=["table_stride", "columns"], do_not_specialize_on_alignment=["table_ptr", "length_ptr"])
def split_logits_kernel(
    q_ptr,
    weight_ptr,
    k_ptr,
    table_ptr,
    length_ptr,
    out_ptr,
    table_stride,
    out_stride,
    columns,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,
    STAGES: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """Scores of one query row over every num_splits-th tile of PAGES pages: decode with more rows than are planned.

    Grid (rows, splits), rows fastest: rows of one request (speculative verify) meet in the cache. The grid comes from
    captured maxima; the true lengths are read here, so programs without work leave at once.
    """
    row = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    TILE: tl.constexpr = PAGE * PAGES
    length = tl.minimum(tl.load(length_ptr + row).to(tl.int32), columns)
    tiles = tl.cdiv(length, TILE)
    if split < tiles:
        row_tiles(
            q_ptr, weight_ptr, k_ptr, table_ptr, out_ptr, row, length, split, tiles, splits, table_stride, out_stride,
            columns, HEADS, DIM, PAGE, PAGES, STAGES, COMPILED,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["rows", "table_stride", "columns"], do_not_specialize_on_alignment=["table_ptr", "length_ptr"]
)
def decode_logits_kernel(
    q_ptr,
    weight_ptr,
    k_ptr,
    table_ptr,
    length_ptr,
    out_ptr,
    rows,
    table_stride,
    out_stride,
    columns,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """Scores of up to ROWS query rows, each over its own keys: the tiles of all rows in one list, dealt out evenly.

    The grid is as many programs as the chip holds at once, whatever the captured maxima; each reads the lengths, finds
    its part of the list, and walks through it row by row. So a batch of short rows and one long row is no slower than
    one of equal rows with as many keys.
    """
    TILE: tl.constexpr = PAGE * PAGES
    index = tl.arange(0, ROWS)
    lengths = tl.load(length_ptr + index, mask=index < rows, other=0).to(tl.int32)
    lengths = tl.maximum(tl.minimum(lengths, columns), 0)
    ends = tl.cumsum((lengths + (TILE - 1)) // TILE, axis=0)
    total = tl.max(ends, axis=0)
    me = tl.program_id(0)
    share = total // tl.num_programs(0)
    rest = total % tl.num_programs(0)
    at = me * share + tl.minimum(me, rest)
    last = at + share + (me < rest).to(tl.int32)
    while at < last:
        # Rows that end at or before this tile come first; rows without tiles end where their neighbour does.
        row = tl.sum((ends <= at).to(tl.int32), axis=0)
        begin = tl.max(tl.where(ends <= at, ends, 0), axis=0)
        stop = tl.minimum(tl.min(tl.where(ends > at, ends, total), axis=0), last)
        length = tl.sum(tl.where(index == row, lengths, 0), axis=0)
        row_tiles(
            q_ptr, weight_ptr, k_ptr, table_ptr, out_ptr, row, length, at - begin, stop - begin, 1, table_stride,
            out_stride, columns, HEADS, DIM, PAGE, PAGES, STAGES, COMPILED,
        )  # fmt: skip
        at = stop


@triton.jit(
    do_not_specialize=["rows", "table_stride", "columns"], do_not_specialize_on_alignment=["table_ptr", "length_ptr"]
)
def prefill_logits_kernel(
    q_ptr,
    weight_ptr,
    k_ptr,
    table_ptr,
    length_ptr,
    out_ptr,
    rows,
    table_stride,
    out_stride,
    columns,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    HELD: tl.constexpr,
    STAGES: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """Scores of ROWS query rows over one tile of PAGES pages: the keys stay, the queries stream past, STEP at a time.

    Rows of several requests may meet in one program. Consecutive rows share the loaded keys while they need no page
    that the first of them does not need, and the page table gives the same pages; otherwise the keys are loaded again.
    So the result never depends on how rows are grouped.
    """
    tile = tl.program_id(0)
    first = tl.program_id(1) * ROWS
    TILE: tl.constexpr = PAGE * PAGES
    local = tl.arange(0, ROWS)
    known = first + local < rows
    length = tl.load(length_ptr + first + local, mask=known, other=0).to(tl.int32)
    length = tl.minimum(length, columns)
    begin = tile * TILE
    active = length > begin
    start = tl.min(tl.where(active, local, ROWS), axis=0)
    if start < ROWS:
        order = tl.arange(0, PAGES)
        need = length[:, None] > begin + order[None, :] * PAGE
        entries = table_ptr + (first + local).to(tl.int64)[:, None] * table_stride + tile * PAGES + order[None, :]
        pages = tl.load(entries, mask=need, other=-1).to(tl.int32)
        lane = tl.arange(0, TILE)
        heads = tl.arange(0, STEP * HEADS)
        dims = tl.arange(0, DIM)
        column = begin + lane
        while start < ROWS:
            shared = tl.max(tl.where((local == start)[:, None], pages, -1), axis=0)
            strange = tl.max((need & (pages != shared[None, :])).to(tl.int32), axis=1)
            stop = tl.min(tl.where((local > start) & (strange != 0), local, ROWS), axis=0)
            stop = tl.minimum(stop, rows - first)
            page = tl.max(tl.where((lane // PAGE)[:, None] == order[None, :], shared[None, :], -1), axis=1)
            source = tl.maximum(page, 0).to(tl.int64) * PAGE + lane % PAGE
            keys = tl.load(k_ptr + source[:, None] * DIM + dims[None, :], mask=(page >= 0)[:, None], other=0.0)
            if HELD:
                # A product with the identity changes no value but leaves the keys in registers, as a first operand that
                # costs no shared memory reads in the loop.
                identity = (dims[:, None] == dims[None, :]).to(tl.float32).to(tl.bfloat16)
                keys = product(keys, identity, COMPILED).to(tl.bfloat16)
            for r in tl.range(start, stop, STEP, num_stages=STAGES):
                at = first + r
                # The last step of a run may reach past it: clamped here, its stores masked below.
                inner = tl.minimum(heads // HEADS, stop - 1 - r) * HEADS + heads % HEADS
                head = at.to(tl.int64) * HEADS + inner
                query = tl.load(q_ptr + head[None, :] * DIM + dims[:, None])
                weight = tl.load(weight_ptr + head)
                score = tl.maximum(product(keys, query, COMPILED), 0.0) * weight[None, :]
                if STEP == 1:
                    total = tl.sum(score, axis=1)
                    limit = tl.minimum(tl.load(length_ptr + at).to(tl.int32), columns)
                    target = out_ptr + at.to(tl.int64) * out_stride + column
                    tl.store(target, tl.where(column < limit, total, float("-inf")), mask=column < columns)
                else:
                    total = tl.sum(tl.reshape(score, [TILE, STEP, HEADS]), axis=2)
                    step = tl.arange(0, STEP)
                    mine = r + step < stop
                    limit = tl.minimum(tl.load(length_ptr + at + step, mask=mine, other=0).to(tl.int32), columns)
                    target = out_ptr + (at + step).to(tl.int64)[None, :] * out_stride + column[:, None]
                    inside = column[:, None] < limit[None, :]
                    write = (column < columns)[:, None] & mine[None, :]
                    tl.store(target, tl.where(inside, total, float("-inf")), mask=write)
            start = tl.min(tl.where((local >= stop) & active, local, ROWS), axis=0)
