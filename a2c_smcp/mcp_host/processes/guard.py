"""Starts processes that end with this one, and holds their pipes. The other side is `guard_program`.

There are three kinds of processes. This one (the host) asks for a process to be started. The guard process, one per
`ProcessGuard`, forks a watcher for each. The watcher starts the process, is its parent, and ends it with all its
descendants: when the host asks for it (`GuardedProcess.end`), when the process exits, and when the host is gone, also
after SIGKILL. So the guard process may be killed without an effect on running processes; the next `launch` finds its
socket closed and starts another.

The host owns one end of three pipes and of a control socket per process. On the control socket a watcher first answers
with the pid or an error, later writes the exit code, and closes the socket when no process is left.

Windows has no `fork` and passes no descriptors. There this process is the watcher, by means of a `job`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.mcp_host.failures import ServerGone, StartFailed
from a2c_smcp.mcp_host.processes.job import JobControl, launch_in_job

_PROGRAM = Path(__file__).with_name("guard_program.py")
_PIPE_BYTES = 1024 * 1024
_READ_AHEAD = 1024 * 1024
_GUARD_SEES = ("LD_LIBRARY_PATH", "_A2C_WITHOUT_LINUX")
_PLAIN, _SANDBOXED = b"+", b"s"

Control = tuple[asyncio.StreamReader, asyncio.StreamWriter | JobControl]
"""Reports of a watcher, and orders to it."""
Intercept = Callable[[bytes], bool]
"""Handles bytes as they arrive; returns False for those to be read as usual."""


class _Interceptable(asyncio.StreamReaderProtocol):
    """Offers incoming bytes to `intercept`, where there is one, before the reader gets them.

    After the first bytes that were not handled, all bytes go to the reader, so that they stay in order.
    """

    intercept: Intercept | None = None

    def data_received(self, data: bytes) -> None:
        if self.intercept is None or not self.intercept(data):
            self.intercept = None
            super().data_received(data)


class _ReadPipe(NamedTuple):
    """Our end of a pipe that a process writes to."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport
    protocol: _Interceptable

    @classmethod
    async def open(cls, pipe: Any) -> _ReadPipe:
        reader = asyncio.StreamReader(limit=_READ_AHEAD)
        connect = asyncio.get_running_loop().connect_read_pipe
        return cls(reader, *await connect(lambda: _Interceptable(reader), pipe))


class GuardedProcess:
    """A running process with its pipes. `exited` is set at its end, `gone` when none of its descendants is left."""

    def __init__(
        self, pid: int, control: Control, stdin: asyncio.StreamWriter, stdout: _ReadPipe, stderr: _ReadPipe
    ) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout.reader, stderr.reader
        self.exit_code: int | None = None
        self.excess = ""
        """Why its watcher has ended it; empty if it has not."""
        self.exited = asyncio.Event()
        self.gone = asyncio.Event()
        self._out, self._err = stdout, stderr
        self._reports, self._orders = control
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def read(self, most: int, intercept: Intercept | None) -> bytes:
        """Return the next bytes of stdout that `intercept` does not handle; it is called as soon as they arrive."""
        self._out.protocol.intercept = intercept
        try:
            return await self.stdout.read(most)
        finally:
            self._out.protocol.intercept = None

    async def pause(self, seconds: float) -> None:
        """Leave stdout unread for a moment."""
        if self._out.transport.is_reading():
            self._out.transport.pause_reading()
            await asyncio.sleep(seconds)
            self._out.transport.resume_reading()

    async def end(self, *, grace: float, term: float, limit: float) -> None:
        """Close stdin, wait `grace`, send SIGTERM, wait `term`, send SIGKILL. Return within `limit` seconds."""
        self.stdin.close()
        if not self._orders.is_closing():
            self._orders.write(json.dumps({"grace": grace, "term": term}).encode() + b"\n")
        try:
            async with asyncio.timeout(limit):
                await self.gone.wait()
        except TimeoutError:
            self._listening.cancel()  # the watcher goes on without us
        finally:
            self._orders.close()
            self._out.transport.close()
            self._err.transport.close()

    async def _listen(self) -> None:
        try:
            while line := await self._reports.readline():
                report = json.loads(line)
                self.excess = report.get("ended", self.excess)
                if "exit" in report:
                    self.exit_code = report["exit"]
                    self.exited.set()
        except ConnectionError:
            pass
        finally:
            self.exited.set()
            self.gone.set()
            self._orders.close()


