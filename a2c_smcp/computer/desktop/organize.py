"""Which windows are on the desktop, in which order, and their texts (004)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.computer.types import ToolCallRecord
from a2c_smcp.errors import InvalidWindowURI
from a2c_smcp.protocol.window_uri import WindowURI
from a2c_smcp.types import SERVER_NAME, Desktop

Contents: TypeAlias = Sequence[Any] | None
"""The `contents` of an MCP `resources/read`, as the server sent them."""

READ_AHEAD = 8
"""The most windows that are read beyond those needed, once others have turned out to be empty."""


class Window(NamedTuple):
    """A window as its server lists it: `position` is its index in that list.

    `priority` and `fullscreen` count where the URI says nothing of them.
    """

    server: SERVER_NAME
    uri: str
    position: int
    priority: float = 0
    fullscreen: bool = False

    @classmethod
    def listed(cls, server: SERVER_NAME, resource: Mapping[str, Any], position: int) -> Window:
        """Of a resource as MCP lists it. Servers for the published generation since 0.2 have a priority from 0 to 1 in
        `annotations`, and `fullscreen` in `_meta` (WIRE §8).
        """
        annotations, meta = resource.get("annotations"), resource.get("_meta")
        priority: Any = annotations.get("priority") if isinstance(annotations, Mapping) else None
        is_valid = type(priority) in (int, float) and 0 <= priority <= 1
        fullscreen = isinstance(meta, Mapping) and meta.get("fullscreen") is True
        return cls(server, resource["uri"], position, priority * 100 if is_valid else 0, fullscreen)


def organize_desktop(
    windows: Iterable[tuple[Window, Contents]], size: int | None, history: Sequence[ToolCallRecord]
) -> list[Desktop]:
    """The desktop of windows that have all been read, as texts, the most important first, at most `size` (004).

    Each window comes with the `contents` of its resource: dicts, or the `TextResourceContents` of MCP's SDK. Raises
    `TypeError` for anything else.
    """
    if size is not None and size <= 0:
        return []
    read = {window: [_as_dict(part) for part in contents or ()] for window, contents in windows}
    contents = {window: parts for window, parts in read.items() if _texts(parts)}
    stacks = _stacks(contents, history)
    shown = chain.from_iterable(stack.shown for stack in stacks)
    return [render(window, contents[window]) for window in islice(shown, size)]


def rank(windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord]) -> Ranking:
    """The same desktop for windows that are read on demand, only as many as needed."""
    return Ranking(windows, size, history)


class Ranking:
    """Which windows to read: `take` some, `put` their contents, until the desktop `is_known`.

    A window that is not read yet counts as one with text. So once all windows that would be shown are read, no window
    that is read later can change the desktop.
    """

    def __init__(self, windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord]) -> None:
        self._stacks = _stacks(windows, history)
        self._stack_of = {window: stack for stack in self._stacks for window in (*stack.fullscreen, *stack.others)}
        self._size = size if size is None else max(size, 0)
        self._read: dict[Window, Contents] = {}
        self._taken: set[Window] = set()
        self._empty = 0
        self._rank()

    @property
    def is_known(self) -> bool:
        while self._known < len(self._shown) and self._shown[self._known] in self._read:
            self._known += 1
        return self._known == len(self._shown)

    def take(self, most: int | None = None) -> list[Window]:
        """The next windows to read, at most `most`, the most important first. Each is returned once."""
        if self.is_known:
            return []
        taken = list(islice((window for window in self._ranked if window not in self._taken), most))
        self._taken.update(taken)
        return taken

    def put(self, window: Window, contents: Contents) -> None:
        """Take in the contents of a window; empty, if it could not be read."""
        self._taken.add(window)
        if _texts(contents):
            self._read[window] = contents
        elif stack := self._stack_of.get(window):
            stack.remove(window)
            self._empty += 1
            self._rank()

    def desktops(self) -> list[Desktop]:
        """The desktop of the windows that have been read so far."""
        return [render(window, self._read[window]) for window in self._shown if window in self._read]

    def _rank(self) -> None:
        """Called again whenever a window is empty: others move up, and some more may be read ahead."""
        ahead = min(self._empty, READ_AHEAD)
        promising = chain.from_iterable(stack.shown for stack in self._stacks)
        ranked = list(islice(promising, None if self._size is None else self._size + ahead))
        self._ranked = iter(ranked)
        self._shown = ranked[: self._size]
        self._known = 0


def render(window: Window, contents: Contents) -> Desktop:
    """The URI of a window, and below it its text, if there is any."""
    texts = _texts(contents)
    return f"{window.uri}\n\n" + "\n\n".join(texts) if any(texts) else window.uri


def blobs_in(contents: Contents) -> int:
    """The number of binary parts of a window, which cannot be shown (004)."""
    return sum(isinstance(part, Mapping) and "blob" in part for part in contents or ())


@dataclass(frozen=True, slots=True)
class _Stack:
    """The windows of one server: fullscreen ones as listed; the others, the most important first."""

    fullscreen: dict[Window, None]
    others: dict[Window, None]

    @property
    def shown(self) -> Iterable[Window]:
        return islice(self.fullscreen, 1) if self.fullscreen else self.others

    def remove(self, window: Window) -> None:
        self.fullscreen.pop(window, None)
        self.others.pop(window, None)


def _stacks(windows: Iterable[Window], history: Sequence[ToolCallRecord]) -> list[_Stack]:
    """004 steps 1 to 3: valid windows by server, the server used last first, those never used by name."""
    by_server: dict[SERVER_NAME, list[tuple[Window, WindowURI]]] = {}
    for window in sorted(windows, key=lambda window: window.position):
        if uri := _parsed(window):
            by_server.setdefault(window.server, []).append((window, uri))
    recent = dict.fromkeys(record["server"] for record in reversed(history))
    servers = [server for server in (*recent, *sorted(by_server.keys() - recent.keys())) if server in by_server]
    return [_stack(by_server[server]) for server in servers]


def _stack(windows: list[tuple[Window, WindowURI]]) -> _Stack:
    """004 step 4: the first fullscreen window is the first listed, whatever its priority."""
    fullscreen = dict.fromkeys(window for window, uri in windows if _is_fullscreen(window, uri))
    others = sorted((pair for pair in windows if pair[0] not in fullscreen), key=lambda pair: -_priority(*pair))
    return _Stack(fullscreen, dict.fromkeys(window for window, _ in others))


def _is_fullscreen(window: Window, uri: WindowURI) -> bool:
    return window.fullscreen if uri.fullscreen is None else uri.fullscreen


def _priority(window: Window, uri: WindowURI) -> float:
    return window.priority if uri.priority is None else uri.priority


def _parsed(window: Window) -> WindowURI | None:
    try:
        return WindowURI.parse(window.uri)
    except InvalidWindowURI:
        return None


def _as_dict(part: object) -> Mapping[str, Any]:
    """Return a part of a resource as MCP writes it."""
    if isinstance(part, Mapping):
        return part
    for kind in ("text", "blob"):
        if isinstance(value := getattr(part, kind, None), str):
            return {kind: value}
    raise TypeError(f"the contents of a window are dicts or MCP's ResourceContents, not {type(part).__name__}")


def _texts(contents: Contents) -> list[str]:
    parts = [part for part in contents or () if isinstance(part, Mapping)]
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]
