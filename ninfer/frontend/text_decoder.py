"""Incremental UTF-8: bytes of tokens become text, never half a character.

A pure function over (held bytes, new bytes), so that a preview can decode without a decoder object
that would have to be copied. Does not know tokens or channels. Source: RFC 3629.
"""

import codecs

_SURROGATE_LEAD = 0xED
_FIRST_SURROGATE_CONTINUATION = 0xA0


def decode_bytes(held: bytes, new: bytes, *, is_end: bool = False) -> tuple[str, bytes]:
    """Decode as far as characters are complete.

    Bytes that can no longer become valid turn into U+FFFD at once; up to three bytes of an
    unfinished character are held, or replaced when nothing follows.

    Args:
        held: unfinished bytes of the call before.
        new: bytes that follow them.
        is_end: nothing follows.

    Returns:
        The text that became final, and the bytes to hold for the next call.
    """
    data = held + new
    text, consumed = codecs.utf_8_decode(data, "replace", is_end)
    rest = data[consumed:]
    if _is_encoded_surrogate(rest):
        # The codec waits for a third byte that no valid text can have.
        text += codecs.utf_8_decode(rest, "replace", True)[0]
        rest = b""
    return text, rest


def _is_encoded_surrogate(data: bytes) -> bool:
    return len(data) > 1 and data[0] == _SURROGATE_LEAD and data[1] >= _FIRST_SURROGATE_CONTINUATION
