"""Runs of `a2c-smcp` and of scripts, forked by `zygote`: what is started anew imports for up to a second."""

from __future__ import annotations

import asyncio
import atexit
import marshal
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryFile, mkdtemp
from typing import Self

PROGRAM = Path(sys.executable).with_name("a2c-smcp")
PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""

_IMPORTED_LATE = (
    *("a2c_smcp.*", "anyio._backends._asyncio", "concurrent.futures.thread", "encodings.idna", "encodings.utf_8_sig"),
    *("keyring.backends.fail", "keyring.backends.null", "rich.live", "typer.rich_utils", "uvloop"),
)
"""What most programs import when they run."""

_REST = 1.0
"""How long the last words of a program that has ended may be on their way."""


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
    script: Path | None = None,
) -> Running:
    """As `asyncio.create_subprocess_exec` would start it. With `session`, a stream that is a terminal controls it.

    With a script, that is run instead of `a2c-smcp`.
    """
    ours: list[int | None] = []
    theirs: list[int] = []
    for wanted, is_input in ((stdin, True), (stdout, False), (stderr, False)):
        near, far = (None, os.dup(theirs[1])) if wanted == STDOUT else _ends(wanted, is_input=is_input)
        ours.append(near)
        theirs.append(far)
    try:
        status = _begin(words, theirs, script=script, cwd=cwd, env=env, session=session).detach()
    finally:
        for wanted, far in zip((stdin, stdout, stderr), theirs, strict=True):
            if far != wanted:
                os.close(far)
    typing = None if ours[0] is None else await _writer(ours[0])
    news, *outputs = [near and await _Pipe.of(near) for near in (status, *ours[1:])]
    return Running(int(await news.reader.readline()), news, typing, *outputs)


def run_program(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    typed: str = "",
    script: Path | None = None,
) -> CompletedProcess[str]:
    """As `subprocess.run` would, with everything it said as text. With a script, that is run instead of `a2c-smcp`."""
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(typed.encode())
        stdin.seek(0)
        streams = [stream.fileno() for stream in (stdin, stdout, stderr)]
        with _begin(words, streams, script=script, cwd=cwd, env=env) as status:
            _, code = (_number(status, words) for _ in range(2))
        for stream in (stdout, stderr):
            stream.seek(0)
        return CompletedProcess(["a2c-smcp", *map(str, words)], code, stdout.read().decode(), stderr.read().decode())


class ForkedScript:
    """A Python script that was started with nothing to read: what `subprocess.Popen` would be."""

    def __init__(self, script: Path, *words: object) -> None:
        self._words = (script, *words)
        with Path(os.devnull).open("r+b") as null:
            self._status = _begin(words, [null.fileno(), 1, 2], script=script, is_leashed=True)
        self.pid = _number(self._status, self._words)
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> int:
        if self.returncode is None:
            with self._status:
                self.returncode = _number(self._status, self._words)
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, and its code was not read yet
                os.kill(self.pid, number)


def forked(script: Path, *words: object, python: Path | None = None, needs: str = "") -> list[str]:
    """A command that does what `python SCRIPT WORD…` would. Another Python needs to know what to import once."""
    launcher, zygote = Path(__file__).with_name("launcher.py"), _zygote(python, needs) if python else _zygote()
    return [sys.executable, "-I", "-S", *map(str, (launcher, zygote / "socket", script, *words))]


@cache
def folder_of_program() -> Path:
    """A folder for the PATH, in which `a2c-smcp` is forked."""
    folder = _zygote() / f"bin-{os.getpid()}"
    folder.mkdir()
    *launch, _ = forked(Path())
    (folder / "a2c-smcp").write_text(f'#!/bin/sh\nexec {shlex.join([*launch, ""])} "$@"\n')
    (folder / "a2c-smcp").chmod(0o700)
    return folder


def start_fork_server() -> None:
    """Start it already, so that the processes which are forked from this one share it."""
    _zygote()


def _number(status: socket.socket, words: tuple[object, ...]) -> int:
    try:
        return int(status.recv(32))
    except TimeoutError:
        raise TimeoutExpired(list(map(str, words)), PATIENCE) from None


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


def _begin(
    words: Sequence[object],
    streams: Sequence[int],
    *,
    script: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    session: bool = False,
    is_leashed: bool = False,
) -> socket.socket:
    """The connection on which its process id and its exit code arrive."""
    sys.audit("tests.program", *words)
    request = {
        "script": str(script or ""),
        "words": list(map(str, words)),
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
        "session": session,
        "leash": is_leashed,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    connection.connect(str(_zygote() / "socket"))
    socket.send_fds(connection, [marshal.dumps(request)], streams)
    return connection


@cache
def _zygote(python: Path = Path(sys.executable), later: str = "mcp.server.mcpserver,uvicorn") -> Path:
    """The folder of its socket. It ends with the process that runs tests, and with those that were forked from it."""
    owner = os.getpid()
    folder = Path(mkdtemp(prefix="a2c-"))
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(str(folder / "socket"))
    door.listen(64)
    ours, theirs = socket.socketpair()
    with door, theirs:
        descriptors = [door.fileno(), theirs.fileno()]
        at_once = ",".join(_IMPORTED_LATE) if python == Path(sys.executable) else ""
        command = [python, "-P", Path(__file__).with_name("zygote.py"), *map(str, descriptors), at_once, later]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)

    def end() -> None:
        if os.getpid() != owner:
            return
        ours.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return folder
