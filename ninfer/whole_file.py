"""Files that are there whole or not at all, for caches that several processes share.

Knows nothing of what is in them.
"""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place of whatever has its name, for everybody to read as the umask says.

    Nobody but its owner may write it, whatever the umask says.

    Raises:
        OSError: it cannot be written; what was there is there still, and nothing beside it.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
