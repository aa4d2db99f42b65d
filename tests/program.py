"""Runs of `a2c-smcp`, forked by `zygote`, because a program that is started anew imports for half a second."""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryFile
from threading import Lock

__all__ = ["PROGRAM", "Running", "run_program", "start_program"]

PROGRAM = Path(sys.executable).with_name("a2c-smcp")
PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""

_REST = 1.0
"""How long the last words of a program that has ended may be on their way."""

_asking = Lock()


class Running:
    """A run that was started: what `asyncio.subprocess.Process` would be."""

    def __init__(self, pid: int, status: _Pipe, stdin: asyncio.StreamWriter | None, *outputs: _Pipe | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout, self.stderr = (output and output.reader for output in outputs)
        self._pipes = [pipe for pipe in (status, *outputs) if pipe]
        self._end = asyncio.create_task(self._read_code(status.reader))

    async def wait(self) -> int:
        """Its exit code."""
        return await asyncio.shield(self._end)

    async def communicate(self, typed: bytes | None = None) -> tuple[bytes, bytes]:
        """What it says until it ends."""
        if self.stdin:
            self.stdin.write(typed or b"")
            self.stdin.close()
        out, err, _ = await asyncio.gather(_all_of(self.stdout), _all_of(self.stderr), self.wait())
        return out, err

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def _read_code(self, status: asyncio.StreamReader) -> int:
        self.returncode = int(await status.readline())
        if self.stdin:
            self.stdin.close()
        for pipe in self._pipes:
            await pipe.close()
        return self.returncode


class _Pipe(asyncio.StreamReaderProtocol):
    """Our end of a pipe that a program writes into."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=1 << 30)
        super().__init__(self.reader)
        self._ended = asyncio.Event()

    @classmethod
    async def of(cls, descriptor: int) -> _Pipe:
        file = os.fdopen(descriptor, "rb", 0)
        _, pipe = await asyncio.get_running_loop().connect_read_pipe(cls, file)
        return pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._line = transport

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._ended.set()

    async def close(self) -> None:
        """Everything in it is read first, unless another process keeps it open."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _REST)
        self._line.close()


async def start_program(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = PIPE,
    session: bool = False,
) -> Running:
    """As `asyncio.create_subprocess_exec` would start it. With `session`, a stream that is a terminal controls it."""
    ours: list[int | None] = []
    theirs: list[int] = []
    for wanted, is_input in ((stdin, True), (stdout, False), (stderr, False)):
        near, far = (None, os.dup(theirs[1])) if wanted == STDOUT else _ends(wanted, is_input=is_input)
        ours.append(near)
        theirs.append(far)
    status, told = os.pipe()
    try:
        _ask(words, cwd, env, [*theirs, told], session=session)
    finally:
        os.close(told)
        for wanted, far in zip((stdin, stdout, stderr), theirs, strict=True):
            if far != wanted:
                os.close(far)
    typing = None if ours[0] is None else await _writer(ours[0])
    news, *outputs = [near and await _Pipe.of(near) for near in (status, *ours[1:])]
    return Running(int(await news.reader.readline()), news, typing, *outputs)


def run_program(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, typed: str = ""
) -> CompletedProcess[str]:
    """As `subprocess.run` would, with everything it said as text."""
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(typed.encode())
        stdin.seek(0)
        status, told = os.pipe()
        try:
            _ask(words, cwd, env, [*(stream.fileno() for stream in (stdin, stdout, stderr)), told])
        finally:
            os.close(told)
        with os.fdopen(status, "rb", 0) as news:
            _, code = (int(_line(news, words)) for _ in range(2))
        for stream in (stdout, stderr):
            stream.seek(0)
        return CompletedProcess(["a2c-smcp", *map(str, words)], code, stdout.read().decode(), stderr.read().decode())


def _line(news: io.FileIO, words: tuple[object, ...]) -> bytes:
    poll = select.poll()
    poll.register(news, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        if not poll.poll(PATIENCE * 1000):
            raise TimeoutExpired(list(map(str, words)), PATIENCE)
        line += news.read(1)
    return line


def _ends(wanted: int, *, is_input: bool) -> tuple[int | None, int]:
    """Ours, if it is a pipe, and that of the program."""
    if wanted == DEVNULL:
        return None, os.open(os.devnull, os.O_RDWR)
    if wanted != PIPE:
        return None, wanted
    reading, writing = os.pipe()
    return (writing, reading) if is_input else (reading, writing)


async def _writer(pipe: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(pipe, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream else b""


def _ask(
    words: tuple[str | Path, ...],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    descriptors: list[int],
    *,
    session: bool = False,
) -> None:
    request = {
        "words": list(map(str, words)),
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
        "session": session,
    }
    with _asking:
        socket.send_fds(_zygote(), [json.dumps(request).encode()], descriptors)


@cache
def _zygote() -> socket.socket:
    """One for each process that runs tests. It ends when its socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs:
        command = [sys.executable, "-P", Path(__file__).with_name("zygote.py"), str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
