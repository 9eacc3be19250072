"""Warpgroup products whose left operand lies in registers (target sm_90a).

A warp of the group holds rows 16 q .. 16 q + 15 of the 64 x 16 block just as one m16n8k16 product
holds its left operand, and the sums of its rows as that product's sums, eight columns after eight.
The right operand is rows of features in shared memory, see `warpgroup`. A call returns when its
products have ended: other warpgroups of the multiprocessor use the tensor cores meanwhile.

Knows no kernel. Source: PTX ISA manual, asynchronous warpgroup level instructions.
"""

from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from ninfer.cuda.ptx import Intrinsic

_LEFT_WORDS = 4  # of a lane, for 16 features


@cache
def multiply_registers(num_columns: int, steps: int, *, is_added: bool) -> Intrinsic:
    """Make ``(sums, left, right)``: a 64 x 16 steps block times ``num_columns`` rows of features.

    Args:
        num_columns: n of the product, a multiple of eight; ``sums`` has half as many values.
        steps: of 16 features; ``left`` has four words for each, ``right`` is the descriptor of the
            first.
        is_added: to the sums that are there; they are overwritten otherwise.
    """
    num_sums, num_left = num_columns // 2, _LEFT_WORDS * steps
    sums = ",".join(f"${index}" for index in range(num_sums))
    right = f"${num_sums + num_left}"
    lines = [
        "{ .reg .pred first, next; .reg .b64 b;",
        f"setp.eq.u32 first, 0, {0 if is_added else 1}; setp.eq.u32 next, 0, 0;",
        "wgmma.fence.sync.aligned;",
    ]
    for step in range(steps):
        words = ",".join(f"${num_sums + _LEFT_WORDS * step + i}" for i in range(_LEFT_WORDS))
        lines += [
            f"add.s64 b, {right}, {2 * step};",
            f"wgmma.mma_async.sync.aligned.m64n{num_columns}k16.f32.bf16.bf16 "
            f"{{{sums}}}, {{{words}}}, b, {'next' if step else 'first'}, 1, 1, 0;",
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0; }"]
    text = "\n".join(lines)
    value, word = ir.FloatType(), ir.IntType(32)
    operands = [word] * num_left + [ir.IntType(64)] + [value] * (num_sums * is_added)
    kind = ir.FunctionType(ir.LiteralStructType([value] * num_sums), operands)
    constraints = ["=f"] * num_sums + ["r"] * num_left + ["l"]
    constraints += [str(index) for index in range(num_sums * is_added)] + ["~{memory}"]

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def places(index: int, count: int) -> list[Any]:
            made = context.make_array(signature.args[index])(context, builder, values[index])
            return [
                builder.gep(made.data, [ir.Constant(ir.IntType(32), place)])
                for place in range(count)
            ]

        totals = places(0, num_sums)
        given = [builder.load(place) for place in places(1, num_left)] + [values[2]]
        if is_added:
            given += [builder.load(place) for place in totals]
        asm = ir.InlineAsm(kind, text, ",".join(constraints), side_effect=True)
        result = builder.call(asm, given)
        for index, place in enumerate(totals):
            builder.store(builder.extract_value(result, index), place)
        return context.get_dummy_value()

    def on_sums(context: Any, sums: Any, left: Any, right: Any) -> Any:
        return types.void(sums, left, types.uint64), generate

    made = intrinsic(on_sums)
    made.ptx_text = f"{text} {constraints}"
    return made
