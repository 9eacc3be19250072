"""The chat page and its files, served from the package data of ``ninfer.web``.

The page makes no request to other hosts, and its policy forbids it. Knows no file names: what the
package holds is what there is. Source: the serving contract, sections 2 and 12.
"""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from flask import Flask, Response
from werkzeug.exceptions import NotFound

PACKAGE: Final = "ninfer.web"
PAGE: Final = "index.html"
MIME_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def register(app: Flask) -> None:
    """Add the routes of the page."""
    app.add_url_rule("/", endpoint="page", view_func=lambda: _file(PAGE), methods=["GET"])
    app.add_url_rule("/web/<name>", endpoint="web", view_func=_file, methods=["GET"])


def _file(name: str) -> Response:
    kind = next((mime for suffix, mime in MIME_TYPES.items() if name.endswith(suffix)), None)
    found = _find(name) if kind is not None else None
    if found is None:
        raise NotFound
    return Response(found.read_bytes(), content_type=kind, headers=PAGE_HEADERS)


def _find(name: str) -> Traversable | None:
    """The file of exactly this name in the package; names with separators do not exist."""
    try:
        folder = resources.files(PACKAGE)
    except ModuleNotFoundError:
        return None
    return next((entry for entry in folder.iterdir() if entry.name == name), None)
