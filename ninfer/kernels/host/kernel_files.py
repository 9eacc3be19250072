"""Compiled host kernels on disk: one file for each kernel and set of argument types.

    digest of what follows, of the compiler and of the sources | signature and object code

Numba's own files hold machine code that nobody checks before it runs. Here a file whose digest does
not fit is as good as none, whatever is wrong with it: shortened, altered, of another kernel, of an
older source or another compiler. The kernel is then compiled anew, and the file replaced. Files are
put in place whole or not at all; where that fails, a full disk say, compiling is all it costs.
Knows no kernel.
"""

import hashlib
import inspect
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from ninfer.whole_file import replace_file

SUFFIX: Final = ".kernel"

_COMPILER: Final = ("numba", "llvmlite")


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
        try:
            content = self.path(key).read_bytes()
        except OSError:
            return None
        digest = self._digest(memoryview(content)[hashlib.sha256().digest_size :])
        if not content.startswith(digest):
            return None
        found, data = pickle.loads(memoryview(content)[len(digest) :])
        return data if found == key else None

    def save(self, key: tuple[Any, ...], data: object) -> None:
        """Keep something for a key, if the folder takes it."""
        content = dumps((key, data))
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path(key), self._digest(content) + content)

    def flush(self) -> None:
        """Forget every key."""
        with suppress(OSError):
            for path in self._folder.glob(f"{self._base}.*{SUFFIX}"):
                path.unlink(missing_ok=True)

    def _digest(self, content: bytes | memoryview) -> bytes:
        digest = hashlib.sha256(f"{_compiler()}\0{self._stamp}\0".encode())
        digest.update(content)
        return digest.digest()


class _Place:
    """Where Numba is to keep a kernel, and what the kernel is made of; Numba names the methods."""

    def __init__(self, source: Path, line: int) -> None:
        self._source: Final = source.resolve()
        self._line: Final = line

    @classmethod
    def from_function(cls, function: Callable[..., object], source: str) -> Self:
        """The place of a function."""
        return cls(Path(source), function.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        """The folder: kernels of two copies of the sources do not replace one another."""
        folder = self._source.parent
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        return str(Path(numba.config.CACHE_DIR) / f"{folder.name}-{name}")

    def ensure_cache_path(self) -> None:
        """Nothing yet: whoever writes a file makes the folder."""

    def get_source_stamp(self) -> str:
        """Digest of the kernel's file and of those beside it, whose parts it may contain."""
        return sources_digest(self._source.parent)

    def get_disambiguator(self) -> str:
        """Line of the kernel."""
        return str(self._line)


class _Results(CompileResultCacheImpl):  # type: ignore[misc] # Numba has no types
    _locator_classes = (_Place,)


class KernelCache(FunctionCache):  # type: ignore[misc] # Numba has no types
    """Numba's cache of one function, over `KernelFiles`."""

    _impl_class = _Results

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        place = _Place.from_function(function, inspect.getfile(function))
        self._cache_file = KernelFiles(
            Path(self.cache_path), self._impl.filename_base, place.get_source_stamp()
        )


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


@cache
def _compiler() -> str:
    return " ".join(f"{name}-{version(name)}" for name in _COMPILER)
