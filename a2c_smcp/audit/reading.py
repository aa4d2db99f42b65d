"""Reading audit files: in order over rotated ones, filtered, followed as they grow, checked."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from a2c_smcp.audit.chain import ChainProblem, ChainState, Continued, KeptState, Line, check_lines, numbered, read_line

_ROTATED = re.compile(r"\.\d+|-\d[\d.T_-]*")
_BLOCK = 1024 * 1024
_ATTEMPTS = 10
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Chooses the entries with all of these values. Times are as entries have them; `until` excludes it."""

    values: Mapping[str, str] = field(default_factory=dict)
    since: str = ""
    until: str = ""

    def takes(self, entry: Mapping[str, Any]) -> bool:
        at = str(entry.get("time", ""))
        if at < self.since or (self.until and at >= self.until):
            return False
        return all(_is(entry, name, wanted) for name, wanted in self.values.items())


def _is(entry: Mapping[str, Any], name: str, wanted: str) -> bool:
    """A computer and an agent join and leave under `name`, with their `role`."""
    value = entry.get(name)
    if value is None and name in ("agent", "computer") and entry.get("role") == name:
        value = entry.get("name")
    if value is None and name == "office":
        return wanted in (entry.get("offices") or ())
    return str(value) == wanted


def rotated(path: Path) -> list[Path]:
    """The rotated files of an audit file, the oldest first: `FILE.1`, and `FILE-20261119` as logrotate names them.

    The first line of each tells their order, because logrotate counts its files from the newest on.
    """
    files = list[tuple[int, Path]]()
    with suppress(OSError):
        for file in path.parent.iterdir():
            is_named = file.name.startswith(path.name) and _ROTATED.fullmatch(file.name, len(path.name))
            if is_named and file.is_file():  # opening a pipe of such a name would wait for ever
                files.append((_first_number([file]), file))
    return [file for _, file in sorted(files)]


def is_numbered(file: Path) -> bool:
    """True if a rotated file is called as a program that writes it names it."""
    return file.suffix[1:].isdigit()


def files_of(path: Path) -> list[Path]:
    """All files of one chain, the oldest first."""
    return [*rotated(path), path]


def entries(path: Path, wanted: EntryFilter) -> Iterator[dict[str, Any]]:
    """The wanted entries of all files. Raises `OSError`."""
    with ExitStack() as stack:
        _, files = _opened(path, stack)
        for _, file in files:
            yield from wanted_in(file, wanted)


def wanted_in(lines: Iterable[bytes], wanted: EntryFilter) -> Iterator[dict[str, Any]]:
    for line in lines:
        entry = numbered(line)
        if entry is not None and wanted.takes(entry):
            yield entry


def follow(path: Path, wanted: EntryFilter) -> Iterator[dict[str, Any]]:
    """The wanted entries that are written from now on, over rotations. It never ends. Raises `OSError`."""
    file: BinaryIO = path.open("rb")
    file.seek(0, os.SEEK_END)
    torn, is_full = b"", False
    try:
        while True:
            line = file.readline()
            if line.endswith(b"\n"):
                yield from wanted_in((torn + line,), wanted)
                torn = b""
            elif line:
                torn += line
            elif not is_full and _inode(path) in (None, os.fstat(file.fileno()).st_ino):
                time.sleep(_PAUSE)
            elif not is_full:
                is_full = True  # no more is written to it, but lines may have come since it was read to its end
            else:
                after = _next_file(path, file)
                file.close()
                file, torn, is_full = after, b"", False
    finally:
        file.close()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _next_file(path: Path, file: BinaryIO) -> BinaryIO:
    """The file after this one, which was rotated: the next may be, too, at this moment. Raises `OSError`."""
    inode = os.fstat(file.fileno()).st_ino
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            file_after = _after(path, inode).open("rb")
            if _inode(_after(path, inode)) == os.fstat(file_after.fileno()).st_ino:
                return file_after
            file_after.close()
    return path.open("rb")


def _after(path: Path, inode: int) -> Path:
    """The file after the one with this inode; if that was dropped meanwhile, the oldest that is kept."""
    newer = path
    for older in reversed(files_of(path)[:-1]):
        if _inode(older) == inode:
            break
        newer = older
    return newer


