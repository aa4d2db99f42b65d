"""The descendants of this process: how many they are, how much memory they use, and how to end them all at once.

Standard library only: the watcher of a process runs it (`guard_program`). A process may leave its session and lose its
parent, and is still found here, because the watcher is the subreaper of all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["FindAll", "TreeLimits", "stop_and_kill"]

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_ROUNDS = 100
_OFTEN, _SELDOM = 0.02, 0.1
_MIB = 1024 * 1024

FindAll = Callable[[int], list[int]]
"""Returns the descendants of a process, by looking at every process of the machine."""


class TreeLimits:
    """How many processes there may be, and how much resident memory they may use in all; `None` for no limit."""

    def __init__(self, spec: dict[str, Any], find_all: FindAll) -> None:
        self._find_all = find_all
        self._processes: int | None = spec["processes"]
        self._memory: int | None = spec["memory"]
        self.interval = _SELDOM
        """Seconds until the next check: fewer when a limit is near."""

    def exceeded(self) -> str:
        """Return which limit is exceeded, as the end of a sentence; empty if none is."""
        pids = _descendants_by_children(os.getpid())
        if pids is None:
            pids = self._find_all(os.getpid())
        most, memory = self._processes, self._memory
        if most is not None and len(pids) > most:
            return f"it had {len(pids)} processes, and {most} are allowed"
        used = sum(map(_resident, pids)) if memory is not None else 0
        if memory is not None and used > memory and (used := _without_sharing(pids)) > memory:
            return f"it used {used // _MIB} MiB of memory, and {memory // _MIB} MiB are allowed"
        near = (most is not None and 2 * len(pids) > most) or (memory is not None and 2 * used > memory)
        self.interval = _OFTEN if near else _SELDOM
        return ""


def stop_and_kill(root: int, find_all: FindAll) -> None:
    """Kill all descendants, even of a process that forks without end: first all are stopped, so that none forks."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        new = [pid for pid in find_all(root) if pid not in stopped]
        if not new:
            break
        _send(new, signal.SIGSTOP)
        stopped.update(new)
    _send(stopped, signal.SIGKILL)


def _descendants_by_children(root: int) -> list[int] | None:
    """Return the descendants by the kernel's lists of children; `None` where it has none. Costs little."""
    found, waiting = list[int](), [root]
    while waiting:
        pid = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names, not paths
        except OSError:
            continue  # it has ended meanwhile
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as children:  # noqa: PTH123
                    waiting += (more := [int(child) for child in children.read().split()])
                    found += more
            except FileNotFoundError:
                if pid == root:
                    return None
            except OSError:
                continue
    return found


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:  # noqa: PTH123
            return int(statm.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _without_sharing(pids: Iterable[int]) -> int:
    """Return the memory of all of them, in which a page that several share counts once. It takes longer to find out."""
    return sum(map(_proportional, pids))


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:  # noqa: PTH123
            return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return _resident(pid)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
