"""Enters a sandbox, leaves an ender in it, and makes its temporary folder. Standard library only: the guard runs it.

The ender is a process in the same sandbox, which ends all others there by one call, `kill(-1)`: in a sandbox whose
signals do not leave it, the kernel takes that for "all processes of the sandbox", and none of them can fork meanwhile.
Killing one by one from outside is slower than a fork bomb. The server itself is one sandbox further in, so that it can
neither signal nor trace the ender. The ender acts on any message, or when the watcher, which holds the other end of its
socket, is gone.

Order matters. The rights of root go first: nothing that follows needs them. Landlock opens the paths that it allows, so
it precedes the filter of system calls, which needs that new privileges are given up. If one fails, so does the start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["enter", "temporary_folder"]

_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITIES = 64
_CAPABILITY_VERSION = 0x20080522
_MOST_DESCRIPTORS = 65536
_THREADS = 32
"""Threads for each process that is allowed."""
_THREADS_OF_OTHERS = 2048
"""How many more threads the user's other programs may start before this one cannot."""
_BEYOND_MEMORY = 2 * 1024**3
"""Bytes that one process may reserve beyond the limit of memory: what is reserved is often never used."""


def enter(sandbox: dict[str, Any], landlock: Any, syscall_filter: Any, orders: socket.socket) -> None:
    """Restrict this process for good. `orders` is the socket of its ender. Raises `OSError`."""
    _drop_rights_of_root()
    _set_limits(sandbox["memory"], sandbox["processes"])
    if sandbox["landlock"]:
        landlock.restrict(sandbox)
        if landlock.abi() >= landlock.SIGNALS_SINCE:
            _leave_ender(orders, os.getppid())
            landlock.separate()
    else:
        landlock.give_up_privileges()
    if sandbox["filter"]:
        ports = sandbox["ports"]
        allowed = {name: sandbox[name] for name in ("unix", "watches", "modes")}
        syscall_filter.install(ports=None if ports is None else bool(ports), **allowed)


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


def _leave_ender(orders: socket.socket, watcher: int) -> None:
    """Make the ender a child of the watcher, not of the server, by a process in between that ends at once."""
    between = os.fork()
    if between == 0:
        try:
            if os.fork() == 0:
                _end_on_order(orders, watcher)
        finally:
            os._exit(0)
    os.waitpid(between, 0)


def _end_on_order(orders: socket.socket, watcher: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, orders.fileno())
    os.closerange(orders.fileno() + 1, _MOST_DESCRIPTORS)
    try:
        os.kill(watcher, 0)
    except PermissionError:
        pass  # as it must be: signals do not leave this sandbox
    else:
        return
    orders.sendall(struct.pack("=i", os.getpid()))
    with contextlib.suppress(OSError):
        orders.recv(1)
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)


def _set_limits(memory: int | None, processes: int | None) -> None:
    """Write no memory to disk in a crash, reserve no more than can ever be used, and fork no more than can be ended.

    The kernel counts all threads of a user for the last one, and not those of root: it only keeps a fork bomb small.
    """
    limits = {resource.RLIMIT_CORE: 0}
    if processes is not None:
        limits[resource.RLIMIT_NPROC] = _running_threads() + _THREADS * processes + _THREADS_OF_OTHERS
    if memory is not None:
        limits[resource.RLIMIT_DATA] = memory + _BEYOND_MEMORY
    for which, most in limits.items():
        _, hard = resource.getrlimit(which)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (lower, lower))


def _running_threads() -> int:
    """How many threads the machine has, and so at least as many as this user."""
    with open("/proc/loadavg", "rb") as averages:  # noqa: PTH123
        return int(averages.read().split()[3].partition(b"/")[2])


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
    """Remove a folder whose owner has ended. Links in it are removed, not followed.

    Folders in it are moved to its top before they are emptied: they may be nested deeper than a path can be long.
    """
    left = [folder]
    while left:
        emptied = left.pop()
        with contextlib.suppress(OSError):
            os.chmod(emptied, stat.S_IRWXU)  # noqa: PTH101
            with os.scandir(emptied) as entries:
                for entry in list(entries):
                    if entry.is_dir(follow_symlinks=False):
                        left.append(_moved_up(entry.path, folder))
                    else:
                        os.unlink(entry.path)  # noqa: PTH108
            if emptied != folder:
                os.rmdir(emptied)  # noqa: PTH106
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def _moved_up(path: str, folder: str) -> str:
    os.chmod(path, stat.S_IRWXU)  # noqa: PTH101  # else it could not be moved
    top = os.path.join(folder, os.urandom(16).hex())  # noqa: PTH118
    os.rename(path, top)  # noqa: PTH104
    return top
