"""The chain of the lines of an audit file, and the faults that a reader finds by it.

Each line is a JSON object that begins with `n`, its number. Lines are written in blocks: all that is recorded in one
turn of the event loop is one block, and a line that is written alone is a block of one. The last line of a block ends
with `hash`: the SHA-256, cut to 128 bits, of the hash of the block before it and of the text of its own block up to
there, with all its lines. The other lines have no `hash`: hashing them one by one would cost a Server more than all
else that it does for its audit. Rotated files are one chain: `FILE.1` is the oldest, `FILE` the newest. Beside them
`FILE.state` has two numbers with their hashes: of the last line that was written, and of the last line that was dropped
by rotation, after which the lines that are kept begin.

So a line that was changed, removed, moved or put in is found, and so are a cut at the end and a missing beginning,
unless `FILE.state` was changed to match. If the numbers are in order, a change is known to be in one block, and not
where in it. A missing `FILE.state` is a problem of its own. A process that finds none beside its file goes on, and its
line `audit opened` says so (`STATE_MISSING`), so that the problem stays. A block that a crash has cut is ended by the
next process: its whole lines become the beginning of that process's first block. The chain has no secret: who may write
all of these files can compute it anew from any line on. Keep a hash somewhere else, such as the last one that
`audit verify` prints, and give it to `audit verify --hash`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

STATE_MISSING = {"state": "missing"}
"""The mark in the entry `audit opened` of a process that found lines, but no state beside them."""

_START = "0" * 32  # stands for the hash before the first block
_NOT_KNOWN = "f" * 32  # in a state: the hash of the last dropped line is not known

_STATE = re.compile(rb"(\d{18}) ([0-9a-f]{32}) (\d{18}) ([0-9a-f]{32})\n")
_OPENED_WITHOUT = re.compile(rb'\{"n":\d+,"time":"[^"]*","event":"audit opened",.*"state":"missing"', re.DOTALL)
_LINE = re.compile(rb'\{"n":(\d{1,18}),.*\}\n', re.DOTALL)
_HASH = re.compile(rb',"hash":"([0-9a-f]{32})"\}\n')
_HASH_TEXT = re.compile("[0-9a-f]{32}")
_HASH_SIZE = len(b',"hash":""}\n') + 32
_END = b"}\n"


class ChainState(NamedTuple):
    """The number and the hash of a line. Without arguments: the state before the first line."""

    number: int = 0
    hash: str = _START

    def to_bytes(self) -> bytes:
        """Return the bytes to keep. All states have one size: the last line is at the begin of a `KeptState`."""
        return b"%018d %b" % (self.number, self.hash.encode())


class KeptState(NamedTuple):
    """The state beside the files: the last line, and the last one that was dropped by rotation."""

    end: ChainState = ChainState()
    dropped: ChainState = ChainState()

    def to_bytes(self) -> bytes:
        return b"%b %b\n" % (self.end.to_bytes(), self.dropped.to_bytes())

    @classmethod
    def of_bytes(cls, text: bytes) -> KeptState | None:
        """`None` if it is no state."""
        found = _STATE.fullmatch(text)
        if found is None:
            return None
        return cls(*(ChainState(int(found[at]), found[at + 1].decode()) for at in (1, 3)))

    @classmethod
    def guessed(cls, first: int, end: ChainState) -> KeptState:
        """Return the state of files without one, whose first line has this number."""
        return cls(end, ChainState() if first <= 1 else ChainState(first - 1, _NOT_KNOWN))


class Continued(NamedTuple):
    """Where a file goes on that takes the place of another: after which line, and how that file is called now.

    Without a name it was deleted, or moved out of the folder.
    """

    after: int
    after_hash: str
    after_file: str | None

    def facts(self) -> dict[str, Any]:
        """The facts of the entry `audit opened`."""
        return self._asdict()

    @classmethod
    def read(cls, line: bytes) -> Continued | None:
        """`None` if the line is no such entry."""
        entry = numbered(line) or {}
        opened = cls(*(entry.get(name) for name in cls._fields))  # type: ignore[arg-type]  # checked below
        is_sound = isinstance(opened.after, int) and isinstance(opened.after_file, str | None)
        is_hash = isinstance(opened.after_hash, str) and _HASH_TEXT.fullmatch(opened.after_hash)
        return opened if is_sound and is_hash and entry.get("event") == "audit opened" else None


class Chain:
    """The end of a chain that grows.

    `state` is that of the last block that was written, and `begun` are whole lines behind it that have no hash yet:
    a crash has cut their block.
    """

    def __init__(self, state: ChainState, begun: bytes = b"") -> None:
        self.state = state
        self._begun = begun

    def block(self, lines: Sequence[bytes], number: int) -> tuple[bytes, ChainState]:
        """The next block, of some lines, the last of which has this number, and the state after it. Nothing changes."""
        text = b"".join(lines).removesuffix(_END)
        digest = sha256(self.state.hash.encode())
        digest.update(self._begun)
        digest.update(text)
        state = ChainState(number, digest.hexdigest()[:32])
        return b'%b,"hash":"%b"}\n' % (text, state.hash.encode()), state

    def was_written(self, state: ChainState) -> None:
        """The block before this state is in the file."""
        self.state, self._begun = state, b""


class ChainProblem(NamedTuple):
    """A fault in a line of a file."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class Line(NamedTuple):
    """A line as the chain sees it. `text` is what is hashed of it: all of it, or up to its own `hash`."""

    number: int
    text: bytes
    hash: str | None


