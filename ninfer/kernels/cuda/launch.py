"""What launchers share: the shapes kernels are declared for, and operands as kernel arguments.

Launchers compute a grid and enqueue; they allocate nothing and read nothing back. Knows no kernel.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda.fragments import fragment_bytes, padded_width
from ninfer.tensor import LinearInput

WARP: Final = 32
"""Threads of a warp."""

MAX_THREADS: Final = 1024
"""Threads of a block, on every target."""

MULTIPROCESSOR_SHARED: Final = 227 << 10
"""Shared memory of a multiprocessor that blocks can share, on sm_90: for choosing how many may."""

RESERVED_SHARED: Final = 1024
"""Shared memory that a block takes beside its own."""


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """Dimensions of one model, as far as kernels are specialised on them.

    Attributes:
        hidden: width of the residual stream.
        num_heads, num_kv_heads, head_dim, rotary_dim: full attention.
        rope_theta, mrope_section: rotary embedding.
        num_key_heads, num_value_heads, key_dim, value_dim: Gated DeltaNet.
        intermediate: width of the dense MLP; 0 for a mixture.
        num_experts, experts_per_token, expert_width, shared_width: mixture; 0 for a dense MLP.
        block_shared_bytes: most shared memory of a block on the device, which shapes of blocks
            depend on; launchers ask their stream for it.
        has_warpgroups: whether the device has warpgroup instructions; likewise.
        has_clusters: whether its blocks can start in clusters; likewise.
    """

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    mrope_section: tuple[int, int, int]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    intermediate: int
    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    block_shared_bytes: int = MULTIPROCESSOR_SHARED
    has_warpgroups: bool = True
    has_clusters: bool = True


class BlockParts(NamedTuple):
    """A linear input as kernel arguments.

    Attributes:
        base: address of the bf16 part, or of the image.
        sums: address of the group sums; an image has none.
        padded: padded width.
    """

    base: int
    sums: int
    padded: int


def block_parts(block: LinearInput) -> BlockParts:
    """Return the addresses of a linear input's parts."""
    base = block.storage.address
    split = fragment_bytes(block.num_columns, block.width)
    return BlockParts(base, base + split, padded_width(block.width))


def orders(shapes: KernelShapes) -> tuple[bool, ...]:
    """Orders of linear inputs that kernels write: whether each is an image."""
    return (False, True) if shapes.has_warpgroups else (False,)


def fitting(kernels: Iterable[Kernel], block_shared_bytes: int) -> tuple[Kernel, ...]:
    """Those of several kernels whose blocks a device can hold; launchers choose among them."""
    return tuple(one for one in kernels if one.dynamic_shared_bytes <= block_shared_bytes)


def blocks_for(items: int, threads: int) -> int:
    """Blocks that give each item a thread."""
    return -(-items // threads)


def closing_bytes(multiprocessor_bytes: int, places: int) -> int:
    """Shared memory of a block of which so many share a multiprocessor, and not one more.

    What is left serves as first-level cache.
    """
    return multiprocessor_bytes // (places + 1) // 128 * 128 + 128 - RESERVED_SHARED
