"""Kernels of attention, Gated DeltaNet and experts compile without a device and without spills."""

from collections.abc import Callable
from functools import partial

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import build, complaints
from ninfer.kernels.cuda.attention_decode import make_split, split_stages
from ninfer.kernels.cuda.attention_expand import make_expand
from ninfer.kernels.cuda.attention_int8_split import int8_stages, make_int8_split
from ninfer.kernels.cuda.attention_merge import make_merge
from ninfer.kernels.cuda.attention_page_decode import make_page_split
from ninfer.kernels.cuda.attention_page_prefill import make_page_prefill
from ninfer.kernels.cuda.attention_wide import make_wide_prefill
from ninfer.kernels.cuda.attention_wide_int8 import make_wide_int8_prefill
from ninfer.kernels.cuda.delta_chunks import make_chunk_operands
from ninfer.kernels.cuda.delta_columns import DeltaHeads, make_columns, make_window
from ninfer.kernels.cuda.delta_output import make_gated_norm
from ninfer.kernels.cuda.delta_prefill import make_prefill_state
from ninfer.kernels.cuda.delta_round import make_decode
from ninfer.kernels.cuda.delta_scan import make_scan
from ninfer.kernels.cuda.delta_scan_wide import make_wide_scan
from ninfer.kernels.cuda.expert_down import make_down
from ninfer.kernels.cuda.expert_gate import make_gate, walk_stages
from ninfer.kernels.cuda.expert_gate_joined import make_gate_joined
from ninfer.kernels.cuda.expert_plan import make_plan
from ninfer.kernels.cuda.expert_rank import make_rank
from ninfer.kernels.cuda.expert_sum import make_combine
from ninfer.kernels.cuda.expert_wide import make_expert_wide
from ninfer.kernels.cuda.expert_wide_shape import ExpertWide
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.tensor import TensorFormat

TINY = DeltaHeads(2, 4, 32, 32)
REAL = DeltaHeads(16, 48, 128, 128)
SMALL = [make_expand, partial(make_window, TINY), make_combine]
"""One of each; all that models declare are compiled by ``nox -s compile_targets``."""
GATE_STAGES = walk_stages(TensorFormat.Q4, 16, MULTIPROCESSOR_SHARED)
LARGE = [
    partial(make_merge, 256),
    partial(make_columns, TINY, False),
    *(partial(make_gated_norm, TINY, to_image) for to_image in (False, True)),
    partial(make_rank, 256),
    partial(make_plan, 256),
    partial(make_split, 256, split_stages(256)),
    partial(make_int8_split, 256, int8_stages(256)),
    partial(make_page_split, 256),
    *(partial(make_page_prefill, 256, is_int8, 4) for is_int8 in (False, True)),
    *(partial(make_wide_prefill, to_image) for to_image in (False, True)),
    *(partial(make_wide_int8_prefill, to_image) for to_image in (False, True)),
    partial(make_chunk_operands, REAL, True),
    *(partial(make_scan, REAL, columns) for columns in (32, 64)),
    partial(make_wide_scan, REAL),
    *(partial(make_decode, REAL, True, is_staged) for is_staged in (False, True)),
    partial(make_prefill_state, REAL),
    partial(make_decode, TINY, False, False),
    *(
        partial(make_gate, TensorFormat.Q4, 16, 2, is_listed, GATE_STAGES)
        for is_listed in (False, True)
    ),
    partial(make_gate_joined, TensorFormat.Q4, 16, 256, TensorFormat.W8, 4),
    *(partial(make_down, format, 4, 1) for format in (TensorFormat.Q5, TensorFormat.Q6)),
    partial(make_expert_wide, ExpertWide(TensorFormat.Q4, True)),
    partial(make_expert_wide, ExpertWide(TensorFormat.Q5, False)),
]  # fmt: skip


@pytest.mark.parametrize("make", SMALL)
def test_small_kernels_compile_without_spills(make: Callable[[], Kernel]) -> None:
    kernel = make()

    assert complaints(kernel, build(kernel, "sm_90").figures) == []


@pytest.mark.slow
@pytest.mark.parametrize("make", LARGE)
def test_other_kernels_compile_without_spills(make: Callable[[], Kernel]) -> None:
    kernel = make()

    assert complaints(kernel, build(kernel, "sm_90").figures) == []
