"""How the lines of an audit file are chained, and what a reader can see by that.

Each line is a JSON object. It begins with `n`, its number, and ends with `hash`: the SHA-256, cut to 128 bits, of the
hash of the line before it and of its own text up to there. Rotated files are one chain: `FILE.1` is the oldest, `FILE`
the newest. Beside them `FILE.state` has two numbers with their hashes: of the last line that was written, and of the
last line that was dropped by rotation, after which the lines that are kept begin.

So a line that was changed, removed, moved or put in is found, and so are a cut at the end and a missing beginning,
unless `FILE.state` was changed to match. A missing `FILE.state` is a problem of its own. A process that finds none
beside its file goes on, and its line `audit opened` says so (`STATE_MISSING`), so that the problem stays. The chain has
no secret: who may write all of these files can compute it anew from any line on. Keep a hash somewhere else, such as
the last one that `audit verify` prints, and give it to `audit verify --hash`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

__all__ = ["STATE_MISSING", "Chain", "ChainProblem", "ChainState", "KeptState", "check_lines", "numbered"]

STATE_MISSING = {"state": "missing"}
"""In the entry `audit opened` of a process that found lines, but no state beside them."""

_START = "0" * 32  # stands for the hash before the first line
_NOT_KNOWN = "f" * 32  # in a state: the hash of the last dropped line is not known

_STATE = re.compile(rb"(\d{18}) ([0-9a-f]{32}) (\d{18}) ([0-9a-f]{32})\n")
_OPENED_WITHOUT = re.compile(rb'\{"n":\d+,"time":"[^"]*","event":"audit opened",.*"state":"missing"', re.DOTALL)
_LINE = re.compile(rb'(\{"n":(\d{1,18}),.*),"hash":"([0-9a-f]{32})"\}', re.DOTALL)


class ChainState(NamedTuple):
    """The number and the hash of a line. Without arguments: the state before the first line."""

    number: int = 0
    hash: str = _START


class KeptState(NamedTuple):
    """What is kept beside the files: the last line, and the last one that was dropped by rotation."""

    end: ChainState = ChainState()
    dropped: ChainState = ChainState()

    def to_bytes(self) -> bytes:
        return b"%018d %s %018d %s\n" % (
            *(self.end.number, self.end.hash.encode()),
            *(self.dropped.number, self.dropped.hash.encode()),
        )

    @classmethod
    def of_bytes(cls, text: bytes) -> KeptState | None:
        """`None` if it is no state."""
        found = _STATE.fullmatch(text)
        if found is None:
            return None
        return cls(*(ChainState(int(found[at]), found[at + 1].decode()) for at in (1, 3)))

    @classmethod
    def guessed(cls, first: int, end: ChainState) -> KeptState:
        """That of files without one, whose first line has this number."""
        return cls(end, ChainState() if first <= 1 else ChainState(first - 1, _NOT_KNOWN))


class Chain:
    """The end of a chain that grows."""

    def __init__(self, state: ChainState) -> None:
        self.state = state

    def extended(self, entries: Iterable[bytes]) -> tuple[bytes, ChainState]:
        """The lines of some entries, each JSON members without braces, and the state after them. Nothing changes."""
        number, digest = self.state
        lines = []
        for entry in entries:
            number += 1
            text = b'{"n":%d,%b' % (number, entry)
            digest = sha256(digest.encode() + text).hexdigest()[:32]
            lines.append(b'%b,"hash":"%b"}\n' % (text, digest.encode()))
        return b"".join(lines), ChainState(number, digest)


class ChainProblem(NamedTuple):
    """What is wrong with a line of a file."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class _Read(NamedTuple):
    number: int
    text: bytes
    hash: str


def _read(line: bytes) -> _Read | None:
    found = _LINE.fullmatch(line)
    return _Read(int(found[2]), found[1], found[3].decode()) if found else None


def numbered(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; `None` if it is not valid. A fact that cannot be read stays as it is in the line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = _read_one_by_one(line)
    return entry if isinstance(entry, dict) and "event" in entry else None


def _read_one_by_one(line: bytes) -> dict[str, Any] | None:
    """The facts of a line of which one is nested too deep, or has a number that is too long."""
    try:
        facts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return None
    return {name: _fact(bytes(raw)) for name, raw in facts.items()}


def _fact(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def check_lines(
    files: Iterable[tuple[str, Iterable[bytes]]], kept: KeptState | None, *, wanted: str | None = None
) -> Iterator[ChainProblem | ChainState]:
    """Yields what is wrong, and at last the state at the end of the last file.

    `files` are names and lines, in order; `kept` is the state that was kept beside them. `wanted` is a hash that one
    of the lines must have.
    """
    before = kept.dropped if kept else None
    place, is_found = ("", 0), wanted is None
    for place, line in _placed(files):
        read = _read(line[:-1]) if line.endswith(b"\n") else None
        if read is None:
            yield ChainProblem(*place, "is no line of an audit file, or was cut")
            continue
        is_found = is_found or read.hash == wanted
        for why in filter(None, (_wrong(before, read), _wrong_by_state(kept, read))):
            yield ChainProblem(*place, why)
        before = ChainState(read.number, read.hash)
    end = before or ChainState()
    if kept and kept.end.number > end.number:
        yield ChainProblem(*place, f"the lines {end.number + 1} to {kept.end.number} are missing at the end")
    if not is_found:
        yield ChainProblem(*place, f"no line has the hash {wanted}")
    yield end


def _placed(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[tuple[tuple[str, int], bytes]]:
    for file, lines in files:
        for number, line in enumerate(lines, 1):
            yield (file, number), line


def _wrong_by_state(kept: KeptState | None, read: _Read) -> str:
    """What is wrong with a line, as far as states tell. The state is written after the lines, and may be behind."""
    if _OPENED_WITHOUT.match(read.text):
        return "was written when the state was missing: lines before it may be missing, too"
    if kept and read.number == kept.end.number and read.hash != kept.end.hash:
        return "is not the line that was written"
    return ""


def _wrong(before: ChainState | None, read: _Read) -> str:
    if before is None:  # without a state, nothing says what came before the first line, unless it is line 1
        if read.number != 1:
            return ""
        before = ChainState()
    if read.number > before.number + 1:
        return f"the lines {before.number + 1} to {read.number - 1} are missing before it"
    if read.number != before.number + 1:
        return f"has the number {read.number} after {before.number}: it was moved, or put in twice"
    if before.hash != _NOT_KNOWN and sha256(before.hash.encode() + read.text).hexdigest()[:32] != read.hash:
        return "was changed, or a line before it was"
    return ""