def verify(path: Path, *, wanted: str | None = None) -> tuple[list[ChainProblem], ChainState]:
    """Return the faults in the files of one chain, and the state at its end. Raises `OSError`."""
    problems: list[ChainProblem] = []
    with ExitStack() as stack:
        kept, files = _opened(path, stack)
        if kept is None:
            what = "is missing, or is no state: lines may be missing at the end or at the beginning"
            problems.append(ChainProblem(state_file(path).name, 1, what))
        end = ChainState()
        for found in check_lines(files, kept, wanted=wanted):
            if isinstance(found, ChainState):
                end = found
            else:
                problems.append(found if found.file else found._replace(file=path.name))
    return problems, end


def opened_after(path: Path) -> Continued | None:
    """The entry on the file before it in the first line of a chain; `None` if it is the beginning. Raises `OSError`."""
    first = next(filter(Path.exists, files_of(path)), path)
    with first.open("rb") as file:
        return Continued.read(file.readline())


def state_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


def _opened(path: Path, stack: ExitStack) -> tuple[KeptState | None, list[tuple[str, BinaryIO]]]:
    """The state and the files as they are at one moment, even while they are rotated. Raises `OSError`."""
    kept, files = None, list[tuple[str, BinaryIO]]()
    for attempts_left in reversed(range(_ATTEMPTS)):
        kept = _kept(path)
        with ExitStack() as opened, suppress(FileNotFoundError):
            files = [(file.name, opened.enter_context(file.open("rb"))) for file in files_of(path) if file.exists()]
            inodes = [os.fstat(file.fileno()).st_ino for _, file in files]
            after = _kept(path)
            is_same = (kept and kept.dropped) == (after and after.dropped)
            is_same = is_same and inodes == list(filter(None, map(_inode, files_of(path))))
            if is_same or not attempts_left:
                stack.push(opened.pop_all())
                break
    if kept is None and not files:
        path.stat()  # raises that it is missing
    return kept, files


def _kept(path: Path) -> KeptState | None:
    with suppress(FileNotFoundError):
        return KeptState.of_bytes(state_file(path).read_bytes())
    return None


class ChainEnd(NamedTuple):
    """The end of a chain as it was found in its files.

    `state` is that of the last block, `begun` are the whole lines behind it, up to the one with this `number`: a crash
    has cut their block. It has also left `torn` bytes of a line.
    """

    state: ChainState
    begun: bytes
    number: int
    torn: int


def chain_end(path: Path, *, alone: bool = False) -> ChainEnd:
    """The end of a chain, or of one file `alone`."""
    torn, begun = 0, list[Line]()
    for each in [path] if alone else reversed(files_of(path)):
        with suppress(FileNotFoundError), each.open("rb") as file:
            for text in _backwards(file):
                line = read_line(text)
                if line is None:
                    torn = len(text) if each == path and not text.endswith(b"\n") else torn
                elif line.hash is None:
                    begun.append(line)
                else:
                    return _chain_end(ChainState(line.number, line.hash), begun, torn)
    return _chain_end(ChainState(), begun, torn)


def _chain_end(state: ChainState, backwards: list[Line], torn: int) -> ChainEnd:
    number = backwards[0].number if backwards else state.number
    return ChainEnd(state, b"".join(line.text for line in reversed(backwards)), number, torn)


def first_number(path: Path) -> int:
    """The number of the first line of a chain; 0 if it has none."""
    return _first_number(files_of(path))


def _first_number(files: Iterable[Path]) -> int:
    for each in files:
        with suppress(FileNotFoundError), each.open("rb") as file:
            for line in file:
                entry = numbered(line)
                if entry and isinstance(entry.get("n"), int):
                    return int(entry["n"])
    return 0


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, the last one first."""
    at, tail = file.seek(0, os.SEEK_END), b""
    while at:
        size = min(_BLOCK, at)
        at -= size
        file.seek(at)
        tail = file.read(size) + tail
        first = 0 if at == 0 else tail.find(b"\n") + 1
        if at and not first:
            continue
        yield from reversed(_split(tail[first:]))
        tail = tail[:first]


def _split(text: bytes) -> list[bytes]:
    """The lines of a text, with their ends. Only a newline ends one."""
    lines = text.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
