"""Rewrites an artifact with some of its objects changed, for tests of what must be refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ninfer.artifact.format import TensorDescriptor
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.writer import ArtifactWriter, ResourceSpec, TensorSpec, plan_layout
from ninfer.tensor import Shape, TensorFormat


@dataclass(frozen=True, slots=True)
class EditedObject:
    """One object: a tensor when it has a format, a resource otherwise."""

    content: bytes
    shape: Shape = ()
    format: TensorFormat | None = None


Objects = dict[str, EditedObject]
Edit = Callable[[Objects], object]


def rewrite(
    source: Path,
    output: Path,
    edit: Edit,
    *,
    model_id: str | None = None,
    weights_id: str | None = None,
) -> Path:
    """Copy an artifact, applying ``edit`` to its objects by name, and return the copy."""
    with ArtifactReader.open(source) as reader:
        objects: Objects = {}
        for found in reader.objects:
            content = reader.view(found.name).tobytes()
            objects[found.name] = (
                EditedObject(content, found.shape, found.format)
                if isinstance(found, TensorDescriptor)
                else EditedObject(content)
            )
        identity = (model_id or reader.model_id, weights_id or reader.weights_id or "")
    edit(objects)
    write_artifact(output, identity, objects)
    return output


def write_artifact(
    output: Path, identity: tuple[str, str], objects: Mapping[str, EditedObject]
) -> None:
    """Write objects in the order given."""
    descriptors = plan_layout(
        ResourceSpec(name, len(found.content))
        if found.format is None
        else TensorSpec(name, found.shape, found.format)
        for name, found in objects.items()
    )
    with ArtifactWriter(output, *identity, descriptors) as writer:
        for name, found in objects.items():
            writer.write(name, 0, found.content)
