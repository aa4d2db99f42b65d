"""Which windows are on the desktop, in which order, and as what text (004)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from a2c_smcp.computer.types import ToolCallRecord
from a2c_smcp.errors import InvalidWindowURI
from a2c_smcp.protocol.window_uri import WindowURI
from a2c_smcp.types import SERVER_NAME, Desktop

__all__ = ["Contents", "Ranking", "Window", "blobs_in", "organize_desktop", "rank", "render"]

Contents: TypeAlias = Sequence[Any] | None
"""The `contents` of an MCP `resources/read`, as the server sent them."""

READ_AHEAD = 8
"""How many windows at most are read beyond those that would do, once others turned out to be empty."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window as its server lists it: `index` is the place in that list."""

    server: SERVER_NAME
    uri: str
    index: int


def organize_desktop(
    windows: Iterable[tuple[Window, Contents]], size: int | None, history: Sequence[ToolCallRecord]
) -> list[Desktop]:
    """The desktop out of windows that have all been read: 004 step by step."""
    if size is not None and size <= 0:
        return []
    contents = {window: read for window, read in windows if _texts(read)}
    stacks = _stacks(contents, history)
    shown = (window for stack in stacks for window in (stack.fullscreen[:1] or stack.others))
    return [render(window, contents[window]) for window in islice(shown, size)]


def rank(windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord]) -> Ranking:
    """The same desktop out of windows that are read on demand, only as many as it takes."""
    return Ranking(windows, size, history)


class Ranking:
    """Which windows to read next. Ask `wanted`, read some of them, `put` what they hold, until nothing is wanted.

    A window that is not read yet counts as one that has something to show: where all that would be shown are read,
    nothing that is read later could change the desktop.
    """

    def __init__(self, windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord]) -> None:
        self._stacks = _stacks(windows, history)
        self._size = size if size is None else max(size, 0)
        self._read: dict[Window, Contents] = {}
        self._empty = 0

    def wanted(self) -> list[Window]:
        """The windows to read now, the most important first. Nothing is wanted once the desktop is known."""
        if all(window in self._read for window in self._shown(self._size)):
            return []
        ahead = min(self._empty, READ_AHEAD)
        candidates = self._shown(None if self._size is None else self._size + ahead)
        return [window for window in candidates if window not in self._read]

    def put(self, window: Window, contents: Contents) -> None:
        """What a window holds; nothing, if it could not be read."""
        self._read[window] = contents
        self._empty += not _texts(contents)

    def desktops(self) -> list[Desktop]:
        """The desktop, of what has been read so far."""
        shown = (window for window in self._shown(self._size) if window in self._read)
        return [render(window, self._read[window]) for window in shown]

    def _shown(self, size: int | None) -> list[Window]:
        return list(islice(self._promising(), size))

    def _promising(self) -> Iterator[Window]:
        for stack in self._stacks:
            fullscreen = next(filter(self._may_show, stack.fullscreen), None)
            yield from [fullscreen] if fullscreen else filter(self._may_show, stack.others)

    def _may_show(self, window: Window) -> bool:
        return window not in self._read or bool(_texts(self._read[window]))


def render(window: Window, contents: Contents) -> Desktop:
    """The URI, and below it the text, if there is any."""
    texts = _texts(contents)
    return f"{window.uri}\n\n" + "\n\n".join(texts) if any(texts) else window.uri


def blobs_in(contents: Contents) -> int:
    """How much of a window is binary and cannot be shown: worth a warning (004)."""
    return sum(isinstance(part, Mapping) and "blob" in part for part in contents or ())


@dataclass(frozen=True, slots=True)
class _Stack:
    """The windows of one server: those that would have it all, as listed; the others, the most important first."""

    fullscreen: list[Window]
    others: list[Window]


def _stacks(windows: Iterable[Window], history: Sequence[ToolCallRecord]) -> list[_Stack]:
    """004 steps 1 to 3: valid windows by server, the server used last first, those never used by name."""
    by_server: dict[SERVER_NAME, list[tuple[Window, WindowURI]]] = {}
    for window in sorted(windows, key=lambda window: window.index):
        if uri := _parsed(window):
            by_server.setdefault(window.server, []).append((window, uri))
    recent = dict.fromkeys(record["server"] for record in reversed(history))
    servers = [server for server in (*recent, *sorted(by_server.keys() - recent.keys())) if server in by_server]
    return [_stack(by_server[server]) for server in servers]


def _stack(windows: list[tuple[Window, WindowURI]]) -> _Stack:
    """004 step 4: the first fullscreen window is the first listed, whatever its priority."""
    fullscreen = [window for window, uri in windows if uri.fullscreen]
    others = [(window, uri) for window, uri in windows if not uri.fullscreen]
    others.sort(key=lambda pair: -(pair[1].priority or 0))
    return _Stack(fullscreen, [window for window, _ in others])


def _parsed(window: Window) -> WindowURI | None:
    try:
        return WindowURI.parse(window.uri)
    except InvalidWindowURI:
        return None


def _texts(contents: Contents) -> list[str]:
    parts = [part for part in contents or () if isinstance(part, Mapping)]
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]
