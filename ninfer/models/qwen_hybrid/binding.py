"""Binds an artifact to its model's contract: every object known, present and of the right kind.

Checks the whole file whatever features are on: features only decide what is uploaded later. Does
not read weights, except the shortlist's ids. Source: artifact contract, sections 4, 8, 12 and 14.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from ninfer.artifact.format import (
    ArtifactCode,
    ArtifactError,
    ObjectDescriptor,
    ResourceDescriptor,
    TensorDescriptor,
)
from ninfer.artifact.reader import ArtifactReader
from ninfer.errors import CheckpointError
from ninfer.models.package import GROUPWISE_INT, Geometry, ModelPackage
from ninfer.models.qwen_hybrid.draft_geometry import draft_from_config
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.qwen_hybrid.inventory import (
    DRAFT_CONFIG,
    MODEL_CONFIG,
    REQUIRED_GROUPS,
    ExpectedObject,
    ObjectGroup,
    inventory,
)
from ninfer.models.qwen_hybrid.recognition import check_package
from ninfer.models.qwen_hybrid.tokenizer_range import addressable_tokens, parse_object
from ninfer.models.registry import lookup, model_ids

_TOKENIZER: Final = "frontend/tokenizer.json"
_TOKENIZER_CONFIG: Final = "frontend/tokenizer_config.json"
_SHORTLIST: Final = "text/draft_head_token_ids"
_JSON_SUFFIX: Final = ".json"

# Version 1 says neither profile nor geometry: only these models, only this profile.
_VERSION_1_MODELS: Final = ("qwen3.6-27b", "qwen3.6-35b-a3b")


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A checked artifact.

    Attributes:
        package: the registry's entry.
        geometry: all dimensions; ``has_mtp``, ``vision`` and ``draft`` tell what this file carries.
        weights_id: storage profile.
        addressable_tokens: ids below this one may be generated.
        resources: content of every resource by object name.
        objects: tensors of each present group, in directory order.
    """

    package: ModelPackage
    geometry: Geometry
    weights_id: str
    addressable_tokens: int
    resources: Mapping[str, bytes]
    objects: Mapping[ObjectGroup, tuple[ExpectedObject, ...]]

    def has(self, group: ObjectGroup) -> bool:
        """Whether the file carries a group."""
        return group in self.objects


def bind(reader: ArtifactReader) -> BoundModel:
    """Check an open artifact against its contract.

    Raises:
        ArtifactError: with one of the binder's codes, naming the object.
    """
    package = _package(reader)
    weights_id = _weights_id(reader, package)
    resources = {
        found.name: reader.view(found.name).tobytes()
        for found in reader.objects
        if isinstance(found, ResourceDescriptor)
    }
    geometry = _geometry(reader, package, resources)
    addressable = _addressable(reader, geometry, resources)
    expected = inventory(package, geometry, weights_id, addressable)
    groups = _check_objects(reader, expected)
    _check_resources(reader, resources)
    if ObjectGroup.DRAFT_HEAD in groups:
        _check_shortlist(reader, addressable)
    return BoundModel(
        package=package,
        geometry=_carried(geometry, groups),
        weights_id=weights_id,
        addressable_tokens=addressable,
        resources=MappingProxyType(resources),
        objects=_by_group(reader, expected, groups),
    )


def _package(reader: ArtifactReader) -> ModelPackage:
    known = _VERSION_1_MODELS if reader.weights_id is None else model_ids()
    if reader.model_id not in known:
        raise _fault(
            reader,
            ArtifactCode.UNKNOWN_MODEL,
            f"model {reader.model_id!a} is not one this build runs in a version"
            f" {reader.version} file: {', '.join(known)}",
        )
    return lookup(reader.model_id)


def _weights_id(reader: ArtifactReader, package: ModelPackage) -> str:
    weights_id = GROUPWISE_INT if reader.weights_id is None else reader.weights_id
    if weights_id not in package.weights_ids:
        known = ", ".join(sorted(package.weights_ids))
        raise _fault(
            reader,
            ArtifactCode.UNKNOWN_WEIGHTS,
            f"storage profile {weights_id!a} cannot be run; {package.model_id} has {known}."
            " Use a file of one of these, or convert the checkpoint",
        )
    return weights_id


def _geometry(
    reader: ArtifactReader, package: ModelPackage, resources: Mapping[str, bytes]
) -> Geometry:
    """Fixed dimensions, or those of the config the file carries."""
    if package.geometry is not None:
        return package.geometry
    name = MODEL_CONFIG
    try:
        config = parse_object(name, _required(reader, resources, name))
        geometry = geometry_from_config(config)
        check_package(package, geometry)
        if DRAFT_CONFIG in resources:
            name = DRAFT_CONFIG
            geometry = draft_from_config(geometry, parse_object(name, resources[name]))
    except CheckpointError as error:
        raise _fault(reader, ArtifactCode.RESOURCE_CONTENT, f"{name}: {error}", name) from error
    has_draft = any(found.name.startswith(("dflash/", "dflash2/")) for found in reader.objects)
    if has_draft and geometry.draft is None:
        _required(reader, resources, DRAFT_CONFIG)
    return geometry