class ProcessGuard:
    """One for a whole host. The guard process starts with the first `launch`, and again if it was killed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def launch(
        self,
        path: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        sandbox: Mapping[str, Any] | None = None,
    ) -> GuardedProcess:
        """Start the program at `path`. Raises `StartFailed` if it cannot be executed, or not in this sandbox."""
        with ExitStack() as failing:
            if os.name == "nt":
                job, process = launch_in_job(path, argv, env, cwd)
                failing.callback(job.close)
                pipes = await _open_pipes(process.stdin, process.stdout, process.stderr)
                failing.pop_all()
                return GuardedProcess(process.pid, (job.reports, job), *pipes)
            ours, theirs = socket.socketpair()
            failing.callback(ours.close)
            ends = _PipeEnds(failing)
            try:
                self._send([theirs.fileno(), *ends.theirs], _SANDBOXED if sandbox else _PLAIN)
            finally:
                theirs.close()
                ends.close_theirs()
            reports, orders = control = await asyncio.open_unix_connection(sock=ours)
            failing.callback(orders.close)
            spec = {"path": path, "argv": [*argv], "env": {**env}, "cwd": cwd, "host": os.getpid(), "sandbox": sandbox}
            answer = await _ask(reports, orders, spec)
            if problem := answer.get("error"):
                raise StartFailed(problem)
            child = GuardedProcess(answer["pid"], control, *await ends.open_ours())
            failing.pop_all()
        return child

    async def close(self) -> None:
        """Let the guard process end. Watchers of processes that still run end with them."""
        process = self._process
        if self._socket is not None:
            self._socket.close()
        self._socket = self._process = None
        if process is not None:
            # No thread waits: since Python 3.12 none can be started while the interpreter ends.
            for _ in range(200):
                if process.poll() is not None:
                    break
                await asyncio.sleep(0.01)
            _await_exit(process, 0)

    def _send(self, descriptors: list[int], kind: bytes) -> None:
        try:
            socket.send_fds(self._open_socket(), [kind], descriptors)
        except OSError:
            self._forget()
            socket.send_fds(self._open_socket(), [kind], descriptors)

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and script
                    [sys.executable, "-I", "-S", str(_PROGRAM)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: value for name, value in os.environ.items() if name in _GUARD_SEES},
                    cwd="/",
                    start_new_session=True,
                )
        return self._socket

    def _forget(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            _await_exit(self._process, 2)
        self._socket = self._process = None


class _PipeEnds:
    """Both ends of three new pipes."""

    def __init__(self, failing: ExitStack) -> None:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        _widen(read_out)
        self.theirs = [read_in, write_out, write_err]
        self._ours = os.fdopen(write_in, "wb", 0), os.fdopen(read_out, "rb", 0), os.fdopen(read_err, "rb", 0)
        for end in self._ours:
            failing.callback(end.close)

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)

    async def open_ours(self) -> tuple[asyncio.StreamWriter, _ReadPipe, _ReadPipe]:
        return await _open_pipes(*self._ours)


async def _open_pipes(stdin: Any, stdout: Any, stderr: Any) -> tuple[asyncio.StreamWriter, _ReadPipe, _ReadPipe]:
    loop = asyncio.get_running_loop()
    with ExitStack() as failing:
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdin
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        failing.callback(writer.close)
        out = await _ReadPipe.open(stdout)
        failing.callback(out.transport.close)
        err = await _ReadPipe.open(stderr)
        failing.pop_all()
    return writer, out, err


async def _ask(reports: asyncio.StreamReader, orders: asyncio.StreamWriter, spec: dict[str, Any]) -> dict[str, Any]:
    orders.write(json.dumps(spec).encode() + b"\n")
    await orders.drain()
    line = await reports.readline()
    if not line:
        raise ServerGone("its guard process was killed")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _widen(pipe: int) -> None:
    """Let a process write more at a time, where the system allows it."""
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        return


def _await_exit(process: subprocess.Popen[bytes], limit: float) -> None:
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
