"""Instructions of Hopper's warpgroups (target sm_90a): products, barriers, bulk copies.

Four consecutive warps, the first a multiple of four, multiply a 64 x 16 block with a 16 x n block,
both in shared memory, into sums that lie in their registers. Kernels keep the sums in a local
array of n / 2 values whose every index is a constant; the intrinsics here take the whole array, so
that the compiler sees each sum as one register that goes in and comes out. Products run behind the
program: `multiply_block` returns when the *previous* block of products has ended, and nothing may
touch the sums before `finish_products`.

Warpgroups exchange registers (`more_registers`) in kernels that are compiled as a whole program
only: assembled for linking, the assembler ignores the instruction.

Knows no kernel. Source: PTX ISA manual, asynchronous warpgroup level instructions.
"""

from functools import cache
from typing import Any, Final

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from ninfer.cuda.ptx import Intrinsic, define, sync_threads

_U32, _U64 = types.uint32, types.uint64

BLOCK_FEATURES: Final = 64
"""Features of one block: rows of 128 bytes, the width of the widest swizzle."""

_STEP_FEATURES: Final = 16
_STEPS: Final = BLOCK_FEATURES // _STEP_FEATURES

DESCRIPTOR: Final = (1 << 62) | (64 << 32) | (1 << 16)
"""Constant part of a matrix descriptor: swizzle over 128 bytes, groups of eight rows 1024 bytes
apart; the other stride means nothing for rows of one swizzle width. A descriptor adds the address
of the first row, in units of 16 bytes; the next 16 features of the rows are two units further."""

meet = sync_threads  # the name that kernels with roles call it by

# Barriers in shared memory that count arrivals and bytes.
init_barrier = define("mbarrier.init.shared::cta.b64 [$0], $1;", [], [_U32, _U32], is_ordered=True)
publish_barriers = define("fence.mbarrier_init.release.cluster;", [], [], is_ordered=True)
expect_bytes = define(  # one arrival, and so many bytes to come in this phase
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", [], [_U32, _U32], is_ordered=True
)
arrive = define("mbarrier.arrive.shared::cta.b64 _, [$0];", [], [_U32], is_ordered=True)
arrive_when_copied = define(  # once every asynchronous copy of this thread so far has ended
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", [], [_U32], is_ordered=True
)
wait_phase = define(  # until the phase of this parity has ended
    "{ .reg .pred p; WAIT_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
    "@!p bra WAIT_${:uid}; }",
    [],
    [_U32, _U32],
    is_ordered=True,
)

# Four 8x8 matrices that lie over the lanes, their columns to the rows of the addresses.
store_matrices_transposed = define(
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1,$2,$3,$4};",
    [],
    [_U32] * 5,
    is_ordered=True,
)

# The same for the lanes whose first operand is not 0.
init_barrier_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p mbarrier.init.shared::cta.b64 [$1], $2; }",
    [],
    [_U32, _U32, _U32],
    is_ordered=True,
)
expect_bytes_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; "
    "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; }",
    [],
    [_U32, _U32, _U32],
    is_ordered=True,
)
arrive_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p mbarrier.arrive.shared::cta.b64 _, [$1]; }",
    [],
    [_U32, _U32],
    is_ordered=True,
)
copy_bulk_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; "
    "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$1], [$2], $3, [$4]; }",
    [],
    [_U32, _U32, _U64, _U32, _U32],
    is_ordered=True,
)


@cache
def more_registers(count: int) -> Intrinsic:
    """Make ``()``: a warpgroup's threads go on with so many registers, a multiple of eight.

    They come from what the block started with, so that others must have given them away.
    """
    return define(f"setmaxnreg.inc.sync.aligned.u32 {count};", [], [], is_ordered=True)


@cache
def fewer_registers(count: int) -> Intrinsic:
    """Make ``()``: a warpgroup's threads give away all but so many registers."""
    return define(f"setmaxnreg.dec.sync.aligned.u32 {count};", [], [], is_ordered=True)


# Bulk copies: to, from, bytes, barrier.
copy_bulk = define(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    [],
    [_U32, _U64, _U32, _U32],
    is_ordered=True,
)


