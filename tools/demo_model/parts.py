"""One folder as a few files of limited size, and back.

    python -m tools.demo_model.parts split FOLDER OUT
    python -m tools.demo_model.parts join PART... FOLDER

A checkpoint sometimes has to pass through a door that takes only small files.
"""

import io
import sys
import tarfile
from pathlib import Path
from typing import Final

PART_BYTES: Final = 15 << 20
STEM: Final = "checkpoint.tar"


def split(folder: Path, out: Path) -> list[Path]:
    """Write the folder's files as parts of at most `PART_BYTES` and return their paths."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, str(path.relative_to(folder)), recursive=False)
    content = stream.getvalue()
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, start in enumerate(range(0, len(content), PART_BYTES)):
        path = out / f"{STEM}.{index:02d}"
        path.write_bytes(content[start : start + PART_BYTES])
        paths.append(path)
    return paths


def join(parts: list[Path], folder: Path) -> None:
    """Unpack the files that `split` wrote."""
    content = b"".join(path.read_bytes() for path in sorted(parts, key=lambda path: path.name))
    with tarfile.open(fileobj=io.BytesIO(content), mode="r") as archive:
        for member in archive:
            stored = archive.extractfile(member)
            place = (folder / member.name).resolve()
            if stored is None or not place.is_relative_to(folder.resolve()):
                raise ValueError(f"{member.name} is not a file that split writes")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(stored.read())


def main(arguments: list[str]) -> int:
    """Run the command."""
    match arguments:
        case ["split", folder, out]:
            split(Path(folder), Path(out))
        case ["join", *parts, folder] if parts:
            join([Path(part) for part in parts], Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
