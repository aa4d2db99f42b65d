"""The transport to an MCP server that is a child process: messages are lines on its pipes."""

from __future__ import annotations

import codecs
import errno
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from a2c_smcp.files import data_folder
from a2c_smcp.mcp_host.config.servers import SandboxSettings, StdioParameters
from a2c_smcp.mcp_host.failures import CommandNotFound, NotSandboxed, ServerFailure, ServerGone, StartFailed, if_short
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command, why_not_found
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, Intercept, ProcessGuard
from a2c_smcp.mcp_host.processes.plan import RefusedPaths, planned
from a2c_smcp.mcp_host.transports.direct_requests import DirectRequests
from a2c_smcp.mcp_host.transports.messages import LineDecoder, SessionMessage, read_line, to_line, to_message
from a2c_smcp.mcp_host.transports.transport import OnFault

_REFUSED = f"[Errno {errno.EACCES}]"
_STDERR_KEPT = 64 * 1024
_CHUNK = 256 * 1024
_EXIT_REPORT = 0.25  # seconds between the end of stdout and the report of the exit code
_REPETITION_PAUSE = 0.01  # a server that repeats lines is read in larger portions
_WRITTEN_TOGETHER = 32  # messages to a server in one write
_CRASHES = 1 << 31  # on Windows, such a code is the number of an exception, which is known in hexadecimal notation
_EXIT_WAIT, _TERM_WAIT, _END_LIMIT = 1.0, 1.5, 4.0  # after stdin is closed, after SIGTERM, in all
_Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
_Outgoing = MemoryObjectSendStream[SessionMessage]
_SESSION_ENDED = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class StdioTransport:
    """One child process. After its end, `failure` and `diagnostics` say how it ended."""

    quiet_limit: float | None = None
    told: Sequence[str] = ()

    def __init__(
        self,
        parameters: StdioParameters,
        guard: ProcessGuard,
        limit: int,
        *,
        sandbox: SandboxSettings | None = None,
        name: str = "",
    ) -> None:
        self._parameters = parameters
        self._sandbox = sandbox
        self._refusals: RefusedPaths | None = None
        self._obstacles: Sequence[str] = ()
        self._name = name
        self._limit = limit
        self._guard = guard
        self._child: GuardedProcess | None = None
        self._stderr: deque[bytes] = deque()
        self._stderr_bytes = 0
        self.skipped = 0
        self.direct: DirectRequests | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code if self._child else None

    @property
    def stderr(self) -> str:
        """The last 64 KiB of the server's stderr, without half a line at the beginning."""
        kept = b"".join(self._stderr)
        if len(kept) > _STDERR_KEPT:
            kept = kept[-_STDERR_KEPT:].partition(b"\n")[2]
        return kept.decode("utf-8", "replace")

    @property
    def warnings(self) -> list[str]:
        return self._refusals.warnings if self._refusals else []

    def failure(self) -> ServerFailure:
        if self._child and self._child.excess:
            return ServerGone(f"its sandbox has ended it: {self._child.excess}")
        if self._obstacles:
            return NotSandboxed(self._obstacles[0])
        was_killed = self.exit_code is not None and self.exit_code < 0  # what it wrote before is not why
        last = "" if was_killed else if_short(_why(self.stderr, self.exit_code))
        return ServerGone(_ending(self.exit_code) + (f": {last}" if last else ""))

    @property
    def diagnostics(self) -> dict[str, object]:
        return {"pid": self.pid, "exit_code": self.exit_code, "skipped_lines": self.skipped, "stderr": self.stderr}

    def silence(self) -> float:
        return 0.0

    @asynccontextmanager
    async def connect(self, on_fault: OnFault) -> AsyncGenerator[tuple[_Incoming, _Outgoing], None]:
        child = self._child = await self._start()
        if codecs.lookup(self._parameters.encoding).name == "utf-8":
            self.direct = DirectRequests(child.stdin)
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_WRITTEN_TOGETHER)
        try:
            with to_session, incoming, outgoing, from_session:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read_stderr, child)
                    tasks.start_soon(self._read, child, to_session)
                    tasks.start_soon(self._write, child, from_session)
                    if self.direct:
                        tasks.start_soon(self.direct.write_waiting)
                    try:
                        yield incoming, outgoing
                    finally:
                        tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(child)

    async def _start(self) -> GuardedProcess:
        asked = self._parameters
        env = child_environment(os.environ, asked.env)
        cwd = os.path.abspath(asked.cwd or os.curdir)  # noqa: PTH100, ASYNC240
        try:
            codecs.lookup(asked.encoding)
        except LookupError as error:
            raise StartFailed(str(error)) from error
        if not os.path.isdir(cwd):  # noqa: PTH112, ASYNC240
            raise StartFailed(f"its working directory {cwd!r} does not exist")
        path = find_command(asked.command, cwd, env)
        if path is None:
            raise CommandNotFound(f"{asked.command!r} {why_not_found(asked.command)}", command=asked.command)
        if _is_gone(asked.args):
            what = f"{asked.args[0]!r}, which `a2c-smcp add` installed, is gone"
            raise CommandNotFound(what, command=asked.command)
        argv = [asked.command, *asked.args]
        if self._sandbox is None:
            return await self._guard.launch(path, argv, env, cwd)
        plan = planned(self._sandbox, command=path, args=asked.args, env=env, configured=asked.env or {}, cwd=cwd)
        self._refusals = RefusedPaths(self._name, plan, self.told)
        self._obstacles = plan.obstacles
        try:
            return await self._guard.launch(path, argv, plan.environment, cwd, plan.spec)
        except StartFailed as error:
            if not plan.obstacles and _REFUSED not in error.reason:
                raise
            needs = f"{error.reason}: name the folder of its program, and of what that runs, in sandbox.read"
            raise NotSandboxed((*plan.obstacles, needs)[0]) from None

    async def _end(self, child: GuardedProcess) -> None:
        async def drain() -> None:
            """Read on, because a server that is stuck in a write would not notice the end of its stdin."""
            while await child.stdout.read(_CHUNK):
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            tasks.start_soon(self._read_stderr, child)
            await child.end(grace=_EXIT_WAIT, term=_TERM_WAIT, limit=_END_LIMIT)
            tasks.cancel_scope.cancel()

    async def _read(
        self, child: GuardedProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        decoder = LineDecoder(self._parameters.encoding, self._parameters.encoding_error_handler, self._limit)
        intercept = self._intercept()
        is_line_whole = True
        with to_session, suppress(*_SESSION_ENDED):
            while data := await child.read(_CHUNK, intercept if is_line_whole else None):
                self._obstacles = ()  # it has started in spite of them
                is_line_whole = data.endswith(b"\n")
                lines = decoder.feed(data)
                new = dict.fromkeys(lines)  # a line that is repeated says nothing new
                for line in new:
                    for message in self._messages(line):
                        await to_session.send(message)
                if len(new) < len(lines):
                    await child.pause(_REPETITION_PAUSE)
            with anyio.move_on_after(_EXIT_REPORT):
                await child.exited.wait()

    def _intercept(self) -> Intercept | None:
        """Return the first handler of the bytes of stdout. In a sandbox they may also show refused paths."""
        handle, refusals = self.direct.handle_lines if self.direct else None, self._refusals
        if refusals is None:
            return handle

        def read_first(data: bytes) -> bool:
            refusals.read(data)
            return handle(data) if handle else False

        return read_first

    def _messages(self, line: str) -> list[SessionMessage]:
        if not line or line.isspace():
            return []
        try:
            return [to_message(item) for item in read_line(line) if not (self.direct and self.direct.handle(item))]
        except ValueError:
            self.skipped += 1
            return []

    async def _write(self, child: GuardedProcess, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        encoder = codecs.getincrementalencoder(self._parameters.encoding)(self._parameters.encoding_error_handler)
        with suppress(OSError):  # the session learns of the end by the end of stdout
            async for message in from_session:
                await anyio.lowlevel.checkpoint()  # messages of the same turn of the loop are written together
                waiting = [message]
                with suppress(anyio.WouldBlock, anyio.EndOfStream):
                    while True:
                        waiting.append(from_session.receive_nowait())
                child.stdin.write(encoder.encode("".join(map(to_line, waiting))))
                await child.stdin.drain()

    async def _read_stderr(self, child: GuardedProcess) -> None:
        while data := await child.stderr.read(_CHUNK):
            if self._refusals:
                self._refusals.read(data)
            self._stderr.append(data)
            self._stderr_bytes += len(data)
            while self._stderr_bytes - len(self._stderr[0]) >= _STDERR_KEPT:
                self._stderr_bytes -= len(self._stderr.popleft())


def _is_gone(args: Sequence[str]) -> bool:
    """True if the program of an installed server, which an interpreter gets as its first argument, does not exist."""
    return any(Path(word).is_relative_to(data_folder()) and not Path(word).exists() for word in args[:1])


_NPM = ("npm error", "npm ERR!")
_BESIDE = re.compile(r"npm (?:error|ERR!)( (?:code|errno|syscall|path|A complete log)\b.*|\s*)")
_ERROR = re.compile(r"(?:\[cause\]: |Uncaught )?\w*Error\b.*: .*")


_LOOKS_WRONG = re.compile(
    r"error|exception|fatal|fail|panic|abort|usage:|denied|refused|not permitted|timed? ?out|cannot|can't|could not"
    r"|unable|no such|not found|missing|required|invalid|unknown|unexpected|unsupported|must|\bE[A-Z]{4,}\b",
    re.IGNORECASE,
)


def _why(stderr: str, exit_code: int | None) -> str:
    """Return the last line that looks like an error; npm and Node.js print more after it.

    If there is none, it is the last line of a program that says that it has failed, and empty for others.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or [""]
    if lines[-1].startswith(_NPM):
        return _why_npm(lines)
    if lines[-1].startswith("Node.js v"):
        return next(filter(_ERROR.fullmatch, reversed(lines)), lines[-1])
    return next((line for line in reversed(lines) if _LOOKS_WRONG.search(line)), lines[-1] if exit_code else "")


def _why_npm(lines: list[str]) -> str:
    reasons = [line for line in lines if line.startswith(_NPM) and not _BESIDE.fullmatch(line)] or lines[-1:]
    return next((line for line in reasons if " reason: " in line), reasons[0])


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "it closed its output"
    if exit_code < 0:
        return f"it was killed by {signal.Signals(-exit_code).name}"
    return f"it exited with code {exit_code if exit_code < _CRASHES else hex(exit_code)}"
