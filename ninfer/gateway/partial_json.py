"""The complete members of a JSON object whose text was cut.

Source: RFC 8259.
"""

from typing import Any

from ninfer.frontend.template_json import parse_json


def complete_members(text: str) -> dict[str, Any]:
    """Members of the outermost object that were finished before the text ends.

    Args:
        text: a proper prefix of a JSON object, possibly empty.
    """
    for end in reversed(_member_ends(text)):
        try:
            found = parse_json(text[:end] + "}")
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def _member_ends(text: str) -> list[int]:
    """Places at which a member of the outermost object may have ended, ascending."""
    ends: list[int] = []
    depth = 0
    in_string = is_escaped = False
    for place, char in enumerate(text):
        if in_string:
            in_string = is_escaped or char != '"'
            is_escaped = not is_escaped and char == "\\"
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        elif char == "," and depth == 1:
            ends.append(place)
        if depth == 1 and not in_string and char in '"}]':
            ends.append(place + 1)
    return ends
