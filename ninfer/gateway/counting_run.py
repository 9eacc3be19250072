"""One request that only counts: from its body to the last byte of its reply, for every protocol.

It takes a place, so that tokenizing and clients that do not read its long replies never hold every
request thread. Generates nothing and knows no protocol. Source: the serving contract, sections 1.1,
2.3 and 9.2.
"""

from collections.abc import Callable
from typing import Any

from flask import Response

from ninfer.gateway.event_stream import compact_json
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.json_body import read_object
from ninfer.runtime import Engine

Count = Callable[[dict[str, Any], Engine], dict[str, Any]]
"""A protocol's answer to a body."""


def answer_counting(gateway: Gateway, read_body: Callable[[], bytes], count: Count) -> Response:
    """Answer one request; its place is released once the reply has been written.

    Args:
        gateway: shared parts.
        read_body: called once a place is taken.
        count: the protocol.

    Raises:
        NinferError: every place is taken, or the body is refused.
    """
    engine = gateway.life.loaded_engine()
    place = gateway.counting.acquire()
    try:
        reply = compact_json(count(read_object(read_body()), engine))
        response = Response(reply, mimetype="application/json")
        response.call_on_close(place.release)
    except BaseException:
        place.release()
        raise
    return response
