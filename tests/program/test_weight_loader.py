"""Loading: the right groups, the right bytes, through staging of any size."""

from collections.abc import Iterator

import numpy as np
import pytest

from ninfer.config import EngineConfig, ProposalHead, SpeculativeBackend
from ninfer.device import host_array
from ninfer.host.device import HostDevice
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.ops.context import OpContext, make_context
from ninfer.program import weight_loader
from ninfer.program.weight_loader import (
    load_weights,
    resident_groups,
    resident_objects,
    weight_bytes,
)
from ninfer.tensor import DType
from tests.support.model_cases import open_case

TEXT, SHORT = ObjectGroup.TEXT, ObjectGroup.DRAFT_HEAD


@pytest.fixture
def ctx() -> Iterator[OpContext]:
    with HostDevice(num_threads=1) as device:
        yield make_context(device, device.stream())


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, {TEXT}),
        ({"proposal_head": ProposalHead.SHORT}, {TEXT}),
        ({"has_vision": True}, {TEXT, ObjectGroup.VISION}),
        ({"speculative": SpeculativeBackend.MTP}, {TEXT, ObjectGroup.MTP}),
        ({"speculative": SpeculativeBackend.DFLASH}, {TEXT, ObjectGroup.DFLASH}),
        (
            {"speculative": SpeculativeBackend.DFLASH2, "proposal_head": ProposalHead.SHORT},
            {TEXT, SHORT, ObjectGroup.DFLASH2},
        ),
    ],
)
def test_only_what_is_on_is_resident(options: dict[str, object], groups: set[ObjectGroup]) -> None:
    draft_tokens = 1 if "speculative" in options else 0

    config = EngineConfig(draft_tokens=draft_tokens, **options)  # type: ignore[arg-type]  # by table

    assert resident_groups(config) == groups


@pytest.mark.parametrize("weights_id", ["bf16", "groupwise-int"])
@pytest.mark.parametrize("staging_bytes", [256, 4096, 1 << 20])
def test_every_object_arrives_byte_for_byte_through_any_staging(
    ctx: OpContext, monkeypatch: pytest.MonkeyPatch, weights_id: str, staging_bytes: int
) -> None:
    monkeypatch.setattr(weight_loader, "STAGING_BYTES", staging_bytes)
    with open_case("tiny-moe", weights_id) as case:
        objects = resident_objects(case.bound, frozenset({TEXT}))
        arena = ctx.device.arena("weights", weight_bytes(ctx, objects))

        loaded = load_weights(ctx, case.reader, objects, arena)

        assert arena.used_bytes <= arena.nbytes < arena.used_bytes + 256
        assert loaded.matrices.keys() | loaded.tensors.keys() == {one.name for one in objects}
        for name, matrix in loaded.matrices.items():
            # The host keeps matrices as the file has them.
            assert np.array_equal(host_array(matrix.storage), case.reader.view(name))
        for name, tensor in loaded.tensors.items():
            stored = host_array(tensor).reshape(-1).view(np.uint8)
            assert np.array_equal(stored, case.reader.view(name))
        arena.close()


def test_the_convolution_is_a_tensor_and_projections_are_matrices(ctx: OpContext) -> None:
    with open_case("tiny-dense") as case:
        objects = resident_objects(case.bound, frozenset({TEXT}))
        arena = ctx.device.arena("weights", weight_bytes(ctx, objects))

        loaded = load_weights(ctx, case.reader, objects, arena)

        convolution = loaded.tensors["text/layers/0/gdn/convolution"]
        assert (convolution.shape, convolution.dtype) == ((4, 256), DType.BF16)
        assert loaded.tensors["text/layers/0/gdn/a_log"].dtype is DType.F32
        assert loaded.matrices["text/layers/0/gdn/a_b_projection"].num_rows == 8
        arena.close()


def test_progress_rises_to_the_whole(ctx: OpContext) -> None:
    told: list[tuple[int, int]] = []
    with open_case("tiny-dense") as case:
        objects = resident_objects(case.bound, frozenset({TEXT}))
        arena = ctx.device.arena("weights", weight_bytes(ctx, objects))

        load_weights(
            ctx, case.reader, objects, arena, lambda done, total: told.append((done, total))
        )

        total = sum(case.reader.view(stored.name).size for stored in objects)
        assert [whole for _, whole in told] == [total] * len(objects)
        assert [done for done, _ in told] == sorted({done for done, _ in told})
        assert told[-1][0] == total
        arena.close()


def test_groups_that_are_off_are_not_loaded(ctx: OpContext) -> None:
    with open_case("tiny-dense") as case:
        assert case.bound.has(ObjectGroup.MTP)

        objects = resident_objects(case.bound, frozenset({TEXT}))

        assert all(stored.name.startswith("text/") for stored in objects)
