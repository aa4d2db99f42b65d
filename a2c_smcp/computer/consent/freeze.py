"""The freeze of a computer: it lets nothing through until a person releases it (WIRE §11).

Only a person of this machine freezes and releases: at the prompt, in the console, with `a2c-smcp freeze` and `thaw`, or
by a program that calls `Owner.freeze`. No request of an agent, no message of an MCP server or of the Server, and no
clock leads here.

Requests are refused in two places: calls in `ToolCalls.start`, the owner's own included, and all others in
`SMCPComputerClient._answer` (`OwnersFreeze.passing`). Sealed ones come there, too, and are refused in their seal. What
runs is cancelled in the same turn of the event loop (`on_change`), so nothing begins between the two. `Tells` are
silent.

The state is in memory, and in a private file that outlives the process. The file is replaced as a whole, so the last
writer counts. A computer reads it when it starts, and whenever it has changed: commands, which are other processes,
only write it. Memory and file differ in three cases, and each ends on the safe side:

- The file cannot be read: the computer is frozen.
- The file was removed: the computer stays as it is, and if it is frozen, writes the file again. So a removal releases
  nothing that runs. At a start, no file means that the computer is not frozen.
- The file cannot be written: a freeze counts all the same, and is written as soon as that is possible; a release fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from a2c_smcp.errors import CallFrozen, ConfigError, Frozen
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, Stamp, private_folder, replace_file, stamp
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol.escaping import escaped

logger = logging.getLogger(__name__)

E = TypeVar("E", Frozen, CallFrozen)

_INTERVAL = 0.2  # seconds between two looks at the file
_LONGEST = 200  # characters of a reason
_END = 1e11  # seconds: no time is later
_UNKNOWN = "nobody knows whether it is frozen"


@dataclass(frozen=True, slots=True)
class FreezeState:
    """`where` a person has changed it: `prompt`, `console`, `command` or `program`. `since` is in epoch seconds."""

    is_frozen: bool = False
    reason: str = ""
    where: str = ""
    since: float = field(default_factory=time.time, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", escaped(" ".join(self.reason.split()))[:_LONGEST])

    def __str__(self) -> str:
        word = "frozen since" if self.is_frozen else "released"
        return f"{word} {self.clock} ({self.where}){f': {self.reason}' if self.reason else ''}"

    @property
    def clock(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))

    def named(self, error: type[E], **details: str) -> E:
        """Return an error of this class, with what an agent is told."""
        why = f": {self.reason}" if self.reason else ""
        return error(f"its owner has stopped this computer{why}", by="owner", reason=self.reason, **details)


class FreezeFile:
    """The state of one computer on disk, by its name. Beside it is a file with the name itself."""

    def __init__(self, folder: Path, computer: str) -> None:
        """Raises `OSError`, and `NotPrivate` if others may write to the folder."""
        digest = hashlib.sha256(computer.encode()).hexdigest()[:32]
        self.path = private_folder(folder, "freezes") / f"{digest}.json"
        self._store = PrivateJSONFile(self.path)
        with suppress(OSError):
            if not (named := self.path.with_suffix(".name")).exists():
                replace_file(named, computer.encode())

    @staticmethod
    def computers(folder: Path) -> list[str]:
        """Return the names of the computers that have been started here, or frozen."""
        names = (path.read_bytes() for path in (folder / "freezes").glob("*.name"))
        return sorted(name.decode("utf-8", "replace") for name in names)

    @staticmethod
    def may_be_in(folder: Path) -> bool:
        """True if a state may be kept there, although it cannot be read."""
        try:
            (folder / "freezes").lstat()
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return True

    def read(self) -> FreezeState:
        """Return the state: frozen, if the file cannot be read."""
        try:
            match self._store.load():
                case {"is_frozen": bool(on), "reason": str(why), "where": str(by), "since": float(at)} if 0 < at < _END:
                    return FreezeState(on, why, by, at)
                case known if not known and not self.path.exists():
                    return FreezeState()
            fault = f"{self.path}: not the state of a computer"
        except PrivateFileUnusable as error:
            fault = str(error)
        return FreezeState(True, _UNKNOWN, fault)

    def write(self, state: FreezeState) -> None:
        """Raises `ConfigError`."""
        try:
            self._store.save(asdict(state))
        except PrivateFileUnusable as error:
            raise ConfigError(str(error)) from None


class OwnersFreeze:
    """The state of one computer. `on_change` is called with it when it has become another, at once."""

    def __init__(self) -> None:
        self.state = FreezeState()
        self.on_change: list[Callable[[FreezeState], None]] = []
        self._file: FreezeFile | None = None
        self._stamp: Stamp | None = None
        self._is_written = True
        self._passing: dict[asyncio.Timeout, FreezeState] = {}
        self._following: asyncio.Task[None] | None = None

    # A person's word

    def freeze(self, reason: str, where: str) -> None:
        self._become(FreezeState(True, reason, where))
        self._write()

    def thaw(self, where: str) -> None:
        """Raises `ConfigError` if that cannot be kept: the computer stays frozen."""
        state = FreezeState(where=where)
        if self._file:
            self._file.write(state)
        self._become(state)

    # Requests

    def check(self) -> None:
        """Raise `Frozen` if nothing is let through."""
        if self.state.is_frozen:
            raise self.state.named(Frozen)

    @asynccontextmanager
    async def passing(self) -> AsyncGenerator[None, None]:
        """Encloses a request. Raises `Frozen`, or `CallFrozen` as soon as the computer is frozen meanwhile."""
        self.check()
        try:
            async with asyncio.timeout(None) as limit:
                self._passing[limit] = self.state
                try:
                    yield
                finally:
                    state = self._passing.pop(limit)
        except TimeoutError:
            if not state.is_frozen:
                raise
        if state.is_frozen:
            raise state.named(CallFrozen)

    # The file

    def open(self, computer: str, folder: Path | None) -> None:
        """Read the file of this computer, and follow it. Without a folder, a freeze lasts as long as this object."""
        if folder is None:
            return
        try:
            self._file = FreezeFile(folder, computer)
        except OSError as error:
            logger.warning("a freeze of this computer cannot be kept in %s: %s", folder, error.strerror)
            if FreezeFile.may_be_in(folder):
                self._become(FreezeState(True, _UNKNOWN, f"{folder}: {error.strerror}"))
            return
        self._stamp = stamp(self._file.path)
        if self._is_written:
            self._become(self._file.read())
        else:
            self._write()
        self._following = asyncio.create_task(self._follow(self._file))

    async def close(self) -> None:
        if self._following:
            await cancel_and_wait(self._following)
            self._following = None

    async def _follow(self, file: FreezeFile) -> None:
        while True:
            found = stamp(file.path)
            if found and found != self._stamp:
                self._stamp, self._is_written = found, True
                self._become(file.read())
            elif self.state.is_frozen and not (found and self._is_written):
                self._write()
            await asyncio.sleep(_INTERVAL)

    def _write(self) -> None:
        was_written, self._is_written = self._is_written, False
        try:
            if self._file:
                self._file.write(self.state)
                self._is_written = True
        except ConfigError as error:
            if was_written:
                logger.warning("this freeze ends with this program, unless it can be kept later: %s", error)

    def _become(self, state: FreezeState) -> None:
        before, self.state = self.state, state
        if state == before or not (state.is_frozen or before.is_frozen):
            return
        if state.is_frozen:
            for limit, began in self._passing.items():
                if not began.is_frozen:
                    limit.reschedule(0)
                    self._passing[limit] = state
        for tell in self.on_change:
            try:
                tell(state)
            except Exception:
                logger.exception("not everything was told that this computer is %s", state)
        logger.warning("this computer is %s", state)
