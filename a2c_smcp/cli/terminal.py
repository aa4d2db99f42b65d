"""What commands write: results on stdout (`put_…`), everything else on stderr, through a `Terminal`.

With --log-json a line is a JSON object, with its facts in fields.

Lines, logs, a display that is redrawn, questions and a prompt share one screen, and output never interrupts a question
or a line that is typed. Every output is a function that writes. Normally it runs at once, above the display. While
something is asked (`asking`) the functions are held back, in order; while a prompt is open (`lent`) they are passed to
its editor, which runs them between two keys. One lock orders all of this, because logs come from any thread. Without a
terminal everything is written at once, and nothing is asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

from a2c_smcp.cli import logs
from a2c_smcp.protocol.visible import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = [
    "Say",
    "Terminal",
    "first_sentence",
    "is_for_programs",
    "printable",
    "put_diff",
    "put_json",
    "put_table",
    "put_text",
]

logger = logging.getLogger(__name__)

_LEVELS = {"yellow": logging.WARNING, "red": logging.ERROR}
_HELD = 1000
_FRAMES_PER_SECOND = 8


class Say(Protocol):
    """Shows a line, as `Terminal.show` does."""

    def __call__(self, line: str, style: str = "", **facts: object) -> None: ...


class Terminal:
    """stderr. Lines go above a display that may be redrawn below them."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self.console = _console() if self._is_terminal else None
        self.can_ask = sys.stdin.isatty() and sys.stderr.isatty()
        self._render: Callable[[], RenderableType] | None = None
        self._live: Live | None = None
        self._held: deque[Callable[[], None]] | None = None
        self._show: Callable[[Callable[[], None]], None] | None = None
        self._lock = RLock()

    def show(self, line: str, style: str = "", **facts: object) -> None:
        """Show a line for people. Where logs are JSON it is an object: the line, and its facts, such as `event`."""
        level = _LEVELS.get(style, logging.INFO)
        if text := logs.as_json_line(logger, level, line, **{"event": "notice", **facts}):
            self.write(f"{text}\n")
            return
        if not (self.console and style):
            self.write(f"{line}\n")
            return
        from rich.text import Text

        self.print(Text(printable(line), style), soft_wrap=True)

    def print(self, what: RenderableType, **how: Any) -> None:
        """Print something with colours; only if there is a console."""
        assert self.console
        self._do(partial(self.console.print, what, **how))

    def write(self, text: str) -> None:
        """Write whole lines. Handlers of logs call it, too."""
        self._do(partial(self._write, text))

    def flush(self) -> None:
        sys.stderr.flush()

    def put_below(self, render: Callable[[], RenderableType]) -> None:
        """Show the display below everything else, and draw it again and again."""
        with self._lock:
            self._render = render
            self._raise()

    def take_away(self) -> None:
        with self._lock:
            self._lower()
            self._render = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Hide the display and hold output back while a question is open; restore the terminal's modes afterwards."""
        modes = _modes()
        with self._lock:
            self._lower()
            self._held = deque(maxlen=_HELD)
        try:
            yield
        except asyncio.CancelledError:
            sys.stderr.write("\n")
            raise
        finally:
            _set_modes(modes)
            self._release()

    @contextmanager
    def lent(self, show: Callable[[Callable[[], None]], None]) -> Iterator[None]:
        """Pass all output to `show`, as functions that the prompt's editor runs when it can."""
        with self._lock:
            self._show = show
        try:
            yield
        finally:
            with self._lock:
                self._show = None

    def _do(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(action)
            elif self._show:
                self._show(action)
            else:
                action()

    def _release(self) -> None:
        with self._lock:
            held, self._held = self._held or (), None
            for action in held:
                self._do(action)
            self._raise()

    def _write(self, text: str) -> None:
        if self._live and self.console:
            self.console.out(printable(text).removesuffix("\n"), highlight=False)
        else:
            sys.stderr.write(printable(text) if self._is_terminal else text)
            sys.stderr.flush()

    def _raise(self) -> None:
        if self._render and self._held is None:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                transient=True,
                redirect_stdout=False,
                refresh_per_second=_FRAMES_PER_SECOND,
            )
            self._live.start(refresh=True)

    def _lower(self) -> None:
        if self._live:
            self._live.stop()
        self._live = None


def printable(text: str) -> str:
    """The text with everything escaped that would control a terminal or hide text: it may come from others."""
    return escaped(text, keep="\n\t")


def _console() -> Console | None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return console if console.is_interactive else None


def _modes() -> list[Any] | None:
    """The modes of the terminal, such as echo."""
    try:
        import termios
    except ModuleNotFoundError:  # Windows
        return None
    return termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None


def _set_modes(modes: list[Any] | None) -> None:
    if modes:
        import termios

        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


_GAP = 2
_LEAST = 16
"""Characters between two columns of a table, and the least width of a column that is cut."""
_SENTENCE = re.compile(r".*?(?:(?<!e\.g)(?<!i\.e)(?<!etc)[.!?](?=\s)|[。！？])")


def is_for_programs(asked: bool | None) -> bool:
    """Whether to print JSON: as asked, or if stdout is no terminal."""
    return not sys.stdout.isatty() if asked is None else asked


def put_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print JSON on stdout. On a terminal, control characters in it are escaped, as JSON allows."""
    text = json.dumps(value, ensure_ascii=False, indent=None if in_one_line else 2)
    _write(escaped(text, keep="\n") if sys.stdout.isatty() else text)


def put_text(text: str) -> None:
    """Print text on stdout. On a terminal, control characters in it are escaped."""
    _write(printable(text) if sys.stdout.isatty() else text)


_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def put_diff(text: str) -> None:
    """Print a unified diff on stdout, in colours on a terminal."""
    if not sys.stdout.isatty():
        if text:
            put_text(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in printable(text).splitlines():
        console.print(Text(line, _COLOURS.get(line[0], "")), soft_wrap=True)


def first_sentence(text: str) -> str:
    """The first sentence of a description, in one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    found = _SENTENCE.match(paragraph)
    return found[0] if found else paragraph


def put_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, cut: str = "") -> None:
    """Print a table on stdout, without columns that are empty; the column to `cut` gets the rest of the width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    filled = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index in filled:
        is_cut = columns[index] == cut
        room = _room_for(index, filled, [columns, *cells], console.width) if is_cut else None
        table.add_column(
            columns[index],
            overflow="ellipsis" if is_cut else "fold",
            no_wrap=is_cut or index == 0,
            max_width=room,
        )
    for row in cells:
        table.add_row(*(Text(row[index]) for index in filled))
    console.print(table)


def _room_for(index: int, filled: Sequence[int], rows: Sequence[Sequence[str]], width: int) -> int:
    from rich.cells import cell_len

    others = [max(cell_len(row[other]) for row in rows) + _GAP for other in filled if other != index]
    return max(_LEAST, width - sum(others) - _GAP)


def _write(text: str) -> None:
    """Write, and escape lone surrogates, which JSON allows and UTF-8 does not."""
    line = text if text.endswith("\n") else f"{text}\n"
    encoding = sys.stdout.encoding
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
