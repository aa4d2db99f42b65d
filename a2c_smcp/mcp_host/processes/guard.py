"""The Computer's side of the guard process: asks for servers, and holds their pipes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.loops import in_thread
from a2c_smcp.mcp_host.failures import ServerGone, StartFailed

__all__ = ["GuardedProcess", "ProcessGuard"]

_KEEPER = Path(__file__).with_name("guard_program.py")
_PIPE_BYTES = 1024 * 1024
_READ_AHEAD = 1024 * 1024


Control = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Tap(asyncio.StreamReaderProtocol):
    """Offers what comes to `take`, where there is one, before the reader gets it.

    From the first piece on that is not taken, all goes to the reader, in order.
    """

    take: Callable[[bytes], bool] | None = None

    def data_received(self, data: bytes) -> None:
        if self.take is None or not self.take(data):
            self.take = None
            super().data_received(data)


@dataclass(frozen=True, slots=True)
class Pipes:
    """Our ends of a server's pipes."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    _stdout_transport: asyncio.ReadTransport
    _tap: _Tap
    stderr: asyncio.StreamReader
    _stderr_transport: asyncio.ReadTransport
    _: _Tap

    async def read(self, most: int, take: Callable[[bytes], bool] | None) -> bytes:
        self._tap.take = take
        try:
            return await self.stdout.read(most)
        finally:
            self._tap.take = None

    async def rest(self, seconds: float) -> None:
        if self._stdout_transport.is_reading():
            self._stdout_transport.pause_reading()
            await asyncio.sleep(seconds)
            self._stdout_transport.resume_reading()

    def close(self) -> None:
        self.stdin.close()
        self._stdout_transport.close()
        self._stderr_transport.close()


class GuardedProcess:
    """A running server: its pipes, and the keeper that tells of its end. `gone` is set when no process is left."""

    def __init__(self, pid: int, pipes: Pipes, control: Control) -> None:
        self.pid = pid
        self.stdin = pipes.stdin
        self.stdout = pipes.stdout
        self.stderr = pipes.stderr
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self.gone = asyncio.Event()
        self._pipes = pipes
        self._news, self._orders = control
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def read(self, most: int, take: Callable[[bytes], bool] | None) -> bytes:
        """The next of stdout that `take` does not take: it is asked at once, not in a turn of the loop."""
        return await self._pipes.read(most, take)

    async def rest(self, seconds: float) -> None:
        """Leaves stdout unread for a moment."""
        await self._pipes.rest(seconds)

    async def end(self, *, grace: float, term: float, limit: float) -> None:
        """Closes stdin, waits `grace`, sends SIGTERM, waits `term`, sends SIGKILL; at most `limit` seconds in all."""
        self.stdin.close()
        if not self._orders.is_closing():
            self._orders.write(json.dumps({"grace": grace, "term": term}).encode() + b"\n")
        try:
            async with asyncio.timeout(limit):
                await self.gone.wait()
        except TimeoutError:
            self._listener.cancel()  # the keeper stays behind, and goes on killing
        finally:
            self._orders.close()
            self._pipes.close()

    async def _listen(self) -> None:
        try:
            while line := await self._news.readline():
                self.exit_code = json.loads(line)["exit"]
                self.exited.set()
        except ConnectionError:
            pass
        finally:
            self.exited.set()
            self.gone.set()
            self._orders.close()


class ProcessGuard:
    """One for a whole Computer. The process behind it starts with the first server, and again if it was killed."""

    def __init__(self) -> None:
        self._door: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def launch(self, path: str, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> GuardedProcess:
        """Starts `path`. Raises `StartFailed` if it cannot be executed."""
        if not hasattr(socket, "send_fds"):
            raise StartFailed("servers over stdio are not run on Windows itself, but on WSL; those over HTTP are")
        with ExitStack() as failing:
            ours, theirs = socket.socketpair()
            failing.callback(ours.close)
            ends = _Ends(failing)
            try:
                self._hand_over([theirs.fileno(), *ends.theirs])
            finally:
                theirs.close()
                ends.close_theirs()
            control = await asyncio.open_unix_connection(sock=ours)
            failing.callback(control[1].close)
            spec = {"path": path, "argv": [*argv], "env": {**env}, "cwd": cwd, "computer": os.getpid()}
            answer = await _ask(control, spec)
            if problem := answer.get("error"):
                raise StartFailed(problem)
            child = GuardedProcess(answer["pid"], await ends.open_ours(), control)
            failing.pop_all()
        return child

    async def close(self) -> None:
        """Lets the guard process end. Keepers of servers that still run end with their servers."""
        process = self._process
        if self._door is not None:
            self._door.close()
        self._door = self._process = None
        if process is not None:
            await in_thread(_await_exit, process)  # also when the interpreter is about to end

    def _hand_over(self, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._open_door(), [b"+"], descriptors)
        except OSError:
            self._forget()
            socket.send_fds(self._open_door(), [b"+"], descriptors)

    def _open_door(self) -> socket.socket:
        if self._door is None:
            self._door, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and script
                    [sys.executable, "-I", "-S", str(_KEEPER)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
                    cwd="/",
                    start_new_session=True,
                )
        return self._door

    def _forget(self) -> None:
        if self._door is not None and self._process is not None:
            self._door.close()
            _await_exit(self._process)
        self._door = self._process = None


class _Ends:
    """Both ends of a server's three pipes, before they belong to anybody."""

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

    async def open_ours(self) -> Pipes:
        stdin, stdout, stderr = self._ours
        with ExitStack() as failing:
            writer = await _writer(stdin)
            failing.callback(writer.close)
            out = await _reader(stdout)
            failing.callback(out[1].close)
            err = await _reader(stderr)
            failing.pop_all()
        return Pipes(writer, *out, *err)


async def _ask(control: Control, spec: dict[str, Any]) -> dict[str, Any]:
    news, orders = control
    orders.write(json.dumps(spec).encode() + b"\n")
    await orders.drain()
    line = await news.readline()
    if not line:
        raise ServerGone("its guard was killed")
    answer: dict[str, Any] = json.loads(line)
    return answer


async def _writer(pipe: Any) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _reader(pipe: Any) -> tuple[asyncio.StreamReader, asyncio.ReadTransport, _Tap]:
    reader = asyncio.StreamReader(limit=_READ_AHEAD)
    connect = asyncio.get_running_loop().connect_read_pipe
    transport, tap = await connect(lambda: _Tap(reader), pipe)
    return reader, transport, tap


def _widen(pipe: int) -> None:
    """A larger pipe lets a server write a large result in fewer turns, where the system allows it."""
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        return


def _await_exit(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
