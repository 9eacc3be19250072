"""Who writes a linear input and who reads it agree on its order."""

from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import attention, fragments, gated_delta, linear, moe, norm, pointwise
from ninfer.kernels.cuda.linear import input_bytes
from ninfer.ops.gated_delta import GatedDeltaDims, GatedDeltaState, GatedDeltaWeights
from ninfer.ops.kv_cache import PagedKv
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat

SCRATCH = 1 << 40
FEW, MANY = 128, 129
DIMS = GatedDeltaDims(16, 48, 128, 128)


class Launches:
    """A stream of a large card that notes what is launched."""

    num_multiprocessors = 132
    shared_bytes = 227 << 10
    counters = Tensor(0, DType.U32, (4096,))

    def __init__(self, has_warpgroups: bool, scratch_bytes: int = 384 << 20) -> None:
        self.has_warpgroups = self.has_clusters = has_warpgroups
        self.scratch = Tensor(SCRATCH, DType.U8, (scratch_bytes,))
        self.names: list[str] = []
        self.arguments: list[tuple[Any, ...]] = []

    def num_clusters(self, kernel: Kernel) -> int:
        return self.num_multiprocessors // kernel.cluster_blocks

    def launch(self, kernel: Kernel, grid: Any, args: Any, **options: Any) -> None:
        assert len(args) == len(kernel.params)
        self.names.append(kernel.name)
        self.arguments.append(tuple(args))


def tensor(*shape: int, dtype: DType = DType.BF16) -> Tensor:
    return Tensor(1 << 30, dtype, shape)


def columns(count: int, width: int) -> LinearInput:
    return LinearInput(tensor(input_bytes(count, width), dtype=DType.U8), count, width)


def matrix(rows: int, width: int) -> Matrix:
    nbytes = linear.resident_bytes(TensorFormat.Q4, rows, width)
    return Matrix(TensorFormat.Q4, tensor(nbytes, dtype=DType.U8), rows, width, 0, rows)


def i32(*shape: int) -> Tensor:
    return tensor(*shape, dtype=DType.I32)


def mixer() -> tuple[GatedDeltaWeights, GatedDeltaDims, GatedDeltaState]:
    one = tensor(1, dtype=DType.F32)
    weights = GatedDeltaWeights(tensor(4, DIMS.channels), one, one, tensor(128))
    window = tensor(1, 3, DIMS.channels)
    return weights, DIMS, GatedDeltaState(one, window, window, one, one, one, one)


def cache() -> PagedKv:
    pages = tensor(8, 4, 64, 256)
    return PagedKv(pages, pages, None, None, i32(1, 8))


def write(stream: Any, count: int) -> list[str]:
    """Names of the kernels by which each op of prefill writes a linear input."""
    found = []
    norm.rms_norm(stream, tensor(count, 256), tensor(256), 1e-6, columns(count, 256))
    pointwise.swiglu(stream, tensor(count, 512), columns(count, 256))
    linear.pack(stream, tensor(count, 256), columns(count, 256))
    found += stream.names
    projected, ab = tensor(count, DIMS.channels + 6144), tensor(count, 96, dtype=DType.F32)
    operands = *mixer(), i32(1), i32(1), 1e-6, columns(count, 6144)
    gated_delta.prefill(stream, projected, ab, *operands)
    found.append(stream.names[-2])  # the last one keeps the window
    projected, queries = tensor(count, 56 * 256), tensor(count, 24, 256)
    places = cache(), i32(count), i32(count)
    attention.paged_prefill(stream, queries, projected, *places, 0.1, columns(count, 6144))
    found.append(stream.names[-1])
    return found


