"""Warpgroup products whose right operand is turned: rows of features are its steps (sm_90a).

The right operand of `multiply_turned` is 16 rows for each step, whose elements are the columns of
the product: blocks of 64 elements, rows of 128 bytes in the swizzle over 128 bytes, eight rows 1024
bytes apart. `turned_descriptor` says how far a block of 64 elements is from the next one.

Knows no kernel. Source: PTX ISA manual, asynchronous warpgroup level instructions; CUTLASS, order
of the strides of a descriptor whose operand is not turned by the hardware's default.
"""

from functools import cache
from typing import Any, Final

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from ninfer.cuda.ptx import Intrinsic

_LEFT_WORDS: Final = 4  # of a lane, for 16 rows
_STEP_UNITS: Final = 16 * 128 // 16  # from step to step, in units of 16 bytes


def turned_descriptor(block_bytes: int) -> int:
    """Constant part of the descriptor; add the address of the first row in units of 16 bytes."""
    return (1 << 62) | (64 << 32) | ((block_bytes // 16) << 16)


@cache
def multiply_turned(num_columns: int, steps: int, *, is_awaited: bool = True) -> Intrinsic:
    """Make ``(sums, left, right)``: add a 64 x 16 steps block times 16 steps turned rows.

    Args:
        num_columns: n of the product; ``sums`` has half as many values.
        steps: of 16 rows; ``left`` has four words for each, as m16n8k16 takes its left operand.
        is_awaited: a call returns when its products have ended. Otherwise when those before it
            have, and sums and words belong to the products until `warpgroup.finish_products`.
    """
    num_sums, num_left = num_columns // 2, _LEFT_WORDS * steps
    sums = ",".join(f"${index}" for index in range(num_sums))
    right = f"${num_sums + num_left}"
    lines = [
        "{ .reg .pred p; .reg .b64 b; setp.eq.u32 p, 0, 0;",
        "wgmma.fence.sync.aligned;",
    ]
    for step in range(steps):
        words = ",".join(f"${num_sums + _LEFT_WORDS * step + i}" for i in range(_LEFT_WORDS))
        lines += [
            f"add.s64 b, {right}, {_STEP_UNITS * step};",
            f"wgmma.mma_async.sync.aligned.m64n{num_columns}k16.f32.bf16.bf16 "
            f"{{{sums}}}, {{{words}}}, b, p, 1, 1, 1;",
        ]
    pending = 0 if is_awaited else 1
    lines += ["wgmma.commit_group.sync.aligned;", f"wgmma.wait_group.sync.aligned {pending}; }}"]
    text = "\n".join(lines)
    value, word = ir.FloatType(), ir.IntType(32)
    operands = [word] * num_left + [ir.IntType(64)] + [value] * num_sums
    kind = ir.FunctionType(ir.LiteralStructType([value] * num_sums), operands)
    tied = [str(index) for index in range(num_sums)]
    constraints = ",".join(["=f"] * num_sums + ["r"] * num_left + ["l"] + tied + ["~{memory}"])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def places(index: int, count: int) -> list[Any]:
            made = context.make_array(signature.args[index])(context, builder, values[index])
            return [
                builder.gep(made.data, [ir.Constant(ir.IntType(32), place)])
                for place in range(count)
            ]

        totals = places(0, num_sums)
        given = [builder.load(place) for place in places(1, num_left)] + [values[2]]
        given += [builder.load(place) for place in totals]
        asm = ir.InlineAsm(kind, text, constraints, side_effect=True)
        result = builder.call(asm, given)
        for index, place in enumerate(totals):
            builder.store(builder.extract_value(result, index), place)
        return context.get_dummy_value()

    def on_sums(context: Any, sums: Any, left: Any, right: Any) -> Any:
        return types.void(sums, left, types.uint64), generate

    made = intrinsic(on_sums)
    made.ptx_text = f"{text} {constraints}"
    return made
