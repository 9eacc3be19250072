"""Hand-made `.ninfer` files: framing, a valid example, and JSON with one thing changed."""

import copy
import json
from collections.abc import Callable
from typing import Any

Json = Any


def frame(text: bytes, payload: bytes = b"", *, version: int = 2) -> bytes:
    """Put a prefix before and padding after some JSON bytes."""
    prefix = b"NINFER\x00" + bytes([version]) + len(text).to_bytes(8, "little")
    start = -(-(16 + len(text)) // 4096) * 4096
    return (prefix + text).ljust(start, b"\0") + payload


def spell(root: Json) -> bytes:
    """Compact UTF-8 JSON, as the writer spells it; lone surrogates become escapes."""
    try:
        return json.dumps(root, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(root, separators=(",", ":")).encode()


def example_root() -> Json:
    """Two tensors and a resource: direct, grouped, raw."""
    return {
        "identity": {"model_id": "example", "weights_id": "groupwise-int"},
        "objects": [
            {
                "name": "note",
                "kind": "resource",
                "encoding": "raw-bytes-v1",
                "offset": 0,
                "bytes": 5,
            },
            {
                "name": "norm",
                "kind": "tensor",
                "shape": [4],
                "format": "BF16",
                "layout": "contiguous-le-v1",
                "offset": 256,
                "bytes": 8,
            },
            {
                "name": "matrix",
                "kind": "tensor",
                "shape": [2, 130],
                "format": "Q5G64_F16S",
                "layout": "row-split-k128-v1",
                "offset": 512,
                "bytes": 528,
            },
        ],
    }


PAYLOAD = bytes(range(256)) * 4 + bytes(16)
"""As many bytes as the example needs: it ends with its last object."""

NOTE, NORM, MATRIX = 0, 1, 2


def example(change: Callable[[Json], Json | None] | None = None) -> bytes:
    """The example file after ``change`` altered (or replaced) its root."""
    root = example_root()
    if change is not None:
        replaced = change(root)
        root = root if replaced is None else replaced
    return frame(spell(root), PAYLOAD)


def with_member(index: int, member: str, value: Json) -> bytes:
    """The example with one member of one object set."""

    def change(root: Json) -> None:
        root["objects"][index][member] = copy.deepcopy(value)

    return example(change)


def with_raw(index: int, member: str, literal: str) -> bytes:
    """The example with one member replaced by JSON text that `json.dumps` would not write."""
    marker = "@literal@"

    def change(root: Json) -> None:
        root["objects"][index][member] = marker

    root = example_root()
    change(root)
    return frame(spell(root).replace(f'"{marker}"'.encode(), literal.encode()), PAYLOAD)


def split(content: bytes) -> tuple[bytes, bytes]:
    """JSON bytes and payload of a file."""
    length = int.from_bytes(content[8:16], "little")
    start = -(-(16 + length) // 4096) * 4096
    return content[16 : 16 + length], content[start:]


def as_version_1(content: bytes) -> bytes:
    """Respell a version 2 file as version 1: only the root and the version byte differ."""
    text, payload = split(content)
    identity = spell({"identity": json.loads(text)["identity"]})[1:-1]
    model = spell({"model_id": json.loads(text)["identity"]["model_id"]})[1:-1]
    head, found, tail = text.partition(identity)
    if head != b"{" or not found:
        raise ValueError("the root does not start with the identity in the writer's spelling")
    return frame(b"{" + model + tail, payload, version=1)
