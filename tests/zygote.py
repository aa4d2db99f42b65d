"""A fork server for `a2c-smcp` and for Python scripts: `zygote.py DOOR TESTS AT_ONCE LATER`.

It imports once what they need, and forks a process for each run: the modules `AT_ONCE`, and `LATER` when the first
script is run (names with commas between them, with `.*` all of a package). A run is a real process with its own
streams, environment and end; it only does not pay for the imports again.

Each run is a connection to the listening Unix socket with the descriptor `DOOR`. It begins with a dictionary
(`marshal`), `{"script", "words", "env", "cwd", "session", "leash"}`, together with three descriptors, the streams of
the run; without a script it is a run of `a2c-smcp`. The answer is the process id at once and the exit code at the end,
a line each. A run on a leash is killed if its connection is closed before. The server ends when the process on the
other end of the socket with the descriptor `TESTS` is gone.

It needs nothing but the standard library, for interpreters that have other packages than ours.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import termios
import threading
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

MOST = 1 << 20
PROGRAM = Path(sys.executable).with_name("a2c-smcp")
ACTING = ("__main__", ".demo_servers")
"""Modules that act when they are imported: a program, and one that lets MCP's SDK configure the log."""


def preload(names: str) -> None:
    for name in filter(None, names.split(",")):
        package = name.removesuffix(".*")
        found = import_module(package)
        for module in walk_packages(found.__path__, f"{package}.") if name != package else ():
            if not module.name.endswith(ACTING):
                import_module(module.name)
    if names:
        gc.collect()
        gc.freeze()


class Runs:
    """The processes that were forked, and the connections on which their ends are reported."""

    def __init__(self, needs_of_scripts: str) -> None:
        self._needs_of_scripts = needs_of_scripts
        self._connections: dict[int, socket.socket] = {}
        self._leashes: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._alarm = socket.socketpair()
        self._wake.setblocking(False)
        self._alarm.setblocking(False)
        self._watch(self._wake)
        signal.set_wakeup_fd(self._alarm.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, door: socket.socket, tests: socket.socket) -> dict[str, Any]:
        """Until the tests have ended. Returns in a forked process only: its request, with the streams in place."""
        self._watch(door)
        self._watch(tests)
        while True:
            ready: set[Any] = {key.fileobj for key, _ in self._selector.select()}
            if tests in ready:
                for child in self._leashes.values():
                    os.kill(child, signal.SIGKILL)
                os._exit(0)
            if self._wake in ready:
                self._wake.recv(4096)
                self._report()
            for connection in ready & self._leashes.keys():
                os.kill(self._leashes[connection], signal.SIGKILL)
                self._forget(connection)
            if door in ready and (request := self._begin(door.accept()[0])):
                return request

    def _begin(self, connection: socket.socket) -> dict[str, Any] | None:
        message, streams, _, _ = socket.recv_fds(connection, MOST, 3)
        if not message:
            connection.close()
            return None
        request: dict[str, Any] = marshal.loads(message)
        if request["script"]:
            preload(self._needs_of_scripts)
            self._needs_of_scripts = ""
        child = os.fork()
        if child == 0:
            connection.detach()  # `become` closes its descriptor
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become(request, streams)
            return request
        for stream in streams:
            os.close(stream)
        self._connections[child] = connection
        if request["leash"]:
            self._leashes[connection] = child
            self._watch(connection)
        tell(connection, child)
        return None

    def _report(self) -> None:
        while True:
            try:
                child, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            connection = self._connections.pop(child)
            tell(connection, os.waitstatus_to_exitcode(state))
            if connection in self._leashes:
                self._forget(connection)
            connection.close()

    def _watch(self, source: socket.socket) -> None:
        self._selector.register(source, selectors.EVENT_READ)

    def _forget(self, leashed: socket.socket) -> None:
        del self._leashes[leashed]
        self._selector.unregister(leashed)


def tell(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # the test does not want to know any more
        connection.send(b"%d\n" % number)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Makes this process look as if it had just been started by the test."""
    if request["session"]:
        os.setsid()
        fcntl.ioctl(next(filter(os.isatty, streams)), termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update({"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"} | request["env"])
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding="utf-8")
    sys.stdout = text(1, at_once=at_once, line_buffering=os.isatty(1))
    sys.stderr = text(2, at_once=at_once, line_buffering=True, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    if request["script"]:
        sys.path.insert(0, str(Path(request["script"]).parent))
    sys.argv = [request["script"] or str(PROGRAM), *request["words"]]


def text(number: int, *, at_once: bool, **options: Any) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", write_through=at_once, **options)


def carry_out(script: str) -> None:
    """Runs the program and ends as Python would, but leaves its memory to the system, which is quick."""
    code: object = 0
    try:
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            import_module("a2c_smcp.cli").main()
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    sys.stdout.flush()
    leave_terminal()
    os._exit(code or 0)


def leave_terminal() -> None:
    """When the leader of a session ends, the system throws away what its terminal has not shown yet."""
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # it has none
            terminal = os.open("/dev/tty", os.O_RDWR)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            fcntl.ioctl(terminal, termios.TIOCNOTTY)


if __name__ == "__main__":
    door, tests = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    preload(sys.argv[3])
    # Kept: in a forked process, whose descriptors are closed, it would close those of others when it is collected.
    runs = Runs(sys.argv[4])
    carry_out(runs.serve(door, tests)["script"])
