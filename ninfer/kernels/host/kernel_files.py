"""Compiled host kernels on disk: one file for each kernel and set of argument types.

    digest of what follows, of the compiler, the sources and the kernel | signature and object code

Numba's own files hold machine code that nobody checks before it runs. Here a file whose digest does
not fit is as good as none, whatever is wrong with it: shortened, altered, of another kernel, of an
older source or another compiler. The kernel is then compiled anew, and the file replaced. Files are
put in place whole or not at all; where that fails, a full disk say, compiling is all it costs.

The digest is against damage and not against malice: whoever may write a file can make one that
fits, and it is code that runs. So a file counts only where nobody but its owner may write it, and
its owner is this user or root. Knows no kernel.
"""

import hashlib
import inspect
import os
import pickle
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from ninfer.whole_file import replace_file

SUFFIX: Final = ".kernel"

_COMPILER: Final = f"numba-{numba.__version__} llvmlite-{llvmlite.__version__}"

_UNREADABLE: Final = (
    *(AttributeError, EOFError, ImportError, IndexError, KeyError),
    *(MemoryError, pickle.UnpicklingError, TypeError, ValueError),
)
"""What unpickling may raise."""

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class KernelFiles:
    """Files of one kernel.

    Args:
        folder: where they lie; created when the first is written.
        base: what their names begin with.
        stamp: what the kernel is made of; files of another stamp are not its.
    """

    def __init__(self, folder: Path, base: str, stamp: str) -> None:
        self._folder: Final = folder
        self._base: Final = base
        self._stamp: Final = stamp

    def path(self, key: tuple[Any, ...]) -> Path:
        """File of a key: signature, processor and digests, as Numba makes it."""
        signature, processor = key[:2]
        name = hashlib.sha256(f"{signature} {processor}".encode()).hexdigest()[:16]
        return self._folder / f"{self._base}.{name}{SUFFIX}"

    def load(self, key: tuple[Any, ...]) -> Any:
        """What was saved for a key; None when there is nothing, or nothing that proves to be it."""
        content = self._content(self.path(key))
        if content is None:
            return None
        try:
            found, data = pickle.loads(content)
        except _UNREADABLE:  # of a library that names things otherwise now
            return None
        return data if found == key else None

    def holds(self, key: tuple[Any, ...]) -> bool:
        """Whether there is a whole file for a key."""
        return self._content(self.path(key)) is not None

    def holds_any(self) -> bool:
        """Whether there is a whole file for some key."""
        paths = self._folder.glob(f"{self._base}.*{SUFFIX}")
        return any(self._content(path) is not None for path in paths)

    def save(self, key: tuple[Any, ...], data: object) -> None:
        """Keep something for a key, if the folder takes it."""
        content = dumps((key, data))
        with suppress(OSError):
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(self.path(key), self._digest(content) + content)

    def flush(self) -> None:
        """Forget every key."""
        with suppress(OSError):
            for path in self._folder.glob(f"{self._base}.*{SUFFIX}"):
                path.unlink(missing_ok=True)

    def _content(self, path: Path) -> memoryview | None:
        """What a file holds behind its digest, if that fits and nobody else may write it."""
        try:
            with path.open("rb") as file:
                told = os.fstat(file.fileno())
                if told.st_uid not in (os.geteuid(), 0) or told.st_mode & _OTHERS_WRITE:
                    return None
                whole = memoryview(file.read())
        except OSError:
            return None
        size = hashlib.sha256().digest_size
        return whole[size:] if whole[:size] == self._digest(whole[size:]) else None

    def _digest(self, content: bytes | memoryview) -> bytes:
        digest = hashlib.sha256(f"{_COMPILER}\0{self._stamp}\0{self._base}\0".encode())
        digest.update(content)
        return digest.digest()


class _Place:
    """Where Numba is to keep a kernel, and what the kernel is made of; Numba names the methods."""

    def __init__(self, source: Path, line: int) -> None:
        self._source: Final = source.resolve()
        self._line: Final = line

    def get_cache_path(self) -> str:
        """The folder: kernels of two copies of the sources do not replace one another."""
        folder = self._source.parent
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        return str(Path(numba.config.CACHE_DIR) / f"{folder.name}-{name}")

    def ensure_cache_path(self) -> None:
        """Nothing yet: whoever writes a file makes the folder."""

    def get_source_stamp(self) -> str:
        """Digest of the kernel's file and of those beside it, whose parts it may contain.

        Raises:
            OSError: they are not there to be read, in an archive for example.
        """
        if not self._source.is_file():
            raise FileNotFoundError(self._source)
        return sources_digest(self._source.parent)

    def get_disambiguator(self) -> str:
        """Line of the kernel."""
        return str(self._line)


class _Results(CompileResultCacheImpl):  # type: ignore[misc] # Numba has no types
    """What Numba asks where its results lie; no option of Numba has a part in it."""

    def __init__(self, function: Callable[..., object]) -> None:
        source = inspect.getfile(function)
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Place(Path(source), self._lineno)
        name = f"{Path(source).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, sys.abiflags)


class KernelCache(FunctionCache):  # type: ignore[misc] # Numba has no types
    """Numba's cache of one function, over `KernelFiles`."""

    _impl_class = _Results

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._cache_file = KernelFiles(
            Path(self.cache_path),
            self._impl.filename_base,
            self._impl.locator.get_source_stamp(),
        )

    def holds(self, types: tuple[Any, ...] | None, target: Any) -> bool:
        """Whether the function is kept for these argument types, or for some without any.

        Args:
            types: Numba types.
            target: what the function is compiled for.
        """
        files = self._cache_file
        if types is None:
            return files.holds_any()
        return files.holds(self._index_key(types, target.codegen()))


@cache
def sources_digest(folder: Path) -> str:
    """Digest of all sources of a folder.

    Raises:
        OSError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\0".encode() + content)
    return digest.hexdigest()
