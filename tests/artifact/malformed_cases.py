"""One hand-made file for each way to break each rule of the container, and legal oddities."""

import json
from collections.abc import Callable
from typing import Any

from ninfer.artifact.format import ArtifactCode
from tests.support.artifact_files import (
    MATRIX,
    NORM,
    NOTE,
    PAYLOAD,
    Json,
    example,
    example_root,
    frame,
    spell,
    with_member,
    with_raw,
)

U64 = 2**64


def changed(change: Callable[[Json], Any]) -> bytes:
    """The example after an expression changed it in place."""

    def apply(root: Json) -> None:
        change(root)

    return example(apply)


def without(index: int, member: str) -> bytes:
    return changed(lambda root: root["objects"][index].pop(member))


def text(raw: bytes) -> bytes:
    return frame(raw, PAYLOAD)


GOOD = spell(example_root())
PREFIX = b"NINFER\x00\x02"
HUGE_NUMBER = "1" + "0" * 5000

CASES: dict[str, tuple[ArtifactCode, bytes]] = {
    # Prefix and lengths.
    "fifteen bytes": (ArtifactCode.TRUNCATED_PREFIX, example()[:15]),
    "short and not an artifact": (ArtifactCode.TRUNCATED_PREFIX, b"GGUF"),
    "first byte differs": (ArtifactCode.BAD_MAGIC, b"n" + example()[1:]),
    "part of a sharded file": (ArtifactCode.BAD_MAGIC, b"NINPRT" + example()[6:]),
    "version 0": (ArtifactCode.UNSUPPORTED_VERSION, frame(GOOD, PAYLOAD, version=0)),
    "version 3": (ArtifactCode.UNSUPPORTED_VERSION, frame(GOOD, PAYLOAD, version=3)),
    "version 255, prefix only": (ArtifactCode.UNSUPPORTED_VERSION, PREFIX[:7] + b"\xff" + bytes(8)),
    "length 0": (ArtifactCode.JSON_LENGTH, PREFIX + bytes(8) + bytes(5000)),
    "length one past the file": (ArtifactCode.JSON_LENGTH, PREFIX + b"\x03" + bytes(7) + b"{}"),
    "length 2^64 - 1": (ArtifactCode.JSON_LENGTH, PREFIX + b"\xff" * 8 + bytes(5000)),
    "length whose end wraps to 0": (
        ArtifactCode.JSON_LENGTH,
        PREFIX + (U64 - 16).to_bytes(8, "little") + bytes(5000),
    ),
    "length whose alignment wraps": (
        ArtifactCode.JSON_LENGTH,
        PREFIX + (U64 - 4000).to_bytes(8, "little") + bytes(5000),
    ),
    "one byte of padding missing": (ArtifactCode.PAYLOAD_START, frame(GOOD)[:-1]),
    # Text.
    "Latin-1 byte": (
        ArtifactCode.JSON_ENCODING,
        text(GOOD.replace(b"example", b"ex\xe4mple")),
    ),
    "surrogate encoded in UTF-8": (
        ArtifactCode.JSON_ENCODING,
        text(GOOD.replace(b"example", b"\xed\xa0\x80")),
    ),
    "overlong UTF-8": (ArtifactCode.JSON_ENCODING, text(GOOD.replace(b"example", b"\xc0\xaf"))),
    "UTF-16 little endian": (ArtifactCode.JSON_SYNTAX, text(GOOD.decode().encode("utf-16-le"))),
    "UTF-16 big endian": (ArtifactCode.JSON_SYNTAX, text(GOOD.decode().encode("utf-16-be"))),
    "UTF-32": (ArtifactCode.JSON_SYNTAX, text(GOOD.decode().encode("utf-32-le"))),
    "byte order mark": (ArtifactCode.JSON_SYNTAX, text(b"\xef\xbb\xbf" + GOOD)),
    "empty text": (ArtifactCode.JSON_SYNTAX, text(b" \t\r\n")),
    "zeros": (ArtifactCode.JSON_SYNTAX, text(bytes(40))),
    "two values": (ArtifactCode.JSON_SYNTAX, text(GOOD + b"{}")),
    "trailing NUL": (ArtifactCode.JSON_SYNTAX, text(GOOD + b"\0")),
    "comment": (ArtifactCode.JSON_SYNTAX, text(b"// x\n" + GOOD)),
    "trailing comma": (ArtifactCode.JSON_SYNTAX, text(GOOD[:-1] + b",}")),
    "single quotes": (ArtifactCode.JSON_SYNTAX, text(GOOD.replace(b'"', b"'"))),
    "no-break space": (ArtifactCode.JSON_SYNTAX, text(b"\xc2\xa0" + GOOD)),
    "raw newline in a string": (
        ArtifactCode.JSON_SYNTAX,
        text(GOOD.replace(b"example", b"ex\nample")),
    ),
    "NaN": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "NaN")),
    "Infinity": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "Infinity")),
    "-Infinity": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "-Infinity")),
    "leading zero": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "00")),
    "plus sign": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "+0")),
    "hexadecimal": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "0x0")),
    "deep arrays": (ArtifactCode.JSON_SYNTAX, text(b"[" * 100_000 + b"]" * 100_000)),
    "deep arrays, never closed": (ArtifactCode.JSON_SYNTAX, text(b"[" * 100_000)),
    "deep objects": (ArtifactCode.JSON_SYNTAX, text(b'{"a":' * 100_000 + b"0" + b"}" * 100_000)),
    "5000-digit integer": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", HUGE_NUMBER)),
    "5000-digit negative": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "-" + HUGE_NUMBER)),
    "4301-digit integer": (ArtifactCode.JSON_SYNTAX, with_raw(NOTE, "offset", "9" * 4301)),
    "4300-digit integer": (ArtifactCode.VALUE_RANGE, with_raw(NOTE, "offset", "9" * 4300)),
    "minus 4300 digits": (ArtifactCode.VALUE_RANGE, with_raw(NOTE, "offset", "-" + "9" * 4300)),
    "5000-digit fraction": (ArtifactCode.VALUE_TYPE, with_raw(NOTE, "offset", HUGE_NUMBER + ".5")),
    "root member twice": (
        ArtifactCode.JSON_DUPLICATE_MEMBER,
        text(GOOD[:-1] + b',"identity":' + spell(example_root()["identity"]) + b"}"),
    ),
    "member twice in an object, one escaped": (
        ArtifactCode.JSON_DUPLICATE_MEMBER,
        text(GOOD.replace(b'"name":"norm"', b'"name":"norm","n\\u0061me":"norm"')),
    ),
    # Root.
    "root is a string": (ArtifactCode.ROOT_MEMBERS, text(b'"x"')),
    "root is null": (ArtifactCode.ROOT_MEMBERS, text(b"null")),
    "root is empty": (ArtifactCode.ROOT_MEMBERS, text(b"{}")),
    "root without objects": (ArtifactCode.ROOT_MEMBERS, changed(lambda r: r.pop("objects"))),
    "root without identity": (ArtifactCode.ROOT_MEMBERS, changed(lambda r: r.pop("identity"))),
    "root has a third member": (ArtifactCode.ROOT_MEMBERS, changed(lambda r: r.update(files=[]))),
    "root in other case": (
        ArtifactCode.ROOT_MEMBERS,
        text(GOOD.replace(b'"objects"', b'"Objects"')),
    ),
    "v2 root under v1 magic": (ArtifactCode.ROOT_MEMBERS, frame(GOOD, PAYLOAD, version=1)),
    "identity is a string": (ArtifactCode.ROOT_MEMBERS, changed(lambda r: r.update(identity="x"))),
    "identity without weights": (
        ArtifactCode.ROOT_MEMBERS,
        changed(lambda r: r["identity"].pop("weights_id")),
    ),
    "identity with more": (
        ArtifactCode.ROOT_MEMBERS,
        changed(lambda r: r["identity"].update(revision="1")),
    ),
    "model_id null": (
        ArtifactCode.MODEL_ID,
        changed(lambda r: r["identity"].update(model_id=None)),
    ),
    "model_id number": (
        ArtifactCode.MODEL_ID,
        changed(lambda r: r["identity"].update(model_id=27)),
    ),
    "model_id empty": (ArtifactCode.MODEL_ID, changed(lambda r: r["identity"].update(model_id=""))),
    "weights_id empty": (
        ArtifactCode.WEIGHTS_ID,
        changed(lambda r: r["identity"].update(weights_id="")),
    ),
    "weights_id array": (
        ArtifactCode.WEIGHTS_ID,
        changed(lambda r: r["identity"].update(weights_id=["bf16"])),
    ),
    "objects is an object": (ArtifactCode.OBJECTS, changed(lambda r: r.update(objects={}))),
    "objects is null": (ArtifactCode.OBJECTS, changed(lambda r: r.update(objects=None))),
    "objects is empty": (ArtifactCode.OBJECTS, changed(lambda r: r.update(objects=[]))),
    # Objects.
    "entry is null": (ArtifactCode.OBJECT_TYPE, changed(lambda r: r["objects"].append(None))),
    "entry is an array": (ArtifactCode.OBJECT_TYPE, changed(lambda r: r["objects"].append([]))),
    "kind missing": (ArtifactCode.OBJECT_KIND, without(NORM, "kind")),
    "kind null": (ArtifactCode.OBJECT_KIND, with_member(NORM, "kind", None)),
    "kind in other case": (ArtifactCode.OBJECT_KIND, with_member(NORM, "kind", "Tensor")),
    "kind empty": (ArtifactCode.OBJECT_KIND, with_member(NORM, "kind", "")),
    "kind number": (ArtifactCode.VALUE_TYPE, with_member(NORM, "kind", 1)),
    "name missing": (ArtifactCode.OBJECT_MEMBERS, without(NORM, "name")),
    "bytes missing": (ArtifactCode.OBJECT_MEMBERS, without(NOTE, "bytes")),
    "v3 id member": (ArtifactCode.OBJECT_MEMBERS, with_member(NORM, "id", "norm")),
    "tensor with encoding": (
        ArtifactCode.OBJECT_MEMBERS,
        with_member(NORM, "encoding", "raw-bytes-v1"),
    ),
    "resource with shape": (ArtifactCode.OBJECT_MEMBERS, with_member(NOTE, "shape", [5])),
    "resource called tensor": (ArtifactCode.OBJECT_MEMBERS, with_member(NOTE, "kind", "tensor")),
    # Types.
    "name null": (ArtifactCode.VALUE_TYPE, with_member(NORM, "name", None)),
    "name number": (ArtifactCode.VALUE_TYPE, with_member(NORM, "name", 5)),
    "name empty": (ArtifactCode.VALUE_TYPE, with_member(NOTE, "name", "")),
    "name with NUL": (ArtifactCode.VALUE_TYPE, with_member(NORM, "name", "a\0b")),
    "name with a lone high surrogate": (
        ArtifactCode.VALUE_TYPE,
        with_raw(NORM, "name", '"a\\ud800"'),
    ),
    "name with a lone low surrogate": (
        ArtifactCode.VALUE_TYPE,
        with_raw(NORM, "name", '"\\udfffb"'),
    ),
    "offset true": (ArtifactCode.VALUE_TYPE, with_member(NORM, "offset", True)),
    "offset false": (ArtifactCode.VALUE_TYPE, with_member(NOTE, "offset", False)),
    "offset string": (ArtifactCode.VALUE_TYPE, with_member(NORM, "offset", "256")),
    "offset null": (ArtifactCode.VALUE_TYPE, with_member(NORM, "offset", None)),
    "offset 0e0": (ArtifactCode.VALUE_TYPE, with_raw(NOTE, "offset", "0e0")),
    "offset -0.0": (ArtifactCode.VALUE_TYPE, with_raw(NOTE, "offset", "-0.0")),
    "offset 1e400": (ArtifactCode.VALUE_TYPE, with_raw(NOTE, "offset", "1e400")),
    "bytes float": (ArtifactCode.VALUE_TYPE, with_member(NORM, "bytes", 8.0)),
    "bytes true": (ArtifactCode.VALUE_TYPE, with_member(NOTE, "bytes", True)),
    "bytes array": (ArtifactCode.VALUE_TYPE, with_member(NORM, "bytes", [8])),
    "shape null": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", None)),
    "shape string": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", "4")),
    "shape object": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", {"0": 4})),
    "dimension true": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", [True, 4])),
    "dimension float": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", [4.0])),
    "dimension null": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", [4, None])),
    "dimension array": (ArtifactCode.VALUE_TYPE, with_member(NORM, "shape", [[4]])),
    "format number": (ArtifactCode.VALUE_TYPE, with_member(NORM, "format", 16)),
    "format empty": (ArtifactCode.VALUE_TYPE, with_member(NORM, "format", "")),
    "layout null": (ArtifactCode.VALUE_TYPE, with_member(NORM, "layout", None)),
    "layout object": (ArtifactCode.VALUE_TYPE, with_member(NORM, "layout", {})),
    "encoding null": (ArtifactCode.VALUE_TYPE, with_member(NOTE, "encoding", None)),
    "encoding empty": (ArtifactCode.VALUE_TYPE, with_member(NOTE, "encoding", "")),
    # Ranges.
    "offset -1": (ArtifactCode.VALUE_RANGE, with_member(NOTE, "offset", -1)),
    "offset 2^64": (ArtifactCode.VALUE_RANGE, with_member(NORM, "offset", U64)),
    "bytes 0 of a resource": (ArtifactCode.VALUE_RANGE, with_member(NOTE, "bytes", 0)),
    "bytes 2^64": (ArtifactCode.VALUE_RANGE, with_member(NORM, "bytes", U64)),
    "bytes -8": (ArtifactCode.VALUE_RANGE, with_member(NORM, "bytes", -8)),
    "dimension 0": (ArtifactCode.VALUE_RANGE, with_member(MATRIX, "shape", [2, 0])),
    "dimension -4": (ArtifactCode.VALUE_RANGE, with_member(NORM, "shape", [-4])),
    "dimension 2^64": (ArtifactCode.VALUE_RANGE, with_member(NORM, "shape", [U64])),
    # Registries.
    "format in other case": (ArtifactCode.UNKNOWN_FORMAT, with_member(NORM, "format", "bf16")),
    "format alias": (ArtifactCode.UNKNOWN_FORMAT, with_member(NORM, "format", "BFLOAT16")),
    "format with a space": (ArtifactCode.UNKNOWN_FORMAT, with_member(NORM, "format", "BF16 ")),
    "format in v3 spelling": (
        ArtifactCode.UNKNOWN_FORMAT,
        with_member(MATRIX, "format", "q5_g64_fp16"),
    ),
    "NVFP4": (ArtifactCode.UNKNOWN_FORMAT, with_member(MATRIX, "format", "NVFP4")),
    "FP8": (ArtifactCode.UNKNOWN_FORMAT, with_member(MATRIX, "format", "FP8_E4M3FN_ROW_BF16S")),
    "group size nobody registered": (
        ArtifactCode.UNKNOWN_FORMAT,
        with_member(MATRIX, "format", "Q5G32_F16S"),
    ),
    "format is a lone surrogate": (
        ArtifactCode.UNKNOWN_FORMAT,
        with_raw(NORM, "format", '"\\ud800"'),
    ),
    "layout in v3 spelling": (
        ArtifactCode.UNKNOWN_LAYOUT,
        with_member(MATRIX, "layout", "row_split_k128_v1"),
    ),
    "layout of resources": (
        ArtifactCode.UNKNOWN_LAYOUT,
        with_member(NORM, "layout", "raw-bytes-v1"),
    ),
    "encoding in other case": (
        ArtifactCode.UNKNOWN_ENCODING,
        with_member(NOTE, "encoding", "RAW-BYTES-V1"),
    ),
    "encoding is a layout": (
        ArtifactCode.UNKNOWN_ENCODING,
        with_member(NOTE, "encoding", "contiguous-le-v1"),
    ),
    # Layout against format, rank and size.
    "grouped format, contiguous layout": (
        ArtifactCode.FORMAT_LAYOUT,
        with_member(MATRIX, "layout", "contiguous-le-v1"),
    ),
    "direct format, row-split layout": (
        ArtifactCode.FORMAT_LAYOUT,
        with_member(NORM, "layout", "row-split-k128-v1"),
    ),
    "grouped scalar": (ArtifactCode.LAYOUT_SHAPE, with_member(MATRIX, "shape", [])),
    "grouped rank 3": (ArtifactCode.LAYOUT_SHAPE, with_member(MATRIX, "shape", [1, 2, 130])),
    "direct rank 17": (ArtifactCode.LAYOUT_SHAPE, with_member(NORM, "shape", [4] + [1] * 16)),
    "100000 dimensions": (
        ArtifactCode.LAYOUT_SHAPE,
        with_member(NORM, "shape", [1] * 100_000),
    ),
    "one byte more": (ArtifactCode.SIZE_MISMATCH, with_member(NORM, "bytes", 9)),
    "size without inner padding": (ArtifactCode.SIZE_MISMATCH, with_member(MATRIX, "bytes", 336)),
    "size rounded up": (ArtifactCode.SIZE_MISMATCH, with_member(MATRIX, "bytes", 768)),
    "size leaves u64": (ArtifactCode.INTEGER_OVERFLOW, with_member(NORM, "shape", [2**63, 2**63])),
    "grouped size leaves u64": (
        ArtifactCode.INTEGER_OVERFLOW,
        with_member(MATRIX, "shape", [2**33, 2**33]),
    ),
    "padded columns leave u64": (
        ArtifactCode.INTEGER_OVERFLOW,
        with_member(MATRIX, "shape", [1, U64 - 1]),
    ),
    # Geometry.
    "tensor named like a resource": (
        ArtifactCode.DUPLICATE_NAME,
        with_member(NORM, "name", "note"),
    ),
    "same name, escaped": (ArtifactCode.DUPLICATE_NAME, with_raw(NORM, "name", '"n\\u006fte"')),
    "same offset": (ArtifactCode.ORDER_OR_OVERLAP, with_member(MATRIX, "offset", 256)),
    "reverse order": (
        ArtifactCode.ORDER_OR_OVERLAP,
        changed(lambda r: r["objects"].reverse()),
    ),
    "misaligned by one": (ArtifactCode.MISALIGNED, with_member(MATRIX, "offset", 513)),
    "misaligned to 128": (ArtifactCode.MISALIGNED, with_member(MATRIX, "offset", 640)),
    "last byte missing": (ArtifactCode.OUT_OF_BOUNDS, example()[:-1]),
    "one alignment too far": (ArtifactCode.OUT_OF_BOUNDS, with_member(MATRIX, "offset", 768)),
    "resource past the end": (
        ArtifactCode.OUT_OF_BOUNDS,
        changed(lambda r: r.update(objects=[r["objects"][NOTE] | {"bytes": len(PAYLOAD) + 1}])),
    ),
    "end leaves u64": (ArtifactCode.INTEGER_OVERFLOW, with_member(MATRIX, "offset", U64 - 256)),
    "resource end leaves u64": (
        ArtifactCode.INTEGER_OVERFLOW,
        changed(lambda r: r.update(objects=[r["objects"][NOTE] | {"offset": U64 - 1}])),
    ),
}


ACCEPTED: dict[str, bytes] = {
    "the example": example(),
    "zero with a minus sign": with_raw(NOTE, "offset", "-0"),
    "trailing bytes": example() + b"garbage",
    "padding that is not zero": example().replace(b"}" + bytes(99), b"}" + b"\xaa" * 99),
    "pretty JSON": text(json.dumps(example_root(), indent=2).encode()),
    "white space around": text(b"\r\n\t " + GOOD + b" \n"),
    "escaped name": with_raw(NORM, "name", '"\\u006e\\ud83d\\ude00"'),
    "names that differ in case": with_member(NORM, "name", "NOTE"),
    "members in another order": changed(
        lambda r: r.update(objects=[dict(reversed(list(o.items()))) for o in r["objects"]])
    ),
    "a scalar": changed(
        lambda r: r.update(objects=[r["objects"][NORM] | {"shape": [], "bytes": 2}])
    ),
    "rank 16": with_member(NORM, "shape", [1] * 15 + [4]),
    "a resource after a resource": changed(
        lambda r: r["objects"].insert(1, r["objects"][NOTE] | {"name": "b", "offset": 5})
    ),
}
