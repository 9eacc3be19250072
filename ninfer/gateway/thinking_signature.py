"""Opaque signatures of thinking blocks, made with a key of this installation.

The key is a file of 32 random bytes in the state folder, made when it is first needed; without a
writable folder the key lives as long as the process. Nothing is ever checked against it: what a
client sends back need not be signed. Source: the serving contract, section 9.
"""

import base64
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32
KEY_NAME: Final = "thinking-signature.key"
_logger = logging.getLogger(__name__)


class ThinkingSigner:
    """Signs thinking text; safe to share between threads.

    Args:
        folder: where the key is kept; None is the folder the environment names.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._key: bytes | None = None

    def sign(self, text: str) -> str:
        """Signature of a whole thinking block."""
        digest = hmac.new(self._secret(), text.encode("utf-8"), hashlib.sha256).digest()
        return base64.b64encode(digest).decode("ascii")

    def _secret(self) -> bytes:
        with self._lock:
            if self._key is None:
                folder = self._folder or state_folder(os.environ)
                try:
                    self._key = _installed_key(folder)
                except OSError as error:
                    _logger.warning("no signing key can be kept (%s)", type(error).__name__)
                    self._key = secrets.token_bytes(KEY_BYTES)
            return self._key


def state_folder(environment: Mapping[str, str]) -> Path:
    """Folder of what outlives a process: ``$XDG_STATE_HOME/ninfer``, else ``~/.local/state``."""
    base = environment.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "ninfer"


def _installed_key(folder: Path) -> bytes:
    path = folder / KEY_NAME
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = secrets.token_bytes(KEY_BYTES)
    draft = folder / f".{KEY_NAME}.{secrets.token_hex(8)}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        try:
            # Two processes may start at once: the first name wins, and both use its key.
            os.link(draft, path)
        except FileExistsError:
            found = path.read_bytes()
            if len(found) == KEY_BYTES:
                return found
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return key