@pytest.mark.parametrize("has_warpgroups", [False, True])
@pytest.mark.parametrize("count", [FEW, MANY])
def test_every_op_of_prefill_writes_the_order_that_products_read(
    count: int, has_warpgroups: bool
) -> None:
    stream: Any = Launches(has_warpgroups)
    written = [name.endswith("_image") for name in write(stream, count)]

    linear.project(stream, columns(count, 256), matrix(64, 256), tensor(count, 64), 0)

    assert len(written) == 5
    assert written == [stream.names[-1].startswith("coded_")] * 5


def test_products_read_an_image_where_it_lies() -> None:
    stream: Any = Launches(True)
    x = columns(MANY, 256)

    products = [(matrix(rows, 256), tensor(MANY, rows), 0) for rows in (64, 96)]
    linear.project_all(stream, x, products)

    assert [arguments[1] for arguments in stream.arguments] == [x.storage.address] * 2


@pytest.mark.parametrize("has_warpgroups", [False, True])
@pytest.mark.parametrize("count", [1, 8, 9, FEW, MANY, 4096])
@pytest.mark.parametrize("rows", [512, 64])  # 64: features of half a block
def test_products_that_are_gated_at_once_leave_what_is_between_alone(
    count: int, has_warpgroups: bool, rows: int
) -> None:
    stream: Any = Launches(has_warpgroups)
    x, weight, out = columns(count, 256), matrix(rows, 256), columns(count, rows // 2)
    between = Tensor(1 << 50, DType.BF16, (count, rows))

    linear.project_gated(stream, x, weight, between, out)

    is_written = any(between.address in arguments for arguments in stream.arguments)
    assert is_written != linear.gates_at_once(stream, count, weight)
    assert is_written == any("swiglu" in name for name in stream.names)


def test_many_columns_are_gated_at_once_on_a_card_with_warpgroups() -> None:
    stream: Any = Launches(True)

    found = [linear.gates_at_once(stream, count, matrix(512, 256)) for count in (MANY, 4096)]

    assert found == [True, True]


def experts(stream: Any, count: int, hidden: int, width: int) -> LinearInput:
    x, chosen = columns(count, hidden), 2
    moe.experts(
        stream,
        x,
        matrix(8 * 2 * width, hidden),
        matrix(8 * hidden, width),
        i32(count, chosen),
        tensor(count, chosen, dtype=DType.F32),
        tensor(count, hidden),
        tensor(count, dtype=DType.F32),
        tensor(count, hidden),
    )
    return x


def test_experts_that_do_not_suit_warpgroups_have_an_image_brought_back() -> None:
    stream: Any = Launches(True)

    x = experts(stream, 300, 96, 32)

    image, base, sums, padded = stream.arguments[0]
    assert stream.names[0] == "column_fragments"
    assert not any("expert_wide" in name for name in stream.names)
    assert image == x.storage.address
    assert base % 256 == 0
    assert sums == base + fragments.fragment_bytes(300, 96)
    end = SCRATCH + stream.scratch.nbytes
    assert SCRATCH < base < base + fragments.input_bytes(300, 96) <= end
    (gate,) = [a for n, a in zip(stream.names, stream.arguments, strict=True) if "_gate_" in n]
    assert gate[1:3] == (base, sums)
    assert padded == 128


def test_pieces_of_tokens_leave_the_columns_that_were_brought_back() -> None:
    room = fragments.input_bytes(304, 96) + 48 * 2 * (2 * 128 + 16)
    stream: Any = Launches(True, scratch_bytes=room + 4096)

    experts(stream, 300, 96, 32)

    base = stream.arguments[0][1]
    gates = [a for n, a in zip(stream.names, stream.arguments, strict=True) if "_gate_" in n]
    assert len(gates) > 1
    assert gates[1][1] > gates[0][1] == base
    for gate in gates:
        active, tokens, chosen, width = gate[6], gate[8], gate[9], gate[10]
        assert SCRATCH <= active < active + 2 * tokens * chosen * width <= base


def test_no_room_for_columns_that_were_brought_back_is_refused() -> None:
    with pytest.raises(ShapeError):
        experts(Launches(True, scratch_bytes=1000), 300, 96, 32)


def test_experts_multiply_the_image_from_the_first_token_of_each_piece_on() -> None:
    stream: Any = Launches(True, scratch_bytes=1 << 20)

    x = experts(stream, 1000, 256, 128)

    launches = zip(stream.names, stream.arguments, strict=True)
    gates = [arguments for name, arguments in launches if name.startswith("expert_wide_gate")]
    assert len(gates) > 1
    assert {arguments[1] for arguments in gates} == {x.storage.address}
    assert gates[0][8] == 0 < gates[1][8]


def test_rounds_of_more_rows_than_fragments_have_are_refused() -> None:
    stream: Any = Launches(True)
    projected, ab = tensor(MANY, DIMS.channels + 6144), tensor(MANY, 96, dtype=DType.F32)
    operands = *mixer(), i32(MANY), i32(MANY), 1e-6, columns(MANY, 6144)
    with pytest.raises(ShapeError):
        gated_delta.decode(stream, projected, ab, *operands)
    queries, places = tensor(MANY, 24, 256), (cache(), i32(MANY), i32(MANY))
    with pytest.raises(ShapeError):
        attention.paged_decode(
            stream, queries, tensor(MANY, 56 * 256), *places, 0.1, columns(MANY, 6144)
        )


@pytest.mark.parametrize(
    ("count", "has_warpgroups", "width", "first_row", "is_one"),
    [
        (MANY, True, 256, 0, True),
        (MANY, True, 256, 16, True),
        (FEW, True, 256, 0, False),
        (MANY, False, 256, 0, False),
        (MANY, True, 192, 0, False),
        (MANY, True, 256, 8, False),
    ],
)
def test_gated_products_are_one_launch_where_columns_and_rows_suit(
    count: int, has_warpgroups: bool, width: int, first_row: int, is_one: bool
) -> None:
    stream: Any = Launches(has_warpgroups)
    out, between = columns(count, width), tensor(count, 2 * width)
    gate_up = matrix(2 * width + 64, 128).rows(first_row, 2 * width)

    linear.project_gated(stream, columns(count, 128), gate_up, between, out)

    if is_one:
        (name,) = stream.names
        assert name.startswith("coded_q4_gated_")
        assert stream.arguments[0][2] == out.storage.address
        assert stream.arguments[0][8] == width // 64
    else:
        assert stream.names[-1].startswith("swiglu")
        assert len(stream.names) == 2


def test_parts_of_gated_products_have_their_own_gates_ups_and_features() -> None:
    stream: Any = Launches(True)
    out, gate_up = columns(1000, 17408), matrix(34816 + 32, 5120).rows(32, 34816)

    linear.project_gated(stream, columns(1000, 5120), gate_up, tensor(1000, 34816), out)

    assert len(stream.names) > 1
    done = 0
    for number, arguments in enumerate(stream.arguments):
        _, _, to, _, _, first_row, num_rows, _, k_blocks, _, apart, follows = arguments
        assert num_rows % 128 == 0
        assert first_row == 32 + done
        assert to == out.storage.address + done // 64 * 16384
        assert (k_blocks, apart, follows) == (17408 // 64, 17408 // 16, number)
        done += num_rows // 2
    assert done == 17408


def test_gated_products_of_plain_weights_are_two_launches() -> None:
    """The only format whose kernel has no registers left for the gates."""
    stream: Any = Launches(True)
    nbytes = linear.resident_bytes(TensorFormat.BF16, 512, 128)
    gate_up = Matrix(TensorFormat.BF16, tensor(nbytes, dtype=DType.U8), 512, 128, 0, 512)

    linear.project_gated(stream, columns(MANY, 128), gate_up, tensor(MANY, 512), columns(MANY, 256))

    assert stream.names[0].startswith("coded_bf16_bf16_")
    assert stream.names[1:] == ["swiglu_image"]
