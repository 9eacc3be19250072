"""The context of the HTTP request a thread is working on.

A thin door to Flask's own request-bound storage, so that routes get one typed object.
"""

from typing import cast

from flask import g

from ninfer.gateway.request_context import RequestContext


def remember_context(context: RequestContext) -> None:
    """Bind the facts of the present request."""
    g.ninfer_context = context


def current_context() -> RequestContext:
    """Facts of the present request."""
    return cast(RequestContext, g.ninfer_context)
