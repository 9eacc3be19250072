"""Files that are there whole or not at all, for caches that several processes share.

Knows nothing of what is in them.
"""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place of whatever has its name, for everybody whom the umask lets read it.

    Raises:
        OSError: it cannot be written; what was there is there still, and nothing beside it.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