@cache
def multiply_block(num_rows: int) -> Intrinsic:
    """Make ``(sums, left, right)``: add a 64 x 64 block times a ``num_rows`` x 64 block.

    Both are rows of 64 features, given by their descriptors. Returns nothing; the products of the
    call before this one have ended, those of this one go on.
    """
    num_sums = num_rows // 2
    left, right = f"${num_sums}", f"${num_sums + 1}"
    sums = ",".join(f"${index}" for index in range(num_sums))
    lines = [
        "{ .reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0;",
        "wgmma.fence.sync.aligned;",
    ]
    for step in range(_STEPS):
        offset = step * _STEP_FEATURES * 2 // 16
        lines += [
            f"add.s64 a, {left}, {offset}; add.s64 b, {right}, {offset};",
            f"wgmma.mma_async.sync.aligned.m64n{num_rows}k16.f32.bf16.bf16 "
            f"{{{sums}}}, a, b, p, 1, 1, 0, 0;",
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1; }"]
    return _on_sums("\n".join(lines), num_sums, 2)


@cache
def multiply_registers(num_rows: int) -> Intrinsic:
    """Make ``(sums, left, right)``: as `multiply_block`, the left block in registers.

    ``left`` is a local array of 16 words: four for each 16 features, as m16n8k16 takes its left
    operand, of the 16 rows that the warp has in its warpgroup. They belong to the product until the
    next block of products has been given; then they may be written again.
    """
    num_sums, num_words = num_rows // 2, 4 * _STEPS
    right = f"${num_sums}"
    sums = ",".join(f"${index}" for index in range(num_sums))
    lines = ["{ .reg .pred p; .reg .b64 b; setp.eq.u32 p, 0, 0;", "wgmma.fence.sync.aligned;"]
    for step in range(_STEPS):
        words = ",".join(f"${num_sums + 1 + 4 * step + index}" for index in range(4))
        lines += [
            f"add.s64 b, {right}, {step * _STEP_FEATURES * 2 // 16};",
            f"wgmma.mma_async.sync.aligned.m64n{num_rows}k16.f32.bf16.bf16 "
            f"{{{sums}}}, {{{words}}}, b, p, 1, 1, 0;",
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1; }"]
    text = "\n".join(lines)
    value, word, wide = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    returned = ir.LiteralStructType([value] * num_sums)
    kind = ir.FunctionType(returned, [wide] + [word] * num_words + [value] * num_sums)
    tied = [str(index) for index in range(num_sums)]
    parts = ["=f"] * num_sums + ["l"] + ["r"] * num_words + tied + ["~{memory}"]
    constraints = ",".join(parts)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = _places(context, builder, signature.args[0], values[0], num_sums)
        words = _places(context, builder, signature.args[1], values[1], num_words)
        operands = [values[2], *(builder.load(place) for place in (*words, *places))]
        asm = ir.InlineAsm(kind, text, constraints, side_effect=True)
        _put(builder, builder.call(asm, operands), places)
        return context.get_dummy_value()

    def on_registers(context: Any, sums: Any, left: Any, right: Any) -> Any:
        return types.void(sums, left, _U64), generate

    made = intrinsic(on_registers)
    made.ptx_text = f"{text} {constraints}"
    return made


@cache
def finish_products(num_rows: int) -> Intrinsic:
    """Make ``(sums)``: wait until every product has ended; the sums are values from then on."""
    return _on_sums("wgmma.wait_group.sync.aligned 0;", num_rows // 2, 0)


def _on_sums(text: str, num_sums: int, num_descriptors: int) -> Intrinsic:
    """An intrinsic over a local array of sums, each an operand that is read and written."""
    value, word = ir.FloatType(), ir.IntType(64)
    returned = ir.LiteralStructType([value] * num_sums)
    kind = ir.FunctionType(returned, [word] * num_descriptors + [value] * num_sums)
    constraints = ",".join(
        ["=f"] * num_sums
        + ["l"] * num_descriptors
        + [str(index) for index in range(num_sums)]
        + ["~{memory}"]
    )

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = _places(context, builder, signature.args[0], values[0], num_sums)
        operands = list(values[1:]) + [builder.load(place) for place in places]
        asm = ir.InlineAsm(kind, text, constraints, side_effect=True)
        _put(builder, builder.call(asm, operands), places)
        return context.get_dummy_value()

    if num_descriptors:

        def on_sums(context: Any, sums: Any, left: Any, right: Any) -> Any:
            return types.void(sums, _U64, _U64), generate

    else:

        def on_sums(context: Any, sums: Any) -> Any:  # type: ignore[misc]
            return types.void(sums), generate

    made = intrinsic(on_sums)
    made.ptx_text = f"{text} {constraints}"
    return made


def _places(context: Any, builder: Any, kind: Any, array: Any, count: int) -> list[Any]:
    """Pointers to the elements of a local array."""
    data = context.make_array(kind)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(ir.IntType(32), index)]) for index in range(count)]


def _put(builder: Any, result: Any, places: list[Any]) -> None:
    for index, place in enumerate(places):
        builder.store(builder.extract_value(result, index), place)
