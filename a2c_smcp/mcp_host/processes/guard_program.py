"""The guard process and its watchers (see `guard`). Standard library only.

It runs as a script whose standard input is a unix socket to the host. Each message there, a byte, carries a control
socket and the stdin, stdout and stderr for one process; the guard forks a watcher for it. The watcher makes itself the
subreaper of all descendants of the process, so that it still finds those that change their session or lose their
parent. It ends them when the host asks for it, when the process exits, and when the host is gone: then the control
socket closes, or, where a fork of the host holds that open, the pidfd of the host reports its end.

A process with a sandbox enters it in its own child, before `exec` (`confinement`). Its watcher stays outside, makes a
temporary folder for it, counts its descendants and their memory (`process_tree`), and ends them above a limit, through
a process inside, the ender. That one is a child of the watcher, and not one of the descendants that are signalled here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

_ON_LINUX = sys.platform == "linux" and "_A2C_WITHOUT_LINUX" not in os.environ
"""True if calls of Linux alone may be used. Tests switch them off, to see what other systems have."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HOST_GONE = (0.3, 0.5)  # seconds to wait before SIGTERM, and before SIGKILL
_LEADER_GONE = (0.0, 0.3)
_KILL_AGAIN = 0.05
_NOTHING_DUE = 3600.0
_SANDBOXED = b"s"


def serve(host: socket.socket) -> None:
    """Fork a watcher for each message, until the host closes the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(host, 1, 4)
        if not message:
            return
        if message == _SANDBOXED:
            with contextlib.suppress(ImportError):  # the watcher reports it
                for name in ("confinement", "landlock", "process_tree", "syscall_filter"):
                    _beside(name)  # once, for all watchers that are forked from now on
        if os.fork() == 0:
            host.close()
            os.open(os.devnull, os.O_RDONLY)  # in its place: a pipe of ours with the number of stdin would be lost
            _watch_and_exit(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch_and_exit(descriptors: list[int]) -> NoReturn:
    try:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        control, *stdio = descriptors
        with socket.socket(fileno=control) as connection:
            watch(connection, stdio)
    finally:
        os._exit(0)


def watch(control: socket.socket, stdio: list[int]) -> None:
    """Start one process, and stay until none of its descendants is left."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = _read_line(control)
    if not order:
        return
    spec = json.loads(order)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        with _sandbox(spec) as limits:
            leader, problem = _launch(spec, stdio, limits)
            for descriptor in stdio:
                os.close(descriptor)
            _report(control, {"error": problem} if problem else {"pid": leader})
            if not problem:
                _Watcher(control, leader, spec["host"], limits).run()
    except (OSError, ImportError) as error:
        _report(control, {"error": str(error)})


@contextlib.contextmanager
def _sandbox(spec: dict[str, Any]) -> Iterator[Any]:
    """Yield the limits of a process in a sandbox, for which its temporary folder is there."""
    if not spec.get("sandbox"):
        yield None
        return
    with _beside("confinement").temporary_folder(spec):
        yield _beside("process_tree").TreeLimits(spec["sandbox"], _descendants)


