"""Freezes by operators (WIRE §11): known on every node, kept over restarts, ended by a person only.

All freezes are one text with a number that only grows. It is in the store that nodes share, where it is replaced by
compare-and-swap, and in a file of each node. Of two texts the one with the larger number counts, and of equal ones
both: a node that was away learns what it has missed, a store that has lost its memory gets it back, and while the store
is out of reach the last known text holds. A freeze is in force on its own node before it is written, and is written
later if it cannot be now, also after a restart; a thaw is in force once it is written, and refused otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TypeAlias

import msgspec

from a2c_smcp.errors import BadRequest, CallFrozen, ConfigError, Frozen, NotFound, Outcome, RateLimited, Unavailable
from a2c_smcp.files import replace_file
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.cluster.memory import FREEZES, SharedDirectory

logger = logging.getLogger(__name__)

FreezeScope: TypeAlias = tuple[str | None, str | None]
"""An office and a computer in it; without the latter the whole office, without both the whole Server."""

_MOST, _LONGEST_REASON = 1000, 500
_TRY_AGAIN = 0.5


class Freeze(msgspec.Struct, frozen=True):
    """A frozen scope. A computer is meant by its name, whoever comes back under it. Agents are told the reason only."""

    office: str | None = None
    computer: str | None = None
    reason: str = ""
    by: str = ""
    since: float = 0.0

    @property
    def scope(self) -> FreezeScope:
        return self.office, self.computer

    def refusal(self, outcome: Outcome) -> Frozen:
        return Frozen(self._about, by="operator", reason=self.reason, outcome=outcome)

    def end(self) -> CallFrozen:
        """The error of a call that ran when its scope was frozen."""
        return CallFrozen(self._about, by="operator", reason=self.reason)

    @property
    def _about(self) -> str:
        what = "computer" if self.computer else "office" if self.office else "Server"
        return f"the operator has frozen this {what}{f': {self.reason}' if self.reason else ''}"


class _KnownFreezes(msgspec.Struct, frozen=True):
    number: int = 0
    frozen: tuple[Freeze, ...] = ()


class _KeptFreezes(_KnownFreezes, frozen=True):
    """The file of a node: beside what all know, the freezes that are not in the store yet."""

    unwritten: tuple[Freeze, ...] = ()


class Freezes:
    """The freezes that this node knows. With `path` they outlive it. `on_change` gets those before the change."""

    def __init__(self, shared: SharedDirectory | None, path: Path | None, background: OwnedTasks) -> None:
        """Raises `ConfigError` for a file that cannot be read: nobody knows then what is frozen."""
        self._shared, self._path, self._background = shared, path, background
        self.on_change: Callable[[Mapping[FreezeScope, Freeze]], None] = lambda before: None
        self.unkept = "" if shared or path else "this Server has no folder for its state"
        kept = _read(path)
        self._known = _KnownFreezes(kept.number, kept.frozen)
        self._unwritten = {freeze.scope: freeze for freeze in kept.unwritten}
        self._turn = asyncio.Lock()
        self._is_writing_later = False
        self.by_scope = {freeze.scope: freeze for freeze in kept.frozen} | self._unwritten

    @property
    def number(self) -> int:
        """Larger after every change that all nodes shall know."""
        return self._known.number

    def of(self, office: str, computer: str) -> Freeze | None:
        """The freeze that a request to a computer meets, the widest first."""
        return freeze_of(self.by_scope, office, computer)

    def freeze(self, freeze: Freeze) -> Awaitable[None]:
        """Put a freeze in force on this node at once. Raises `BadRequest` and `RateLimited`.

        What is returned is to be awaited: it writes the freeze, and raises `Unavailable` if only this node knows of it.
        """
        for field, name in (("office", freeze.office), ("computer", freeze.computer)):
            if name is not None and (fault := fault_in(name)):
                raise BadRequest(f"{field}: {fault}", field=field)
        if freeze.computer and not freeze.office:
            raise BadRequest("office: is missing, a computer is frozen in its office", field="office")
        if len(freeze.reason) > _LONGEST_REASON or not freeze.reason.isprintable():
            raise BadRequest(f"reason: must be one line of at most {_LONGEST_REASON} characters", field="reason")
        if freeze.office and len(self.by_scope) >= _MOST and freeze.scope not in self.by_scope:
            raise RateLimited(f"at most {_MOST} offices and computers are frozen one by one: freeze all")
        self._unwritten[freeze.scope] = freeze
        self._apply(self._known)
        return self._write_or_try_again()

    async def _write_or_try_again(self) -> None:
        try:
            await self._write()
        except Unavailable as error:
            here = "in force on this node, and on the others once they share their store again"
            raise Unavailable(f"{here} ({error.about})") from None
        finally:
            if self._unwritten:
                self._write_later()

    async def thaw(self, scope: FreezeScope) -> Freeze:
        """End a freeze, and return it.

        Raises `NotFound`, and `Unavailable`: then nothing was thawed, unless just the store's answer was lost.
        """
        freeze = await self._write(without=scope)
        assert freeze
        return freeze

    def read(self, text: str | None) -> None:
        """Apply what another node has written, or what the store has when this node begins or is back.

        If the store has less, it is written there, once this node may write.
        """
        stored = _decode(text)
        if stored.number > self._known.number:
            written = set(stored.frozen)
            self._unwritten = {freeze.scope: freeze for freeze in self._unwritten.values() if freeze not in written}
            self._apply(stored)
        if (self._unwritten or stored != self._known) and self._shared and self._shared.is_ready:
            self._write_later()

    async def _write(self, without: FreezeScope | None = None) -> Freeze | None:
        """Write what is not written yet, in the store first; with a scope to be left out, return its freeze.

        Raises `Unavailable`.
        """
        async with self._turn:
            while True:
                text = await self._shared.kept(FREEZES) if self._shared else None
                stored, unwritten = _decode(text), dict(self._unwritten)
                if stored == self._known and not (unwritten or without):
                    return None
                known = _merged(self._known, stored)
                frozen = {freeze.scope: freeze for freeze in known.frozen} | unwritten
                ended = _take_out(frozen, without) if without else None
                changed = _KnownFreezes(known.number + 1, tuple(frozen.values()))
                if await self._swap(text, changed):
                    break
            for scope, freeze in unwritten.items():
                if self._unwritten.get(scope) is freeze:
                    del self._unwritten[scope]
            self._apply(_merged(changed, self._known))  # a newer one may have come already
            return ended

    async def _swap(self, before: str | None, after: _KnownFreezes) -> bool:
        return self._shared is None or await self._shared.swap(FREEZES, before, _encode(after).decode(), inf)

    def _apply(self, known: _KnownFreezes) -> None:
        before, self._known = dict(self.by_scope), known
        self.by_scope.clear()
        self.by_scope.update({freeze.scope: freeze for freeze in known.frozen} | self._unwritten)
        if self.by_scope != before:
            self.on_change(before)
        if self._path:
            try:
                kept = _KeptFreezes(known.number, known.frozen, tuple(self._unwritten.values()))
                replace_file(self._path, _encode(kept))
            except OSError as error:
                self.unkept = "" if self._shared else f"{self._path} cannot be written: {error.strerror}"
                logger.warning("what is frozen cannot be kept: %s: %s", self._path, error.strerror)
            else:
                self.unkept = ""

    def _write_later(self) -> None:
        """Write as soon as the store answers."""

        async def write() -> None:
            while self._is_writing_later:
                with suppress(Unavailable):
                    await self._write()
                    self._is_writing_later = False
                    return
                await asyncio.sleep(_TRY_AGAIN)

        if not self._is_writing_later:
            self._is_writing_later = True
            self._background.spawn(write())


def freeze_of(frozen: Mapping[FreezeScope, Freeze], office: str, computer: str) -> Freeze | None:
    return frozen.get((None, None)) or frozen.get((office, None)) or frozen.get((office, computer))


def _merged(one: _KnownFreezes, other: _KnownFreezes) -> _KnownFreezes:
    """The newer of two; of two with one number both."""
    if one.number != other.number:
        return max(one, other, key=lambda known: known.number)
    frozen = {freeze.scope: freeze for freeze in (*one.frozen, *other.frozen)}
    return _KnownFreezes(one.number, tuple(frozen.values()))


def _take_out(frozen: dict[FreezeScope, Freeze], scope: FreezeScope) -> Freeze:
    if scope not in frozen:
        raise NotFound("that is not frozen; `a2c-smcp freeze --list` shows what is")
    return frozen.pop(scope)


def _read(path: Path | None) -> _KeptFreezes:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_KeptFreezes) if path else _KeptFreezes()
    except FileNotFoundError:
        return _KeptFreezes()
    except (OSError, ValueError) as error:
        why = f"what is frozen cannot be read ({type(error).__name__})"
        raise ConfigError(f"{path}: {why}; without this file nothing is frozen") from None


def _decode(text: str | None) -> _KnownFreezes:
    return msgspec.json.decode(text, type=_KnownFreezes) if text else _KnownFreezes()


_encode = msgspec.json.Encoder().encode
