"""Compile what the GPU tests and benchmarks need, for a machine without a matching compiler.

    python -m tests.support.prebuilt_kernels FOLDER [TARGET]

Takes every kernel that a registered model declares, and the variants that only tests use. The
folder goes along and is named by ``NINFER_TEST_KERNELS``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ninfer.compilation import declared_kernels, kernels_of_geometry
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import TARGETS, KernelCache, mark_prebuilt
from ninfer.kernels.cuda.attention_int8_split import int8_stages, make_int8_split
from ninfer.kernels.cuda.attention_page_decode import make_page_split
from ninfer.kernels.cuda.attention_page_prefill import make_page_prefill, page_warps
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.kernels.cuda.expert_down import down_kernel
from ninfer.kernels.cuda.expert_down_ranked import make_down_ranked
from ninfer.kernels.cuda.expert_gate import gate_stages, make_gate, walk_stages
from ninfer.kernels.cuda.expert_gate_joined import make_gate_joined
from ninfer.kernels.cuda.expert_gate_ranked import make_gate_ranked
from ninfer.kernels.cuda.expert_plan import make_plan
from ninfer.kernels.cuda.expert_rank import make_rank_and_gate
from ninfer.kernels.cuda.gated_delta import kernels_of
from ninfer.kernels.cuda.kv_cache import make_append
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.kernels.cuda.norm import make_rms_norm
from ninfer.kernels.cuda.pointwise import make_swiglu
from ninfer.kernels.cuda.sampling import slice_kernels
from ninfer.kernels.cuda.tile_product import make_tile_product, tile_shape
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.tensor import TensorFormat
from tests.support.gate_values import make_gate_values
from tests.support.golden import GOLDEN
from tests.support.narrow_stream import MIDDLE_BYTES, NARROW_BYTES


def test_variants() -> tuple[Kernel, ...]:
    """Kernels of shapes that no model has."""
    return (
        *(make_rms_norm(False, to_image) for to_image in (False, True)),
        *(make_swiglu(False, to_image) for to_image in (False, True)),
        *(make_append(32, 16, 1e7, (3, 3, 2), is_int8) for is_int8 in (False, True)),
        *(
            make_gate(format, 3, 1, True, walk_stages(format, 3, MULTIPROCESSOR_SHARED))
            for format in PAIR_FORMATS
        ),
        make_plan(16),
        make_plan(1000),
        *(make_gate_ranked(TensorFormat.Q4, 16, 16, tiles) for tiles in (1, 2)),
        *(
            make_down_ranked(format, 4, TensorFormat.W8, 4, 16)
            for format in (TensorFormat.Q5, TensorFormat.Q6)
        ),
        make_gate_joined(TensorFormat.Q4, 16, 16, TensorFormat.W8, 4),
        make_rank_and_gate(16, True),
        make_rank_and_gate(8, False),
        *kernels_of(DeltaHeads(1, 2, 8, 16)),
        make_gate_values(),
        *golden_variants(),
        *narrow_variants(),
    )


def golden_variants() -> tuple[Kernel, ...]:
    """Kernels of the golden models whose geometry is that of no registered model."""
    kernels: list[Kernel] = []
    for case in ("real-head-dense", "real-head-moe"):
        config = json.loads((GOLDEN / case / "checkpoint" / "config.json").read_text())
        kernels += kernels_of_geometry(geometry_from_config(config))
    return tuple(kernels)


def narrow_variants() -> tuple[Kernel, ...]:
    """Kernels that only devices with smaller blocks and without warpgroups choose."""
    format, head_dim = TensorFormat.BF16, 256
    stages = gate_stages(format, 16, 2, NARROW_BYTES)
    return (
        *slice_kernels(),
        *kernels_of(DeltaHeads(16, 48, 128, 128), has_warpgroups=False),
        make_page_split(head_dim),
        make_int8_split(head_dim, int8_stages(head_dim, NARROW_BYTES)),
        *(
            make_page_prefill(head_dim, is_int8, page_warps(head_dim, nbytes))
            for is_int8 in (False, True)
            for nbytes in (NARROW_BYTES, MIDDLE_BYTES)
        ),
        *(make_gate(format, 16, 2, is_listed, stages) for is_listed in (False, True)),
        down_kernel(format, 4, 1, NARROW_BYTES),
        *(
            make_tile_product(tiles)
            for tiles in (tile_shape(format, MULTIPROCESSOR_SHARED) for format in PAIR_FORMATS)
            if tiles is not None
        ),
    )


def parse(arguments: Sequence[str]) -> tuple[Path, str]:
    """Folder and target of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.prebuilt_kernels",
        description="Compile what the GPU tests and benchmarks need.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the kernels go")
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        choices=sorted(TARGETS),
        default="sm_90",
        help="device generation: %(choices)s (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    return options.folder, options.target


def main(arguments: Sequence[str]) -> None:
    """Fill the folder."""
    folder, target = parse(arguments)
    cache = KernelCache(folder)
    kernels = {kernel.name: kernel for kernel in (*declared_kernels(), *test_variants())}
    for number, kernel in enumerate(kernels.values(), 1):
        cache.compiled(kernel, target)
        sys.stderr.write(f"\r{number} of {len(kernels)} kernels")
    mark_prebuilt(folder)
    sys.stderr.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
