"""Reads an artifact back and compares every byte with what its source gives.

The expected bytes are made again from the checkpoint, block by block, so nothing that the writing
run kept can hide a fault of the file.
"""

from pathlib import Path

import numpy as np

from ninfer.artifact.format import ArtifactCode, ArtifactError
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert.conversion import encoded_blocks, open_plan
from ninfer.convert.plan import ConversionPlan, ConvertOptions


def verify(options: ConvertOptions, artifact: Path) -> int:
    """Compare an artifact with the conversion that should have made it.

    Args:
        options: the conversion; its output is not used.
        artifact: file to check.

    Returns:
        Payload bytes compared.

    Raises:
        ArtifactError: something differs; names the object.
        CheckpointError: the source cannot be converted.
        OSError: a file cannot be read.
    """
    with open_plan(options) as plan, ArtifactReader.open(artifact) as reader:
        _compare_directory(plan, reader)
        compared = 0
        for name, content in plan.resources.contents.items():
            if reader.view(name).tobytes() != content:
                raise _differs(reader, name, ArtifactCode.RESOURCE_CONTENT, "other content")
            compared += len(content)
        for block in encoded_blocks(plan, options.num_workers):
            stored = reader.view(block.name)
            for offset, part in block.parts:
                wanted = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
                is_equal = stored[offset : offset + wanted.size] == wanted
                if not is_equal.all():
                    at = offset + int(is_equal.argmin())
                    what = f"another byte at {at} of {stored.size}"
                    raise _differs(reader, block.name, ArtifactCode.DESCRIPTOR_MISMATCH, what)
            compared += block.nbytes
        return compared


def _compare_directory(plan: ConversionPlan, reader: ArtifactReader) -> None:
    identity = (plan.package.model_id, plan.weights_id)
    if (reader.model_id, reader.weights_id) != identity:
        raise ArtifactError(
            f"the artifact is {reader.model_id} {reader.weights_id}; its source gives"
            f" {identity[0]} {identity[1]}",
            code=ArtifactCode.UNKNOWN_MODEL,
            path=reader.path,
        )
    wanted = {found.name: found for found in plan.descriptors}
    stored = {found.name: found for found in reader.objects}
    for name in [*wanted, *stored]:
        if wanted.get(name) != stored.get(name):
            what = f"{stored.get(name)}; its source gives {wanted.get(name)}"
            raise _differs(reader, name, ArtifactCode.DESCRIPTOR_MISMATCH, what)


def _differs(reader: ArtifactReader, name: str, code: ArtifactCode, what: str) -> ArtifactError:
    return ArtifactError(f"object {name!a} has {what}", code=code, path=reader.path, object=name)
