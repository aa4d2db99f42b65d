"""The descendants of this process: how many they are, how much memory they use, and how to end them all at once.

Standard library only: the watcher of a process runs it (`guard_program`). A process may leave its session and lose its
parent, and is still found here, because the watcher is the subreaper of all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_ROUNDS = 100
_OFTEN, _SELDOM = 0.02, 0.1
_MIB = 1024 * 1024
_THREADS = 32
"""Threads for each process that is allowed."""

FindAll = Callable[[int], list[int]]
"""Returns the descendants of a process, by looking at every process of the machine."""


class TreeLimits:
    """The limits on the number of processes and on their resident memory in all; `None` for no limit.

    `ender` is the socket of the process in the sandbox that ends all others there (`confinement`); `ender_pid` is 0
    where there is none. The other end, `orders`, is for the child.
    """

    def __init__(self, spec: dict[str, Any], find_all: FindAll) -> None:
        self._find_all = find_all
        self._processes: int | None = spec["processes"]
        self._memory: int | None = spec["memory"]
        self.ender, self.orders = socket.socketpair()
        self.ender_pid = 0
        self.interval = _SELDOM
        """Seconds until the next check: fewer when a limit is near."""

    def started(self) -> None:
        """Learn of the ender, after the child has executed its program."""
        self.orders.close()
        with contextlib.suppress(OSError):
            if message := self.ender.recv(4):
                (self.ender_pid,) = struct.unpack("=i", message)

    def exceeded(self) -> str:
        """Return which limit is exceeded, as the end of a sentence; empty if none is.

        It stops counting at the limit: a fork bomb grows faster than its processes can be counted.
        """
        pids, threads = self._count(None if self._processes is None else self._processes + 1)
        self.interval = _SELDOM
        return self._too_many(len(pids), threads) or self._too_large(pids)

    def _too_many(self, processes: int, threads: int) -> str:
        if (most := self._processes) is None:
            return ""
        if processes > most:
            return f"it had more than the {most} processes that are allowed"
        if threads > _THREADS * most:
            return f"it had {threads} threads, and {_THREADS * most} are allowed"
        if 2 * processes > most:
            self.interval = _OFTEN
        return ""

    def _too_large(self, pids: list[int]) -> str:
        if (most := self._memory) is None:
            return ""
        used = sum(map(_resident, pids))
        if used > most and (used := sum(map(_proportional, pids))) > most:  # that takes longer to find out
            return f"it used {used // _MIB} MiB of memory, and {most // _MIB} MiB are allowed"
        if 2 * used > most:
            self.interval = _OFTEN
        return ""

    def is_empty(self) -> bool:
        """True if only the ender is left."""
        return not self._count(1)[0]

    def release(self) -> None:
        """Let the ender end the remaining processes, and itself."""
        self.ender.close()

    def end_all(self) -> None:
        """Kill all descendants, even of a process that forks without end."""
        if self.ender_pid:
            self.release()
        else:
            _stop_and_kill(os.getpid(), self._find_all)

    def _count(self, most: int | None) -> tuple[list[int], int]:
        """Return the descendants, at most this many, and how many threads these have."""
        counted = _by_children(os.getpid(), self.ender_pid, most)
        if counted is not None:
            return counted
        pids = [pid for pid in self._find_all(os.getpid()) if pid != self.ender_pid]
        return pids, len(pids)


def _stop_and_kill(root: int, find_all: FindAll) -> None:
    """Kill all descendants one by one. First all are stopped, so that none forks meanwhile."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        new = [pid for pid in find_all(root) if pid not in stopped]
        if not new:
            break
        _send(new, signal.SIGSTOP)
        stopped.update(new)
    _send(stopped, signal.SIGKILL)


def _by_children(root: int, without: int, most: int | None) -> tuple[list[int], int] | None:
    """Return descendants and how many threads they have, by the kernel's lists of children; `None` without these."""
    found, threads, position = [root], 0, 0
    while position < len(found) and (most is None or len(found) <= most):
        tasks = _names(f"/proc/{found[position]}/task")
        threads += len(tasks) if position else 0
        for task in tasks:
            children = _children(found[position], task)
            if children is None and not position:
                return None
            found += [child for child in children or () if child != without]
        position += 1
    return found[1:], threads


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names, not paths
    except OSError:
        return []  # it has ended meanwhile


def _children(pid: int, task: str) -> list[int] | None:
    try:
        with open(f"/proc/{pid}/task/{task}/children", "rb") as children:  # noqa: PTH123
            return [int(child) for child in children.read().split()]
    except OSError:
        return None


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:  # noqa: PTH123
            return int(statm.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    """Return the memory of a process, with its part of the pages that several processes share."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:  # noqa: PTH123
            return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return _resident(pid)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
