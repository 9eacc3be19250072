"""Strict reading of a JSON request body.

Refuses what lenient readers guess at: other encodings, duplicate keys, NaN and infinity, endless
nesting, huge numbers and lone surrogates. Fractions keep their digits. Knows no fields. Source: RFC
8259; the serving contract, sections 3.2 and 3.3.
"""

import json
from typing import Any, NoReturn

from ninfer.errors import RequestError
from ninfer.frontend.message_json import json_kind as json_kind
from ninfer.frontend.template_json import MAX_NUMBER_CHARACTERS, JsonNumber
from ninfer.frontend.tokenizer import check_unicode
from ninfer.generation import shown

MAX_DEPTH = 64
MAX_COMMAS = 1 << 19
"""More than any prompt has room for. It bounds the number of values, and with it the time that
reading them keeps every other thread waiting."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_object(body: bytes) -> dict[str, Any]:
    """Read the one JSON object of a body.

    Raises:
        RequestError: ``invalid_json``, ``invalid_type`` at ``$``, or ``invalid_unicode``.
    """
    value = _read_value(body)
    if not isinstance(value, dict):
        raise RequestError(
            f"the body is {json_kind(value)}; it must be an object",
            code="invalid_type",
            field="$",
        )
    _check_value(value, "", 1)
    return value


def _read_value(body: bytes) -> Any:
    if not body.strip():
        _refuse("the body is empty")
    num_commas = body.count(b",")
    if num_commas > MAX_COMMAS:
        _refuse(f"the body has {num_commas} commas; allowed is {MAX_COMMAS}")
    try:
        text = body.removeprefix(_BYTE_ORDER_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8: byte {error.start}", code="invalid_json"
        ) from error
    try:
        return json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
            parse_float=_fraction,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise RequestError(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}",
            code="invalid_json",
        ) from error
    except RecursionError as error:
        raise RequestError(
            f"the body nests too deeply; allowed is {MAX_DEPTH} levels", code="invalid_json"
        ) from error


def _check_value(value: Any, path: str, depth: int) -> None:
    """Check depth and every string below ``value``."""
    if isinstance(value, str):
        if not value.isascii():
            check_unicode(value, path)
        return
    if not isinstance(value, dict | list):
        return
    if depth > MAX_DEPTH:
        _refuse(f"the body nests too deeply; allowed is {MAX_DEPTH} levels")
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, str | dict | list):
                _check_value(item, f"{path}[{index}]", depth + 1)
        return
    for key, item in value.items():
        if not key.isascii():
            check_unicode(key, path or "$")
        _check_value(item, f"{path}.{key}" if path else key, depth + 1)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"the body has the key {shown(key)} twice in one object")
            seen.add(key)
    return members


def _integer(text: str) -> int:
    _check_digits(text)
    return int(text)


def _fraction(text: str) -> JsonNumber:
    _check_digits(text)
    number = JsonNumber(text)
    if number in (float("inf"), float("-inf")):
        _refuse(f"the number {text[:64]} is beyond the range of a double")
    return number


def _check_digits(text: str) -> None:
    if len(text) > MAX_NUMBER_CHARACTERS:
        _refuse(f"a number has {len(text)} characters; allowed is {MAX_NUMBER_CHARACTERS}")


def _refuse_constant(text: str) -> NoReturn:
    _refuse(f"{text} is not JSON")


def _refuse(message: str) -> NoReturn:
    raise RequestError(message, code="invalid_json")
