"""Enters a sandbox, and makes its temporary folder. Standard library only: the guard process runs it.

Order matters. The rights of root go first, since they are needed for nothing that follows. Landlock opens the paths that
it allows, so it precedes the filter of system calls, which needs that new privileges are given up. Each step that is
asked for and fails, fails the start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import stat
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["enter", "temporary_folder"]

_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITIES = 64
_CAPABILITY_VERSION = 0x20080522
_BEYOND_MEMORY = 2 * 1024**3
"""Bytes that one process may reserve beyond the limit of memory: what is reserved is often never used."""


def enter(sandbox: dict[str, Any], landlock: Any, syscall_filter: Any) -> None:
    """Restrict this process for good. Raises `OSError`."""
    _drop_rights_of_root()
    _set_limits(sandbox["memory"])
    if sandbox["landlock"]:
        landlock.restrict(sandbox)
    else:
        landlock.give_up_privileges()
    if sandbox["filter"]:
        ports = sandbox["ports"]
        syscall_filter.install(ports=None if ports is None else bool(ports), unix=sandbox["unix"])


def _drop_rights_of_root() -> None:
    """Have no capabilities after the next `exec`. Only root has any, and some of them pass Landlock by."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 and ctypes.get_errno() != errno.EPERM:
            break  # the kernel knows no more of them
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, held = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    if libc.capget(header, held) == 0:
        effective, permitted, _, more_effective, more_permitted, _ = struct.unpack("=6I", held.raw)
        libc.capset(header, struct.pack("=6I", effective, permitted, 0, more_effective, more_permitted, 0))


def _set_limits(memory: int | None) -> None:
    """Write no memory to disk in a crash, and reserve no more than can ever be used, in one request."""
    limits = {resource.RLIMIT_CORE: 0}
    if memory is not None:
        limits[resource.RLIMIT_DATA] = memory + _BEYOND_MEMORY
    for which, most in limits.items():
        _, hard = resource.getrlimit(which)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (lower, lower))


@contextlib.contextmanager
def temporary_folder(spec: dict[str, Any]) -> Iterator[None]:
    """Make a folder that the process may write to, name it in its environment, and remove it at the end."""
    sandbox = spec["sandbox"]
    folder = os.path.join(sandbox["temporary"], f"a2c-sandbox-{os.urandom(8).hex()}")  # noqa: PTH118
    os.mkdir(folder, stat.S_IRWXU)  # noqa: PTH102
    sandbox["files"].append(["write", folder])
    spec["env"] = {**dict.fromkeys(("TMPDIR", "TMP", "TEMP"), folder), **spec["env"]}
    try:
        yield
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a folder whose owner has ended. Links in it are removed, not followed."""
    with contextlib.suppress(OSError):
        os.chmod(folder, stat.S_IRWXU)  # noqa: PTH101
        with os.scandir(folder) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.path)
                else:
                    os.unlink(entry.path)  # noqa: PTH108
        os.rmdir(folder)  # noqa: PTH106