def read_line(line: bytes) -> Line | None:
    """`None` if it is no whole line of an audit file."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    hashed = _HASH.fullmatch(line, max(len(line) - _HASH_SIZE, 0))
    if hashed is None:
        return Line(int(match[1]), line, None)
    return Line(int(match[1]), line[:-_HASH_SIZE], hashed[1].decode())


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
    checked = _Checked(kept.dropped if kept else None)
    place, is_found = ("", 0), wanted is None
    for place, line in _placed(files):
        read = read_line(line)
        if read is None:
            yield ChainProblem(*place, "is no line of an audit file, or was cut")
            continue
        is_found = is_found or read.hash == wanted
        for why in filter(None, (checked.wrong_before(line), checked.wrong_with(read), _wrong_by_state(kept, read))):
            yield ChainProblem(*place, why)
    if checked.is_open:
        yield ChainProblem(*place, "has no hash, and no line after it has: the end of its block is missing")
    end = checked.end
    if kept and kept.end.number > end.number:
        yield ChainProblem(*place, f"the lines {end.number + 1} to {kept.end.number} are missing at the end")
    if not is_found:
        yield ChainProblem(*place, f"no line has the hash {wanted}")
    yield end


def _placed(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[tuple[tuple[str, int], bytes]]:
    for file, lines in files:
        for number, line in enumerate(lines, 1):
            yield (file, number), line


def _wrong_by_state(kept: KeptState | None, read: Line) -> str:
    """Return the fault in a line, as far as states tell. The state is written after the lines, and may be behind."""
    if _OPENED_WITHOUT.match(read.text):
        return "was written when the state was missing: lines before it may be missing, too"
    if kept and read.number == kept.end.number and read.hash != kept.end.hash:
        return "is not the line that was written"
    return ""


class _Checked:
    """The lines that were checked so far.

    Without a state, nothing says what came before the first line, unless it is line 1: its block is not checked then.
    """

    def __init__(self, before: ChainState | None) -> None:
        self._number = before.number if before else None
        self._hash = before.hash if before else None
        self._is_begun = False
        self._begin_block()

    def wrong_before(self, line: bytes) -> str:
        """Return the fault before the first line: it may go on after a file that was archived, or is missing."""
        is_first, self._is_begun = not self._is_begun, True
        opened = Continued.read(line) if is_first else None
        if opened is None or opened.after <= (self._number or 0):
            return ""
        self._number, self._hash, file = opened
        self._begin_block()
        return "" if file else f"the file before it is missing, with its lines up to {opened.after}"

    def _begin_block(self) -> None:
        self._first: int | None = None
        self._is_wrong = self._hash in (None, _NOT_KNOWN)
        self._digest = sha256((self._hash or "").encode())

    @property
    def is_open(self) -> bool:
        """True if the last line is in a block that has no hash yet."""
        return self._first is not None

    @property
    def end(self) -> ChainState:
        return ChainState() if self._number is None else ChainState(self._number, self._hash or _NOT_KNOWN)

    def wrong_with(self, line: Line) -> str:
        """Return the fault in the next line, or, if it ends a block, in one of its lines."""
        if self._number is None and line.number == 1:
            self._number, self._hash = ChainState()
            self._begin_block()
        why = self._wrong_number(line.number)
        self._is_wrong = self._is_wrong or bool(why)
        self._number = line.number
        self._digest.update(line.text)
        if self._first is None:
            self._first = line.number
        if line.hash is None:
            return why
        if not self._is_wrong and self._digest.hexdigest()[:32] != line.hash:
            if self._first == line.number:
                why = "was changed, or a line before it was"
            else:
                why = f"one of the lines {self._first} to {line.number} was changed, or a line before them was"
        self._hash = line.hash
        self._begin_block()
        return why

    def _wrong_number(self, number: int) -> str:
        if self._number is None or number == self._number + 1:
            return ""
        if number > self._number + 1:
            return f"the lines {self._number + 1} to {number - 1} are missing before it"
        return f"has the number {number} after {self._number}: it was moved, or put in twice"
