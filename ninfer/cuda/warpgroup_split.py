"""Groups of warpgroup products that run behind the program, on several arrays of sums (sm_90a).

A group is a list, in which products of independent sums take turns (2% of a scan's time less than
one after another). Left operands are in registers, as `warpgroup_registers` has them, right ones in
shared memory. A group returns at once: `settle` waits. Sums are whole arrays: the assembler makes
products that go to a part of others' sums wait for each other.

Knows no kernel. Source: PTX ISA manual, asynchronous warpgroup level instructions: the leading
stride of rows that are not swizzled goes from eight elements along K to the next eight, the other
stride from eight rows to the next eight.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from ninfer.cuda.ptx import Intrinsic

LEFT_WORDS: Final = 4
"""Words of a lane for 16 elements along K."""

HIGH: Final = 0
LOW: Final = 1
SMALL: Final = ((LOW, HIGH), (HIGH, LOW))
"""Of operands in two parts: the small two products of the left one's part and the right one's."""

LARGE: Final = ((HIGH, HIGH),)

_VALUE, _WORD, _WIDE = ir.FloatType(), ir.IntType(32), ir.IntType(64)


class Product(NamedTuple):
    """Sixteen elements along K.

    Attributes:
        sums: number of the array that is added to.
        left: number of the array of left operands.
        word: first of four in it.
        right: number of the descriptor.
        offset: added to that, in units of 16 bytes.
    """

    sums: int
    left: int
    word: int
    right: int
    offset: int


def plain_descriptor(along_k: int, along_rows: int) -> int:
    """Constant part of the descriptor of blocks of 8 x 8 elements, each 128 bytes in a row.

    Args:
        along_k: bytes from a block to the next one along K.
        along_rows: bytes from a block to the one of the next eight rows.
    """
    return ((along_rows // 16) << 32) | ((along_k // 16) << 16)


def parted(
    parts: Iterable[tuple[int, int]],
    offsets: Sequence[int],
    sums: int = 0,
    right: int = 0,
    word: int = 0,
) -> tuple[Product, ...]:
    """Products of operands in two parts.

    Args:
        parts: of the left and the right operand, one after another.
        offsets: of each 16 elements along K.
        sums: as of `Product`.
        right: number of the right operand's high part, which the low one follows.
        word: of the first 16 elements.
    """
    return tuple(
        Product(sums, left, word + LEFT_WORDS * step, right + other, offset)
        for left, other in parts
        for step, offset in enumerate(offsets)
    )


def in_turn(*lists: Sequence[Product]) -> tuple[Product, ...]:
    """Products of several lists, one of each after another."""
    turns = chain.from_iterable(zip_longest(*lists))
    return tuple(product for product in turns if product is not None)


@cache
def multiply(
    columns: tuple[int, ...],
    products: tuple[Product, ...],
    *,
    is_turned: bool = False,
    added: tuple[int, ...] = (),
) -> Intrinsic:
    """Make ``(*sums, *lefts, *rights)``, a group of products.

    Args:
        columns: of each array of sums, which has half as many values.
        products: in their order; only words that they name are touched.
        is_turned: rows of the right operands run along K.
        added: numbers of arrays whose sums stay; the others' first product overwrites them.
    """
    counts = [number // 2 for number in columns]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    words = sorted({(one.left, one.word + i) for one in products for i in range(LEFT_WORDS)})
    places = {word: sum(counts) + index for index, word in enumerate(words)}
    first_right = sum(counts) + len(words)
    num_lefts = 1 + max(one.left for one in products)
    num_rights = 1 + max(one.right for one in products)
    lines = [
        "{ .reg .pred none, all; .reg .b64 b;",
        "setp.eq.u32 none, 0, 1; setp.eq.u32 all, 0, 0;",
        "wgmma.fence.sync.aligned;",
    ]
    begun = set(added)
    for one in products:
        sums = ",".join(f"${starts[one.sums] + i}" for i in range(counts[one.sums]))
        left = ",".join(f"${places[one.left, one.word + i]}" for i in range(LEFT_WORDS))
        lines += [
            f"add.s64 b, ${first_right + one.right}, {one.offset};",
            f"wgmma.mma_async.sync.aligned.m64n{columns[one.sums]}k16.f32.bf16.bf16 "
            f"{{{sums}}}, {{{left}}}, b, {'all' if one.sums in begun else 'none'}, 1, 1, "
            f"{int(is_turned)};",
        ]
        begun.add(one.sums)
    lines.append("wgmma.commit_group.sync.aligned; }")
    text, total = "\n".join(lines), sum(counts)
    tied = [starts[index] + i for index in added for i in range(counts[index])]
    operands = [_WORD] * len(words) + [_WIDE] * num_rights + [_VALUE] * len(tied)
    function = ir.FunctionType(ir.LiteralStructType([_VALUE] * total), operands)
    constraints = ["=f"] * total + ["r"] * len(words) + ["l"] * num_rights
    constraints += [str(index) for index in tied] + ["~{memory}"]

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def elements(index: int, count: int) -> list[Any]:
            return _places(context, builder, signature.args[index], values[index], count)

        totals = list(
            chain.from_iterable(elements(index, count) for index, count in enumerate(counts))
        )
        lefts = {
            left: elements(
                len(counts) + left, 1 + max((word for own, word in words if own == left), default=0)
            )
            for left in range(num_lefts)
        }
        given = [builder.load(lefts[left][word]) for left, word in words]
        given += values[len(counts) + num_lefts :]
        given += [builder.load(totals[index]) for index in tied]
        asm = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
        _put(builder, builder.call(asm, given), totals)
        return context.get_dummy_value()

    num_arrays = len(counts) + num_lefts

    def on_arrays(context: Any, *operands: Any) -> Any:
        return types.void(*operands[:num_arrays], *[types.uint64] * num_rights), generate

    made = _with_operands(on_arrays, num_arrays + num_rights)
    made.ptx_text = f"{text} {constraints}"
    made.group = (columns, products, is_turned, added)
    return made


@cache
def settle(pending: int, counts: tuple[int, ...], num_sums: int) -> Intrinsic:
    """Make ``(*arrays)``: wait until all but the last ``pending`` groups of products have ended.

    Args:
        pending: groups that may go on.
        counts: elements of each array; the arrays' registers are the program's own from then on.
        num_sums: so many of the arrays are f32, those behind them are words.
    """
    kinds = [_VALUE if index < num_sums else _WORD for index in range(len(counts))]
    flat = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    text = f"wgmma.wait_group.sync.aligned {pending};"
    constraints = ["=f" if kind is _VALUE else "=r" for kind in flat]
    constraints += [str(index) for index in range(len(flat))] + ["~{memory}"]
    function = ir.FunctionType(ir.LiteralStructType(flat), flat)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places: list[Any] = []
        for kind, value, count in zip(signature.args, values, counts, strict=True):
            places += _places(context, builder, kind, value, count)
        asm = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
        _put(builder, builder.call(asm, [builder.load(place) for place in places]), places)
        return context.get_dummy_value()

    def on_arrays(context: Any, *arrays: Any) -> Any:
        return types.void(*arrays), generate

    made = _with_operands(on_arrays, len(counts))
    made.ptx_text = f"{text} {constraints}"
    return made


def _with_operands(function: Callable[..., Any], count: int) -> Intrinsic:
    """An intrinsic of so many operands: Numba takes them from the signature, not from ``*args``."""
    names = ("context", *(f"operand_{index}" for index in range(count)))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(function)


def _places(context: Any, builder: Any, kind: Any, array: Any, count: int) -> list[Any]:
    """Pointers to the elements of a local array."""
    data = context.make_array(kind)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(ir.IntType(32), index)]) for index in range(count)]


def _put(builder: Any, result: Any, places: Sequence[Any]) -> None:
    for index, place in enumerate(places):
        builder.store(builder.extract_value(result, index), place)
