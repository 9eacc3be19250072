"""Compile the kernels of registered models ahead of time, on any machine.

Maps model dimensions to what kernels are specialised on, asks the kernel table which kernels that
means, and fills the cache. Needs no device and no artifact, but the compiler, which is an optional
dependency: importing this module without it fails. Run as a program, the module compiles what
another process asks for.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Final

import ninfer.kernels.cuda as table
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import (
    BLOCK_SHARED,
    TARGETS,
    TUNED_TARGET,
    WARPGROUP_TARGET,
    KernelCache,
    complaints,
    default_folder,
    has_clusters,
    mark_prebuilt,
    suits,
)
from ninfer.cuda.workers import Job, Progress, compile_together
from ninfer.errors import ConfigurationError
from ninfer.kernels.cuda.launch import KernelShapes
from ninfer.models.package import Geometry, MoeGeometry
from ninfer.models.registry import lookup, model_ids

DEFAULT_TARGET: Final = TUNED_TARGET


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One compiled kernel.

    Attributes:
        kernel: its stable name.
        target: what it was compiled for.
        registers: of each thread.
        spilled_bytes: stores and loads of spilled registers.
        local_bytes: local memory of each thread.
        shared_bytes: static and dynamic shared memory of a block.
        complaints: why it must not be shipped; empty when it may.
    """

    kernel: str
    target: str
    registers: int
    spilled_bytes: int
    local_bytes: int
    shared_bytes: int
    complaints: tuple[str, ...]


def compile_kernels(
    models: Sequence[str] | None,
    targets: Sequence[str] = (DEFAULT_TARGET,),
    *,
    only_one_geometry: bool = False,
    folder: Path | None = None,
    num_workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[KernelReport, ...]:
    """Bring every kernel of some models into the cache.

    Args:
        models: identities; None takes every registered model.
        targets: what to compile for.
        only_one_geometry: for targets beside the tuned one, take one of the kernels whose names
            differ in numbers only, the one with the most shared memory: what another target does
            to a kernel, it does to all of its kind.
        folder: where kernels go, to be used on machines without a matching compiler; the
            user's cache when None.
        num_workers: processes that compile; as many as there are processors when None.
        progress: told (kernels done, kernels in all).

    Raises:
        ConfigurationError: an identity or a target is unknown.
        InvariantError: a kernel does not compile.
        DeviceUnavailable: the compiler does not load beside the installed NumPy.
    """
    unknown = [name for name in targets if name not in TARGETS]
    if unknown:
        raise ConfigurationError(
            f"target is {unknown[0][:64]!r}; allowed is {', '.join(TARGETS)}", field="target"
        )
    wanted = [(one, target) for target in targets for one in declared_kernels(models, target)]
    if only_one_geometry:
        tuned = [job for job in wanted if job[1] == TUNED_TARGET]
        wanted = tuned + one_geometry(job for job in wanted if job[1] != TUNED_TARGET)
    cache = KernelCache(folder or default_folder())
    figures = compile_together(cache, wanted, num_workers, progress)
    reports = []
    for (kernel, target), found in zip(wanted, figures, strict=True):
        reports.append(
            KernelReport(
                kernel.name,
                target,
                found.registers,
                found.spilled_bytes,
                found.local_bytes,
                found.shared_bytes + kernel.dynamic_shared_bytes,
                tuple(complaints(kernel, found, target)),
            )
        )
    if folder is not None:
        mark_prebuilt(folder)
    return tuple(reports)


def declared_kernels(
    models: Sequence[str] | None = None, target: str = DEFAULT_TARGET
) -> tuple[Kernel, ...]:
    """Kernels that some models use on a target, each once, in a stable order.

    Raises:
        ConfigurationError: an identity is not registered.
    """
    kernels: dict[str, Kernel] = {}
    for model_id in model_ids() if models is None else models:
        for kernel in _declared(kernel_shapes(model_id), target):
            kernels.setdefault(kernel.name, kernel)
    return tuple(kernels[name] for name in sorted(kernels))


def kernels_of_geometry(geometry: Geometry, target: str = DEFAULT_TARGET) -> tuple[Kernel, ...]:
    """Kernels that a model of any dimensions uses on a target."""
    return tuple(_declared(shapes_of(geometry), target))


def _declared(shapes: KernelShapes, target: str) -> Iterator[Kernel]:
    shapes = replace(
        shapes,
        block_shared_bytes=BLOCK_SHARED[target],
        has_warpgroups=target == WARPGROUP_TARGET,
        has_clusters=has_clusters(target),
    )
    for family in table.__all__:
        module: ModuleType = getattr(table, family)
        yield from (kernel for kernel in module.declared(shapes) if suits(kernel, target))


def kind_of(name: str) -> str:
    """Name of a kernel without its numbers: families and formats, not extents."""
    words = name.split("_")
    return "_".join(word for word in words if not word.replace("x", "").isdigit())


def one_geometry(wanted: Iterable[Job]) -> list[Job]:
    """Of each kind and target the kernel with the most shared memory, the last of equals."""
    found: dict[tuple[str, str], Job] = {}
    for kernel, target in wanted:
        key = kind_of(kernel.name), target
        other = found.get(key)
        if other is None or kernel.dynamic_shared_bytes >= other[0].dynamic_shared_bytes:
            found[key] = kernel, target
    return list(found.values())


def kernel_shapes(model_id: str) -> KernelShapes:
    """What kernels of a model are specialised on.

    Raises:
        ConfigurationError: there is no such model.
    """
    try:
        package = lookup(model_id)
    except KeyError as error:
        raise ConfigurationError(
            f"model is {model_id[:64]!r}; registered are {', '.join(model_ids())}", field="model-id"
        ) from error
    return shapes_of(package.expected_geometry)


def shapes_of(geometry: Geometry) -> KernelShapes:
    """What kernels of a geometry are specialised on."""
    attention, mixer, mlp = geometry.attention, geometry.gated_delta, geometry.mlp
    moe = mlp if isinstance(mlp, MoeGeometry) else None
    return KernelShapes(
        hidden=geometry.hidden,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        rotary_dim=attention.rotary_dim,
        rope_theta=attention.rope_theta,
        mrope_section=attention.mrope_section,
        num_key_heads=mixer.num_key_heads,
        num_value_heads=mixer.num_value_heads,
        key_dim=mixer.key_dim,
        value_dim=mixer.value_dim,
        intermediate=0 if isinstance(mlp, MoeGeometry) else mlp.intermediate,
        num_experts=moe.num_experts if moe else 0,
        experts_per_token=moe.experts_per_token if moe else 0,
        expert_width=moe.expert_width if moe else 0,
        shared_width=moe.shared_width if moe else 0,
    )


def main() -> None:
    """Be the process that `ninfer.cuda.compile_ahead` asks: kernels by name, on standard input."""

    def report(done: int, total: int) -> None:
        sys.stdout.write(f"{done} {total}\n")
        sys.stdout.flush()

    wanted = json.load(sys.stdin)
    names, target = set(wanted["kernels"]), wanted["target"]
    declared = declared_kernels([wanted["model"]], target)
    jobs = [(kernel, target) for kernel in declared if kernel.name in names]
    compile_together(KernelCache(default_folder()), jobs, progress=report)


if __name__ == "__main__":
    main()
