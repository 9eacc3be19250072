"""Writes and reads checkpoint folders for converter tests, independent of the converter."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.golden import GOLDEN

INDEX = "model.safetensors.index.json"
_TYPES = {"BF16": "<u2", "F32": "<f4", "F16": "<f2", "I64": "<i8"}


@dataclass(frozen=True, slots=True)
class Words:
    """A tensor as stored: BF16 as uint16 words."""

    dtype: str
    array: npt.NDArray[Any]

    def bf16(self) -> npt.NDArray[np.uint16]:
        """Words in bfloat16: those stored, or rounded to nearest even in float64."""
        if self.dtype == "BF16":
            return self.array.astype(np.uint16)
        bits = self.array.astype("<f4").view(np.uint32).astype(np.uint64)
        lower, upper = bits & 0xFFFF, bits >> 16
        is_up = (lower > 0x8000) | ((lower == 0x8000) & (upper & 1 == 1))
        return np.asarray(upper + is_up, np.uint16)

    def f32(self) -> npt.NDArray[np.float32]:
        """Values in binary32; exact."""
        if self.dtype == "BF16":
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(np.float32)


Tensors = dict[str, Words]


def read_tensors(path: Path) -> Tensors:
    """Read every tensor of a safetensors file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    entries.pop("__metadata__", None)
    return {
        name: Words(
            entry["dtype"],
            np.frombuffer(
                content, _TYPES[entry["dtype"]], math.prod(entry["shape"]),
                start + entry["data_offsets"][0],
            ).reshape(entry["shape"]),
        )
        for name, entry in entries.items()
    }  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Words]) -> None:
    """Write a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    cursor = 0
    for name, words in tensors.items():
        stop = cursor + words.array.nbytes
        header[name] = {
            "dtype": words.dtype,
            "shape": list(words.array.shape),
            "data_offsets": [cursor, stop],
        }
        cursor = stop
    text = json.dumps(header).encode()
    body = b"".join(words.array.tobytes() for words in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def golden_tensors(case: str, folder: str = "checkpoint") -> Tensors:
    """Tensors of a golden checkpoint or companion."""
    return read_tensors(GOLDEN / case / folder / "model.safetensors")


def copy_checkpoint(case: str, to: Path, tensors: Mapping[str, Words] | None = None) -> Path:
    """Copy a golden checkpoint, with other tensors if some are given."""
    shutil.copytree(GOLDEN / case / "checkpoint", to)
    if tensors is not None:
        write_tensors(to / "model.safetensors", tensors)
    return to


def shard_checkpoint(folder: Path, num_shards: int) -> list[Path]:
    """Spread a checkpoint's single file over shards with an index; return the shards."""
    single = folder / "model.safetensors"
    tensors = read_tensors(single)
    single.unlink()
    names = list(tensors)
    weight_map: dict[str, str] = {}
    shards = []
    for index in range(num_shards):
        shard = folder / f"model-{index + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[index::num_shards]}
        write_tensors(shard, part)
        weight_map |= dict.fromkeys(part, shard.name)
        shards.append(shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return shards


def unfuse_experts(tensors: Mapping[str, Words]) -> Tensors:
    """Give every expert tensors of its own, as older exports do."""
    result: Tensors = {}
    for name, words in tensors.items():
        if name.endswith(".experts.gate_up_proj"):
            width = words.array.shape[1] // 2
            for expert, bank in enumerate(words.array):
                at = f"{name.removesuffix('gate_up_proj')}{expert}."
                result[f"{at}gate_proj.weight"] = Words(words.dtype, bank[:width])
                result[f"{at}up_proj.weight"] = Words(words.dtype, bank[width:])
        elif name.endswith(".experts.down_proj"):
            for expert, bank in enumerate(words.array):
                at = f"{name.removesuffix('down_proj')}{expert}."
                result[f"{at}down_proj.weight"] = Words(words.dtype, bank)
        else:
            result[name] = words
    return result
