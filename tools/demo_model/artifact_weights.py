"""Weights of an artifact under their checkpoint names, decoded to float32.

Undoes the converter: the recipe that says which source rows an object is made of is read backwards.
NumPy only. Knows no tensor library.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ninfer.artifact.format import TensorDescriptor
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert.recipe import (
    Constant,
    RecipeBook,
    Rows,
    Transposed,
    checkpoint_recipes,
    draft_recipes,
)
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.qwen_hybrid.inventory import DRAFT_CONFIG, MODEL_CONFIG
from ninfer.tensor_formats import decode_matrix

PREFIX: Final = "model."

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What an artifact holds.

    Attributes:
        config: of the text model.
        draft_config: of the drafter, None when there is none.
        text: weights of text model and MTP head.
        draft: weights of the drafter.
        resources: contents by file name.
    """

    config: dict[str, Any]
    draft_config: dict[str, Any] | None
    text: dict[str, Array]
    draft: dict[str, Array]
    resources: dict[str, bytes]


def read_model(path: Path) -> StoredModel:
    """Read an artifact whose geometry travels with it.

    Raises:
        ArtifactError: the file is damaged.
        OSError: it cannot be read.
    """
    with ArtifactReader.open(path) as reader:
        resources = {
            found.name: reader.view(found.name).tobytes()
            for found in reader.objects
            if not isinstance(found, TensorDescriptor)
        }
        config = json.loads(resources[MODEL_CONFIG])
        draft_bytes = resources.get(DRAFT_CONFIG)
        draft_config = None if draft_bytes is None else json.loads(draft_bytes)
        geometry = geometry_from_config(config, draft_config)
        text = _weights(reader, checkpoint_recipes(geometry, PREFIX, ()))
        draft = {}
        if geometry.draft is not None:
            draft = _weights(reader, draft_recipes(geometry.draft, geometry))
    named = {name.rpartition("/")[2]: content for name, content in resources.items()}
    return StoredModel(config, draft_config, text, draft, named)


def _weights(reader: ArtifactReader, book: RecipeBook) -> dict[str, Array]:
    """Fill every source of the recipes whose objects the artifact has."""
    found: dict[str, Array] = {}
    stored = {entry.name: entry for entry in reader.objects}
    for name, recipe in book.recipes.items():
        entry = stored.get(name)
        if not isinstance(entry, TensorDescriptor):
            continue
        columns = entry.shape[-1] if len(entry.shape) > 1 else 1
        rows = int(np.prod(entry.shape)) // columns
        values = decode_matrix(entry.format, reader.view(name), rows, columns)
        match recipe:
            case Constant():
                continue
            case Transposed(source, _):
                found[source] = values.T.reshape(book.sources[source]).copy()
            case Rows(ranges):
                first = 0
                for part in ranges:
                    shape = book.sources[part.source]
                    target = found.setdefault(part.source, np.empty(shape, np.float32))
                    flat = target.reshape(-1, columns)
                    flat[part.first : part.first + part.count] = values[first : first + part.count]
                    first += part.count
    return found