def _addressable(reader: ArtifactReader, geometry: Geometry, resources: Mapping[str, bytes]) -> int:
    tokenizer = _required(reader, resources, _TOKENIZER)
    tokenizer_config = _required(reader, resources, _TOKENIZER_CONFIG)
    try:
        addressable = addressable_tokens(tokenizer, tokenizer_config)
    except CheckpointError as error:
        name = f"frontend/{error.field}"
        raise _fault(reader, ArtifactCode.RESOURCE_CONTENT, str(error), name) from error
    if addressable > geometry.vocab_rows:
        raise _fault(
            reader,
            ArtifactCode.RESOURCE_CONTENT,
            f"the tokenizer addresses {addressable} ids; the vocabulary has"
            f" {geometry.vocab_rows} rows",
            _TOKENIZER,
        )
    return addressable


def _check_objects(
    reader: ArtifactReader, expected: tuple[ExpectedObject, ...]
) -> frozenset[ObjectGroup]:
    """Compare the directory with the contract; return the groups the file carries."""
    by_name = {wanted.name: wanted for wanted in expected}
    for found in reader.objects:
        if found.name not in by_name:
            raise _fault(
                reader,
                ArtifactCode.UNEXPECTED_OBJECT,
                f"object {found.name!a} is not part of {reader.model_id}",
                found.name,
            )
        _check_descriptor(reader, by_name[found.name], found)
    present = {by_name[found.name].group for found in reader.objects} | REQUIRED_GROUPS
    for wanted in expected:
        if wanted.group not in present or wanted.is_optional:
            continue
        if reader.find(wanted.name) is None:
            group = f" (group {wanted.group.value} must be complete or absent)"
            raise _fault(
                reader,
                ArtifactCode.MISSING_OBJECT,
                f"object {wanted.name!a} is missing"
                f"{'' if wanted.group in REQUIRED_GROUPS else group}",
                wanted.name,
            )
    return frozenset(present)


def _check_descriptor(
    reader: ArtifactReader, wanted: ExpectedObject, found: ObjectDescriptor
) -> None:
    if isinstance(found, TensorDescriptor) is not (wanted.format is not None):
        kind = "tensor" if wanted.format is not None else "resource"
        raise _fault(
            reader, ArtifactCode.WRONG_KIND, f"object {found.name!a} must be a {kind}", found.name
        )
    if not isinstance(found, TensorDescriptor) or wanted.format is None:
        return
    if (found.shape, found.format, found.layout) != (wanted.shape, wanted.format, wanted.layout):
        raise _fault(
            reader,
            ArtifactCode.DESCRIPTOR_MISMATCH,
            f"object {found.name!a} is {found.format.value} {list(found.shape)}"
            f" {found.layout.value}; the contract has {wanted.format.value} {list(wanted.shape)}",
            found.name,
        )


def _check_resources(reader: ArtifactReader, resources: Mapping[str, bytes]) -> None:
    for name, content in resources.items():
        try:
            if name.endswith(_JSON_SUFFIX):
                parse_object(name, content)
            else:
                content.decode("utf-8")
        except (CheckpointError, UnicodeDecodeError) as error:
            message = f"{name} cannot be used: {error}"
            raise _fault(reader, ArtifactCode.RESOURCE_CONTENT, message, name) from error


def _check_shortlist(reader: ArtifactReader, addressable: int) -> None:
    ids = reader.view(_SHORTLIST).view("<i4")
    outside = ids[(ids < 0) | (ids >= addressable)]
    if outside.size:
        raise _fault(
            reader,
            ArtifactCode.SHORTLIST,
            f"{_SHORTLIST} holds {outside[0]}; ids are 0..{addressable - 1}",
            _SHORTLIST,
        )
    values, counts = np.unique(ids, return_counts=True)
    if values.size != ids.size:
        repeated = values[counts > 1][0]
        raise _fault(
            reader, ArtifactCode.SHORTLIST, f"{_SHORTLIST} holds {repeated} twice", _SHORTLIST
        )


def _carried(geometry: Geometry, groups: frozenset[ObjectGroup]) -> Geometry:
    """The geometry without the companions whose groups the file leaves out."""
    has_draft = not groups.isdisjoint({ObjectGroup.DFLASH, ObjectGroup.DFLASH2})
    return replace(
        geometry,
        has_mtp=geometry.has_mtp and ObjectGroup.MTP in groups,
        vision=geometry.vision if ObjectGroup.VISION in groups else None,
        draft=geometry.draft if has_draft else None,
    )


def _by_group(
    reader: ArtifactReader,
    expected: tuple[ExpectedObject, ...],
    groups: frozenset[ObjectGroup],
) -> Mapping[ObjectGroup, tuple[ExpectedObject, ...]]:
    by_name = {wanted.name: wanted for wanted in expected}
    ordered = [by_name[found.name] for found in reader.objects]
    return MappingProxyType(
        {
            group: tuple(o for o in ordered if o.group is group and o.format is not None)
            for group in ObjectGroup
            if group in groups and group is not ObjectGroup.RESOURCE
        }
    )


def _required(reader: ArtifactReader, resources: Mapping[str, bytes], name: str) -> bytes:
    if name not in resources:
        found = reader.find(name)
        code = ArtifactCode.MISSING_OBJECT if found is None else ArtifactCode.WRONG_KIND
        what = "is missing" if found is None else "must be a resource"
        raise _fault(reader, code, f"object {name!a} {what}", name)
    return resources[name]


def _fault(
    reader: ArtifactReader, code: ArtifactCode, message: str, name: str | None = None
) -> ArtifactError:
    return ArtifactError(message, code=code, path=reader.path, object=name)
