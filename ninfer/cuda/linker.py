"""nvJitLink: PTX or NVVM's bitcode to a cubin, without a device.

The only file that calls it. Knows nothing of what a kernel is. Source: nvJitLink reference manual.
"""

from collections.abc import Sequence
from typing import Any

from cuda.bindings import nvjitlink

from ninfer.errors import InvariantError


def linker_version() -> str:
    """Version of nvJitLink."""
    return ".".join(str(part) for part in nvjitlink.version())


def link_ptx(ptx: bytes, name: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Translate PTX to a cubin; needs no device.

    Args:
        ptx: the text.
        name: for messages.
        options: of nvJitLink, ``-arch=sm_90`` among them.

    Returns:
        The cubin and the information log.

    Raises:
        InvariantError: the text is refused; the message is the linker's.
    """
    return _link(nvjitlink.InputType.PTX, ptx, name, options)


def link_bitcode(code: bytes, name: str, options: Sequence[str]) -> tuple[bytes, str]:
    """The same with NVVM's bitcode, as one whole program."""
    return _link(nvjitlink.InputType.LTOIR, code, name, (*options, "-lto"))


def _link(kind: Any, code: bytes, name: str, options: Sequence[str]) -> tuple[bytes, str]:
    handle = nvjitlink.create(len(options), list(options))
    try:
        nvjitlink.add_data(handle, kind, code, len(code), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        if log:
            nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        message = bytearray(nvjitlink.get_error_log_size(handle))
        if message:
            nvjitlink.get_error_log(handle, message)
        text = bytes(message).rstrip(b"\0").decode(errors="replace")
        raise InvariantError(f"kernel {name!r} does not link: {text or error}") from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), bytes(log).rstrip(b"\0").decode(errors="replace")
