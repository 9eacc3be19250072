"""Every inline-PTX intrinsic of our kernels, each with its instruction.

Addresses are u64 (global) or u32 (shared) integers; halves and bf16 words travel in u32. An
intrinsic with several results returns a tuple. Memory operations and barriers keep their program
order; arithmetic may move. Knows no layout and no kernel. Source: PTX ISA reference manual.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

_U32, _I32, _U64 = types.uint32, types.int32, types.uint64
_F32, _F64 = types.float32, types.float64
_LLVM: Final = {
    _U32: (ir.IntType(32), "r"),
    _I32: (ir.IntType(32), "r"),
    _U64: (ir.IntType(64), "l"),
    _F32: (ir.FloatType(), "f"),
    _F64: (ir.DoubleType(), "d"),
}

Intrinsic = Any
"""Something that kernels call.

Its ``ptx_text`` is the instruction, ``param_types`` are what it takes, ``num_results`` it returns.
"""


def define(
    text: str, results: Sequence[Any], params: Sequence[Any], *, is_ordered: bool = False
) -> Intrinsic:
    """Make an intrinsic of one PTX statement.

    Args:
        text: PTX with operands ``$0..``, results first.
        results: numba types of the results; several must be of one type.
        params: numba types that the arguments are converted to.
        is_ordered: touches memory or synchronises; never moved, merged or dropped.
    """
    constraints = [f"={_LLVM[kind][1]}" for kind in results]
    constraints += [_LLVM[kind][1] for kind in params]
    if is_ordered:
        constraints.append("~{memory}")
    if not results:
        returned, llvm = types.void, ir.VoidType()
    elif len(results) == 1:
        returned, llvm = results[0], _LLVM[results[0]][0]
    else:
        returned = types.UniTuple(results[0], len(results))
        llvm = ir.LiteralStructType([_LLVM[kind][0] for kind in results])

    def implementation(context: Any, *args: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = ir.FunctionType(llvm, [value.type for value in values])
            asm = ir.InlineAsm(kind, text, ",".join(constraints), side_effect=is_ordered)
            value = builder.call(asm, values)
            if not results:
                return context.get_dummy_value()
            if len(results) == 1:
                return value
            parts = [builder.extract_value(value, index) for index in range(len(results))]
            return cgutils.pack_array(builder, parts)

        return returned(*params), generate

    # Numba folds arguments by the signature, and does not fold ``*args``.
    names = ("context", *(f"operand_{index}" for index in range(len(params))))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in names]
    implementation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made = intrinsic(implementation)
    made.ptx_text = f"{text} {constraints} {is_ordered}"
    made.num_results, made.param_types = len(results), tuple(params)
    return made


# Programmatic dependent launch: removed from the text for targets that have no such instruction.
wait_for_predecessor = define("griddepcontrol.wait;", [], [], is_ordered=True)
release_successor = define("griddepcontrol.launch_dependents;", [], [], is_ordered=True)
sync_warp = define("bar.warp.sync 0xffffffff;", [], [], is_ordered=True)
sync_threads = define(  # so many threads that name the same of sixteen barriers
    "bar.sync $0, $1;", [], [_U32, _U32], is_ordered=True
)
trap = define("trap;", [], [], is_ordered=True)

# Global loads. `once_` is for weights that are read once: no L1 line, whole 256 bytes into L2.
once_u32x4 = define(
    "ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {$0,$1,$2,$3}, [$4];",
    [_U32] * 4,
    [_U64],
    is_ordered=True,
)
once_u32x2 = define(
    "ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {$0,$1}, [$2];",
    [_U32] * 2,
    [_U64],
    is_ordered=True,
)
once_u32 = define(
    "ld.global.nc.L1::no_allocate.L2::256B.u32 $0, [$1];", [_U32], [_U64], is_ordered=True
)
load_u32x4 = define("ld.global.v4.u32 {$0,$1,$2,$3}, [$4];", [_U32] * 4, [_U64], is_ordered=True)
load_u32x2 = define("ld.global.v2.u32 {$0,$1}, [$2];", [_U32] * 2, [_U64], is_ordered=True)
load_u32 = define("ld.global.u32 $0, [$1];", [_U32], [_U64], is_ordered=True)
load_i32 = define("ld.global.s32 $0, [$1];", [_I32], [_U64], is_ordered=True)
fresh_i32 = (
    define(  # past the first-level cache: written by a kernel that may still be cached there
        "ld.relaxed.gpu.global.s32 $0, [$1];", [_I32], [_U64], is_ordered=True
    )
)
fresh_f32 = define("ld.relaxed.gpu.global.f32 $0, [$1];", [_F32], [_U64], is_ordered=True)
fresh_u32x4 = define(
    "ld.relaxed.gpu.global.v4.u32 {$0,$1,$2,$3}, [$4];", [_U32] * 4, [_U64], is_ordered=True
)
load_u16 = define("ld.global.u16 $0, [$1];", [_U32], [_U64], is_ordered=True)
load_u8 = define("ld.global.u8 $0, [$1];", [_U32], [_U64], is_ordered=True)
load_u64 = define("ld.global.u64 $0, [$1];", [_U64], [_U64], is_ordered=True)
load_f32 = define("ld.global.f32 $0, [$1];", [_F32], [_U64], is_ordered=True)
load_f32x2 = define("ld.global.v2.f32 {$0,$1}, [$2];", [_F32] * 2, [_U64], is_ordered=True)
load_f32x4 = define("ld.global.v4.f32 {$0,$1,$2,$3}, [$4];", [_F32] * 4, [_U64], is_ordered=True)

# Loads that happen only where a flag is not 0, and give 0 elsewhere; no branch.
load_u32_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.u32 $0, 0; @p ld.global.u32 $0, [$1]; }",
    [_U32],
    [_U64, _U32],
    is_ordered=True,
)
load_f32_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.global.f32 $0, [$1]; }",
    [_F32],
    [_U64, _U32],
    is_ordered=True,
)
fresh_u32_if = define(  # `fresh_i32` in the same way
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.u32 $0, 0; @p ld.relaxed.gpu.global.u32 $0, [$1]; }",
    [_U32],
    [_U64, _U32],
    is_ordered=True,
)

# Global stores and integer reductions.
store_u32x4 = define(
    "st.global.v4.u32 [$0], {$1,$2,$3,$4};", [], [_U64] + [_U32] * 4, is_ordered=True
)
store_u32x2 = define("st.global.v2.u32 [$0], {$1,$2};", [], [_U64, _U32, _U32], is_ordered=True)
store_u32 = define("st.global.u32 [$0], $1;", [], [_U64, _U32], is_ordered=True)
store_u64 = define("st.global.u64 [$0], $1;", [], [_U64, _U64], is_ordered=True)
store_i32 = define("st.global.s32 [$0], $1;", [], [_U64, _I32], is_ordered=True)
store_u16 = define("st.global.u16 [$0], $1;", [], [_U64, _U32], is_ordered=True)
store_u8 = define("st.global.u8 [$0], $1;", [], [_U64, _U32], is_ordered=True)
store_f32 = define("st.global.f32 [$0], $1;", [], [_U64, _F32], is_ordered=True)
store_f32x2 = define("st.global.v2.f32 [$0], {$1,$2};", [], [_U64, _F32, _F32], is_ordered=True)
store_f32x4 = define(
    "st.global.v4.f32 [$0], {$1,$2,$3,$4};", [], [_U64] + [_F32] * 4, is_ordered=True
)
reduce_add_u32 = define("red.global.add.u32 [$0], $1;", [], [_U64, _U32], is_ordered=True)
reduce_add_u64 = define("red.global.add.u64 [$0], $1;", [], [_U64, _U64], is_ordered=True)
fetch_add_u32 = define("atom.global.add.u32 $0, [$1], $2;", [_U32], [_U64, _U32], is_ordered=True)
fetch_add_u32_if = define(  # where the first operand is not 0; nothing elsewhere
    "{ .reg .pred p; setp.ne.u32 p, $1, 0; mov.u32 $0, 0; @p atom.global.add.u32 $0, [$2], $3; }",
    [_U32],
    [_U32, _U64, _U32],
    is_ordered=True,
)
fetch_add_release_u32 = define(
    "atom.global.acq_rel.gpu.add.u32 $0, [$1], $2;", [_U32], [_U64, _U32], is_ordered=True
)
fetch_add_release_u32_if = define(  # the same, where the first operand is not 0
    "{ .reg .pred p; setp.ne.u32 p, $1, 0; mov.u32 $0, 0; "
    "@p atom.global.acq_rel.gpu.add.u32 $0, [$2], $3; }",
    [_U32],
    [_U32, _U64, _U32],
    is_ordered=True,
)
fence_shared_async = define(  # what was written to shared memory is seen by warpgroup products
    "fence.proxy.async.shared::cta;", [], [], is_ordered=True
)
fence_gpu = define("fence.acq_rel.gpu;", [], [], is_ordered=True)

# Stores of the lanes whose first operand is not 0.
store_u16_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p st.global.u16 [$1], $2; }",
    [],
    [_U32, _U64, _U32],
    is_ordered=True,
)
store_f32_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p st.global.f32 [$1], $2; }",
    [],
    [_U32, _U64, _F32],
    is_ordered=True,
)
store_f32x4_if = define(
    "{ .reg .pred p; setp.ne.u32 p, $0, 0; @p st.global.v4.f32 [$1], {$2,$3,$4,$5}; }",
    [],
    [_U32, _U64] + [_F32] * 4,
    is_ordered=True,
)

# Words and numbers.
kept_u32 = (
    define(  # a constant that stays in a register: the assembler cannot know it, and does not
        # set it anew before each use; bit 31 must be 0, and all lanes of the warp are there
        "{ .reg .u32 z; mov.u32 z, %lanemask_lt; and.b32 z, z, 0x80000000; or.b32 z, z, $1; "
        "shfl.sync.idx.b32 $0, z, 0, 0x1f, 0xffffffff; }",
        [_U32],
        [_U32],
    )
)
permute_bytes = define("prmt.b32 $0, $1, $2, $3;", [_U32], [_U32] * 3)
masked_or = define("lop3.b32 $0, $1, $2, $3, 0xea;", [_U32], [_U32] * 3)  # of the masked first
smaller_u32 = define("min.u32 $0, $1, $2;", [_U32], [_U32] * 2)
leading_zeros_u64 = define("clz.b64 $0, $1;", [_U32], [_U64])
divide_u32 = define("div.u32 $0, $1, $2;", [_U32], [_U32] * 2)
multiply_high = define("mul.hi.u32 $0, $1, $2;", [_U32], [_U32] * 2)
largest_of_warp = define("redux.sync.max.u32 $0, $1, 0xffffffff;", [_U32], [_U32], is_ordered=True)
lanes_alike = define(  # mask of the lanes that have the same word
    "match.any.sync.b32 $0, $1, 0xffffffff;", [_U32], [_U32], is_ordered=True
)
lanes_below = define("mov.u32 $0, %lanemask_lt;", [_U32], [])
sum_of_warp = define("redux.sync.add.u32 $0, $1, 0xffffffff;", [_U32], [_U32], is_ordered=True)
smallest_of_warp = define("redux.sync.min.u32 $0, $1, 0xffffffff;", [_U32], [_U32], is_ordered=True)
bits_of_f32 = define("mov.b32 $0, $1;", [_U32], [_F32])
f32_of_bits = define("mov.b32 $0, $1;", [_F32], [_U32])
bf16x2_of_f32 = define(  # the first argument becomes the lower half
    "cvt.rn.bf16x2.f32 $0, $2, $1;", [_U32], [_F32, _F32]
)
f16_of_f32 = define("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }", [_U32], [_F32])
f32_of_f16 = define(  # of the lower half
    "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }", [_F32], [_U32]
)
f32_of_upper_f16 = define(
    "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, h; }", [_F32], [_U32]
)
reciprocal = define("rcp.approx.ftz.f32 $0, $1;", [_F32], [_F32])
square_root = define("sqrt.rn.f32 $0, $1;", [_F32], [_F32])
nearest_i32 = define("cvt.rni.s32.f32 $0, $1;", [_I32], [_F32])
nearest_f64 = define("cvt.rni.f64.f64 $0, $1;", [_F64], [_F64])
ceiling_f64 = define("cvt.rpi.f64.f64 $0, $1;", [_F64], [_F64])
nearest_u64 = define("cvt.rni.u64.f32 $0, $1;", [_U64], [_F32])

# Tensor cores: D = A B + C for one 16x8x16 tile.
mma_bf16 = define(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
    [_F32] * 4,
    [_U32] * 6 + [_F32] * 4,
)

# The same for one 16x8x32 tile of bytes: signed ones, and unsigned ones times signed ones.
mma_s8 = define(
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
    "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
    [_I32] * 4,
    [_U32] * 6 + [_I32] * 4,
)
mma_u8_s8 = define(
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
    "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
    [_I32] * 4,
    [_U32] * 6 + [_I32] * 4,
)

# Numbers with a rounding of their own: never contracted, so that two kernels agree bit for bit.
fused_multiply_add = define("fma.rn.f32 $0, $1, $2, $3;", [_F32], [_F32] * 3)
multiply_f32 = define("mul.rn.f32 $0, $1, $2;", [_F32], [_F32] * 2)
larger_f32 = define("max.f32 $0, $1, $2;", [_F32], [_F32] * 2)  # of a number and none: the number
smaller_f32 = define("min.f32 $0, $1, $2;", [_F32], [_F32] * 2)
add_f32 = define("add.rn.f32 $0, $1, $2;", [_F32], [_F32] * 2)
larger_f32 = define("max.f32 $0, $1, $2;", [_F32], [_F32] * 2)  # of a number and none: the number
power_of_two = define("ex2.approx.ftz.f32 $0, $1;", [_F32], [_F32])
multiply_add_bf16x2 = define("fma.rn.bf16x2 $0, $1, $2, $3;", [_U32], [_U32] * 3)

# Shared memory by 32-bit addresses.
shared_u32x4 = define("ld.shared.v4.u32 {$0,$1,$2,$3}, [$4];", [_U32] * 4, [_U32], is_ordered=True)
shared_u32x2 = define("ld.shared.v2.u32 {$0,$1}, [$2];", [_U32] * 2, [_U32], is_ordered=True)
shared_u32 = define("ld.shared.u32 $0, [$1];", [_U32], [_U32], is_ordered=True)
shared_u16 = define("ld.shared.u16 $0, [$1];", [_U32], [_U32], is_ordered=True)
shared_f32 = define("ld.shared.f32 $0, [$1];", [_F32], [_U32], is_ordered=True)
shared_u64 = define("ld.shared.u64 $0, [$1];", [_U64], [_U32], is_ordered=True)
shared_f32x2 = define("ld.shared.v2.f32 {$0,$1}, [$2];", [_F32] * 2, [_U32], is_ordered=True)
shared_f32x4 = define("ld.shared.v4.f32 {$0,$1,$2,$3}, [$4];", [_F32] * 4, [_U32], is_ordered=True)
shared_f64 = define("ld.shared.f64 $0, [$1];", [_F64], [_U32], is_ordered=True)
shared_f64x2 = define("ld.shared.v2.f64 {$0,$1}, [$2];", [_F64] * 2, [_U32], is_ordered=True)
put_shared_u64 = define("st.shared.u64 [$0], $1;", [], [_U32, _U64], is_ordered=True)
put_shared_f64 = define("st.shared.f64 [$0], $1;", [], [_U32, _F64], is_ordered=True)
put_shared_f32 = define("st.shared.f32 [$0], $1;", [], [_U32, _F32], is_ordered=True)
put_shared_u16 = define("st.shared.u16 [$0], $1;", [], [_U32, _U32], is_ordered=True)
put_shared_u32 = define("st.shared.u32 [$0], $1;", [], [_U32, _U32], is_ordered=True)
put_shared_f32x2 = define(
    "st.shared.v2.f32 [$0], {$1,$2};", [], [_U32, _F32, _F32], is_ordered=True
)
put_shared_f32x4 = define(
    "st.shared.v4.f32 [$0], {$1,$2,$3,$4};", [], [_U32] + [_F32] * 4, is_ordered=True
)
put_shared_u32x2 = define(
    "st.shared.v2.u32 [$0], {$1,$2};", [], [_U32, _U32, _U32], is_ordered=True
)
fetch_add_shared_u32 = define(
    "atom.shared.add.u32 $0, [$1], $2;", [_U32], [_U32, _U32], is_ordered=True
)
add_shared_u32 = define("red.shared.add.u32 [$0], $1;", [], [_U32, _U32], is_ordered=True)
put_shared_u32x4 = define("st.shared.v4.u32 [$0], {$1,$2,$3,$4};", [], [_U32] * 5, is_ordered=True)

# Asynchronous copies of 16 (or 8, 4) bytes: global memory to shared; of a size of 0 nothing is
# read and zeros are written.
copy_async_16 = define(
    "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;",
    [],
    [_U32, _U64, _U32],
    is_ordered=True,
)
copy_async_8 = define(
    "cp.async.ca.shared.global [$0], [$1], 8, $2;", [], [_U32, _U64, _U32], is_ordered=True
)
copy_async_4 = define(
    "cp.async.ca.shared.global [$0], [$1], 4, $2;", [], [_U32, _U64, _U32], is_ordered=True
)
placed_u32 = define(  # its operand; what is reckoned of it stays behind, in the branch or loop
    "mov.u32 $0, $1;", [_U32], [_U32], is_ordered=True
)
copy_async_16_if = define(  # where the last operand is not 0; past the first-level cache
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; @p cp.async.cg.shared.global.L2::256B [$0], [$1], 16; }",
    [],
    [_U32, _U64, _U32],
    is_ordered=True,
)
copy_weights_16_if = define(  # the same, for neighbouring pieces that are asked for together
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; @p cp.async.cg.shared.global.L2::128B [$0], [$1], 16; }",
    [],
    [_U32, _U64, _U32],
    is_ordered=True,
)
copy_columns_16_if = define(  # the same, through the first-level cache, where other blocks look
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; @p cp.async.ca.shared.global [$0], [$1], 16; }",
    [],
    [_U32, _U64, _U32],
    is_ordered=True,
)
copy_page_16 = define(
    "cp.async.cg.shared.global.L2::256B [$0], [$1], 16;", [], [_U32, _U64], is_ordered=True
)
close_copies = define("cp.async.commit_group;", [], [], is_ordered=True)
wait_copies_0 = define("cp.async.wait_group 0;", [], [], is_ordered=True)
wait_copies_1 = define("cp.async.wait_group 1;", [], [], is_ordered=True)
wait_copies_2 = define("cp.async.wait_group 2;", [], [], is_ordered=True)
wait_copies_3 = define("cp.async.wait_group 3;", [], [], is_ordered=True)

# Four 8x8 matrices of sixteen-bit elements; each lane gives the address of one row.
load_matrices = define(
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];",
    [_U32] * 4,
    [_U32],
    is_ordered=True,
)
load_matrices_transposed = define(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];",
    [_U32] * 4,
    [_U32],
    is_ordered=True,
)
# One 8x8 matrix of sixteen-bit elements that lies over the lanes, transposed.
transpose_matrix = define(
    "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", [_U32], [_U32], is_ordered=True
)


@intrinsic
def shared_address(context: Any, array: Any) -> Any:
    """Address of a shared array as the 32-bit number that shared instructions take."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, values[0])
        pointer = builder.ptrtoint(made.data, ir.IntType(64))
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        text = "{ .reg .u64 a; cvta.to.shared.u64 a, $1; cvt.u32.u64 $0, a; }"
        return builder.call(ir.InlineAsm(kind, text, "=r,l"), [pointer])

    return _U32(array), generate
