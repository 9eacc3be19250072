"""Finds the package a checkpoint belongs to, and compares the two.

The release name does not appear in a config: releases of one architecture are told apart by the
caller only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ninfer.errors import CheckpointError
from ninfer.models.package import Family, Geometry, ModelPackage
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.registry import PACKAGES

# A checkpoint narrower than every published one is a test model, if no other package names it.
_TEST_MODEL_HIDDEN_LIMIT: Final = 1024


def recognise(config: Mapping[str, object]) -> ModelPackage:
    """Find the one package that a checkpoint's ``config.json`` can be.

    Raises:
        CheckpointError: the config is refused, no package fits, or several do.
    """
    geometry = geometry_from_config(config)
    family = Family.MOE if geometry.is_moe else Family.DENSE
    fits = [
        package for package in PACKAGES if package.family is family and _fits(package, geometry)
    ]
    fits = [package for package in fits if not package.is_test_model] or fits
    match fits:
        case [package]:
            return package
        case []:
            raise CheckpointError(
                f"no registered model has hidden_size {geometry.hidden} and"
                f" {len(geometry.layers)} layers ({family.value}); name one with --model-id",
                field="model_id",
            )
        case _:
            names = ", ".join(package.model_id for package in fits)
            raise CheckpointError(
                f"the config fits several models ({names}); name one with --model-id",
                field="model_id",
            )


def check_package(package: ModelPackage, found: Geometry) -> None:
    """Compare a checkpoint's geometry with the facts of its package.

    Companions may be absent from the checkpoint; those present must agree.

    Raises:
        CheckpointError: names the first field that differs, with both values.
    """
    family = Family.MOE if found.is_moe else Family.DENSE
    if family is not package.family:
        raise CheckpointError(
            f"the config is {family.value}; {package.model_id} is {package.family.value}",
            field="model_type",
        )
    fixed = package.geometry
    if fixed is None:
        return
    for name in Geometry.__dataclass_fields__:
        wanted, actual = getattr(fixed, name), getattr(found, name)
        is_absent = name in {"vision", "draft"} and actual is None
        is_absent = is_absent or (name == "has_mtp" and not actual)
        if not is_absent and wanted != actual:
            raise CheckpointError(
                f"{name} is {actual}; {package.model_id} has {wanted}", field=name
            )


def _fits(package: ModelPackage, geometry: Geometry) -> bool:
    fixed = package.geometry
    if fixed is not None:
        return _without_companions(fixed) == _without_companions(geometry)
    if package.is_test_model:
        return geometry.hidden < _TEST_MODEL_HIDDEN_LIMIT
    return package.signature == (geometry.hidden, len(geometry.layers))


def _without_companions(geometry: Geometry) -> Geometry:
    return replace(geometry, has_mtp=False, vision=None, draft=None)