def _beside(name: str) -> Any:
    """Import a module of this folder. This script runs isolated, without the package."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


class _Watcher:
    """Waits for the process, the host and the clock, and escalates from waiting over SIGTERM to SIGKILL."""

    def __init__(self, control: socket.socket, leader: int, host: int, limits: Any = None) -> None:
        self._control = control
        self._limits = limits
        self._next_check = time.monotonic() if limits else float("inf")
        self._leader = leader
        self._leader_lives = True
        self._due = float("inf")
        self._next_signals: Iterator[tuple[int, float]] = iter(())
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._wakeups = _child_signals()
        self._poll.register(self._wakeups, select.POLLIN)
        self._host = _pidfd(host)
        if self._host is not None:
            self._poll.register(self._host, select.POLLIN)

    def run(self) -> None:
        while self._reap():
            left = max(0.0, min(min(self._due, self._next_check) - time.monotonic(), _NOTHING_DUE))
            for descriptor, _ in self._poll.poll(left * 1000):
                self._handle(descriptor)
            if time.monotonic() >= self._due:
                self._escalate()
            if time.monotonic() >= self._next_check:
                if excess := self._limits.exceeded():
                    _report(self._control, {"ended": excess})
                    self._limits.end_all()
                    self._due, self._next_signals = time.monotonic() + _KILL_AGAIN, _escalation(0.0)
                    next(self._next_signals)
                    self._next_check = float("inf")
                else:
                    self._next_check = time.monotonic() + self._limits.interval
        if not _ON_LINUX:
            with contextlib.suppress(OSError):
                os.killpg(self._leader, signal.SIGKILL)

    def _handle(self, descriptor: int) -> None:
        if descriptor == self._wakeups.fileno():
            self._wakeups.recv(4096)
            return
        order = _read_line(self._control) if descriptor == self._control.fileno() else b""
        if not order:
            self._poll.unregister(descriptor)
            self._begin(*_HOST_GONE)
        else:
            pauses = json.loads(order)
            self._begin(pauses["grace"], pauses["term"])

    def _begin(self, grace: float, term: float) -> None:
        due = time.monotonic() + grace
        if due < self._due:
            self._due = due
            self._next_signals = _escalation(term)

    def _escalate(self) -> None:
        number, pause = next(self._next_signals)
        self._due = time.monotonic() + pause
        if self._limits and number == signal.SIGKILL:
            self._limits.release()
        for pid in _descendants(os.getpid()) if _ON_LINUX else [-self._leader]:
            with contextlib.suppress(OSError):
                if not (self._limits and pid == self._limits.ender_pid):
                    os.kill(pid, number)

    def _reap(self) -> bool:
        """Wait for ended descendants. Return False if none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                if self._limits and not self._leader_lives and self._limits.is_empty():
                    self._limits.release()
                return True
            if self._limits and pid == self._limits.ender_pid and self._leader_lives:
                self._begin(*_LEADER_GONE)  # without an ender there is no way to end it
            if pid == self._leader and self._leader_lives:
                self._leader_lives = False
                _report(self._control, {"exit": os.waitstatus_to_exitcode(status)})
                self._begin(*_LEADER_GONE)


def _escalation(term: float) -> Iterator[tuple[int, float]]:
    yield signal.SIGTERM, term
    while True:
        yield signal.SIGKILL, _KILL_AGAIN


def _launch(spec: dict[str, Any], stdio: list[int], limits: Any) -> tuple[int, str]:
    """Return the process id, and the problem; empty if there is none."""
    failed, failing = os.pipe()
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != watcher:
                os._exit(1)
            _execute(spec, stdio, limits)
        except (OSError, ValueError) as error:
            os.write(failing, str(error).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    os.close(failing)
    with open(failed, "rb") as outcome:  # noqa: PTH123  # a descriptor, not a path
        problem = outcome.read().decode("utf-8", "replace")
    if limits:
        limits.started()
    return pid, problem


def _execute(spec: dict[str, Any], stdio: list[int], limits: Any) -> NoReturn:
    for target, descriptor in enumerate(stdio):
        os.dup2(descriptor, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(spec["cwd"])
    if sandbox := spec.get("sandbox"):
        limits.ender.close()
        _beside("confinement").enter(sandbox, _beside("landlock"), _beside("syscall_filter"), limits.orders)
    os.execve(spec["path"], spec["argv"], spec["env"])  # noqa: S606  # no shell is wanted


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # names, not paths
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    descendants, generation = list[int](), [root]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, ())]
        descendants += generation
    return descendants


def _child_signals() -> socket.socket:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(theirs.detach())
    return ours


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that reports the end of a process; `None` where the system has none."""
    try:
        return os.pidfd_open(pid) if _ON_LINUX else None
    except OSError:
        return None


def _prctl(option: int, value: int) -> None:
    if _ON_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _read_line(control: socket.socket) -> bytes:
    line = bytearray()
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n"):
            part = control.recv(65536)
            if not part:
                return b""
            line += part
    return bytes(line)


def _report(control: socket.socket, report: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    with socket.socket(fileno=0) as connection:
        serve(connection)
