"""Triton kernels that make bf16 index keys and queries: norm, RoPE, Hadamard, rounding, store."""

# A kernel's parameters are values of the device, without Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are in capitals, as everywhere in Triton
# Triton reads the annotations of a kernel's parameters at run time, so they must not be strings.
import triton
import triton.language as tl

from dsv4_guard.bf16.kernels import product


@triton.jit
def nearest_bf16(x, COMPILED: tl.constexpr):
    """fp32 rounded to the nearest bf16, ties to even. Triton's interpreter truncates, so there the bits are rounded."""
    if COMPILED:
        return x.to(tl.bfloat16)
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return bits.to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def hadamard_bf16(DIM: tl.constexpr):
    """The Sylvester Hadamard matrix of DIM rows, entries +1 and -1 (exact in bf16), not normalised.

    Entry (i, j) is -1 to the number of bits that i and j share. It is symmetric, so it serves on either side.
    """
    index = tl.arange(0, DIM)
    shared = index[:, None] & index[None, :]
    shared = shared ^ (shared >> 4)
    shared = shared ^ (shared >> 2)
    shared = shared ^ (shared >> 1)
    return (1 - 2 * (shared & 1)).to(tl.float32).to(tl.bfloat16)


@triton.jit
def rotate(x, matrix, DIM: tl.constexpr, COMPILED: tl.constexpr):
    """`x @ matrix / sqrt(DIM)` for fp32 rows and the matrix of hadamard_bf16, with about 16 bits of mantissa.

    The matrix is exact in bf16; x is split into two bf16 terms, whose products are then exact in fp32. What is lost is
    2^-17 of a value, 1/512 of the bf16 step that the result is rounded to.
    """
    high = nearest_bf16(x, COMPILED)
    low = nearest_bf16(x - high.to(tl.float32), COMPILED)
    return (product(low, matrix, COMPILED) + product(high, matrix, COMPILED)) * (1.0 / DIM**0.5)


@triton.jit
def rope_pairs(x, cosine, sine, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Pairs (2i, 2i+1) of `[ROWS, DIM]` turned by cosine and sine `[ROWS or 1, DIM / 2]`, all within a thread."""
    even, odd = tl.split(tl.reshape(x, [ROWS, DIM // 2, 2]))
    return tl.reshape(tl.join(even * cosine - odd * sine, even * sine + odd * cosine), [ROWS, DIM])


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["loc_ptr"])
def store_keys_kernel(
    x_ptr,
    plan_ptr,
    weight_ptr,
    freqs_ptr,
    loc_ptr,
    out_ptr,
    rows,
    eps,
    DECODE: tl.constexpr,
    RATIO: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """RMS norm, RoPE, Hadamard and bf16 store of BLOCK compressed keys a program.

    `plan` is the engine's compress plan, four int32 a row. Decode: the first is the sequence length; the row produces a
    key only when it is a multiple of RATIO; its slot is loc[row]. Prefill: the first is the length at which the key is
    complete (all bits set: unused row), the low 16 bits of the second are the index into loc. The key stands at
    position length - RATIO.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = row < rows
    length = tl.load(plan_ptr + row * 4, mask=keep, other=-1)
    if DECODE:
        keep = keep & (length > 0) & (length % RATIO == 0)
        source = row
    else:
        keep = keep & (length != -1)
        source = tl.load(plan_ptr + row * 4 + 1, mask=keep, other=0) & 0xFFFF
    slot = tl.load(loc_ptr + source, mask=keep, other=0).to(tl.int64)
    dims = tl.arange(0, DIM)
    base = x_ptr + row.to(tl.int64)[:, None] * DIM
    x = tl.load(base + dims[None, :], mask=keep[:, None], other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)
    x = x * scale[:, None] * tl.load(weight_ptr + dims).to(tl.float32)[None, :]
    pair = tl.arange(0, DIM // 2) - (DIM - ROPE) // 2
    turn = freqs_ptr + (length - RATIO).to(tl.int64)[:, None] * ROPE + 2 * pair[None, :]
    use = keep[:, None] & (pair >= 0)[None, :]
    turned = rope_pairs(x, tl.load(turn, mask=use, other=1.0), tl.load(turn + 1, mask=use, other=0.0), BLOCK, DIM)
    value = rotate(turned, hadamard_bf16(DIM), DIM, COMPILED)
    tl.store(out_ptr + slot[:, None] * DIM + dims[None, :], nearest_bf16(value, COMPILED), mask=keep[:, None])


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["loc_ptr"])
def store_rotated_kernel(x_ptr, loc_ptr, out_ptr, rows, DIM: tl.constexpr, BLOCK: tl.constexpr, COMPILED: tl.constexpr):
    """bf16 store of BLOCK finished keys (norm, RoPE and Hadamard done) a program into the slots of loc."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = row < rows
    slot = tl.load(loc_ptr + row, mask=keep, other=0).to(tl.int64)
    dims = tl.arange(0, DIM)
    value = tl.load(x_ptr + row.to(tl.int64)[:, None] * DIM + dims[None, :], mask=keep[:, None], other=0.0)
    value = nearest_bf16(value.to(tl.float32), COMPILED)
    tl.store(out_ptr + slot[:, None] * DIM + dims[None, :], value, mask=keep[:, None])


@triton.jit(do_not_specialize=["rows", "gate_stride"], do_not_specialize_on_alignment=["position_ptr", "gate_ptr"])
def query_kernel(
    x_ptr,
    gate_ptr,
    freqs_ptr,
    position_ptr,
    q_ptr,
    weight_ptr,
    rows,
    x_stride,
    gate_stride,
    gate_scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """RoPE and Hadamard of query heads, kept in bf16, and the head weights in fp32, unquantised.

    Grid (programs, HEADS / BLOCK): a program takes BLOCK heads of every programs-th row, so that it makes the Hadamard
    matrix once, and one turn per row serves all heads.
    """
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, DIM)
    pair = tl.arange(0, DIM // 2) - (DIM - ROPE) // 2
    matrix = hadamard_bf16(DIM)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        wide = tl.cast(row, tl.int64)
        turn = freqs_ptr + tl.load(position_ptr + row).to(tl.int64) * ROPE + 2 * pair
        cosine = tl.load(turn, mask=pair >= 0, other=1.0)
        sine = tl.load(turn + 1, mask=pair >= 0, other=0.0)
        x = tl.load(x_ptr + wide * x_stride + head[:, None] * DIM + dims[None, :]).to(tl.float32)
        value = rotate(rope_pairs(x, cosine[None, :], sine[None, :], BLOCK, DIM), matrix, DIM, COMPILED)
        target = q_ptr + (wide * HEADS + head)[:, None] * DIM + dims[None, :]
        tl.store(target, nearest_bf16(value, COMPILED))
        gate = tl.load(gate_ptr + wide * gate_stride + head).to(tl.float32)
        tl.store(weight_ptr + wide * HEADS + head, gate * gate_scale)
