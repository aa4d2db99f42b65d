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
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Iterator
from typing import Any

_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITIES = 64
_CAPABILITY_VERSION = 0x20080522
_MOST_DESCRIPTORS = 65536
_THREADS = 32
"""Threads for each process that is allowed."""
_THREADS_OF_OTHERS = 2048
"""Threads that the user's other programs may start in addition before this one cannot."""
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
        with open("/proc/loadavg", "rb") as averages:  # noqa: PTH123
            running = int(averages.read().split()[3].partition(b"/")[2])  # on the machine: at least those of this user
        limits[resource.RLIMIT_NPROC] = running + _THREADS * processes + _THREADS_OF_OTHERS
    if memory is not None:
        limits[resource.RLIMIT_DATA] = memory + _BEYOND_MEMORY
    for which, most in limits.items():
        _, hard = resource.getrlimit(which)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (lower, lower))


# Folders for temporary files. Another server may be allowed to write there, and put links in place of folders at any
# moment. So each folder is opened first, without following links, and all else is done inside the open folder.

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def temporary_folder(spec: dict[str, Any]) -> Iterator[None]:
    """Make a folder that the process may write to, name it in its environment, and remove it at the end.

    It is locked meanwhile. Those that are not were left by watchers that were killed, and are removed, too.
    """
    sandbox = spec["sandbox"]
    with _opened(os.open(sandbox["temporary"], _FOLDER)) as above:
        name, folder = _new_folder(above)
        with _opened(folder):
            path = os.path.join(sandbox["temporary"], name)  # noqa: PTH118
            sandbox["files"].append(["write", f"/proc/self/fd/{folder}"])  # this folder, whatever has its name by then
            spec["env"] = {**dict.fromkeys(("TMPDIR", "TMP", "TEMP"), path), **spec["env"]}
            try:
                yield
            finally:
                _remove(above, name, folder)
        for left in os.listdir(above):  # noqa: PTH208  # a descriptor
            with contextlib.suppress(OSError), _opened(os.open(left, _FOLDER, dir_fd=above)) as folder:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(above, left, folder)


def _new_folder(above: int) -> tuple[str, int]:
    """Return the name and the descriptor of a locked folder; another watcher may remove it before it is locked."""
    while True:
        name = os.urandom(8).hex()
        os.mkdir(name, stat.S_IRWXU, dir_fd=above)
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(name, _FOLDER, dir_fd=above)
            fcntl.flock(folder, fcntl.LOCK_EX)
            if name in os.listdir(above):
                return name, folder
            os.close(folder)


@contextlib.contextmanager
def _opened(folder: int) -> Iterator[int]:
    try:
        yield folder
    finally:
        os.close(folder)


def _remove(above: int, name: str, folder: int) -> None:
    """Remove an open folder. Links in it are removed, not followed.

    Folders in it are moved to its top before they are emptied: they may be nested deeper than a path can be long.
    """
    left = _emptied(folder, folder)
    while left:
        inner = left.pop()
        with contextlib.suppress(OSError):
            with _opened(os.open(inner, _FOLDER, dir_fd=folder)) as opened:
                left += _emptied(opened, folder)
            os.rmdir(inner, dir_fd=folder)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=above)


def _emptied(folder: int, top: int) -> list[str]:
    """Remove the files of a folder, and move its folders to the top. Return the names of these."""
    moved = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                    continue
                with _opened(os.open(entry.name, _FOLDER | os.O_PATH, dir_fd=folder)) as inner:
                    os.chmod(f"/proc/self/fd/{inner}", stat.S_IRWXU)  # noqa: PTH101  # else it could not be moved
                new = os.urandom(16).hex()
                os.rename(entry.name, new, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(new)
    return moved
