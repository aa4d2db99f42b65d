"""The owner's terminal: what he reads, logs too, and the questions he answers. Nothing tears a question.

Without a terminal it is stderr, and nobody is asked.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from a2c_smcp.protocol.visible import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["Terminal", "printable"]

_HELD = 1000
_FRAMES_PER_SECOND = 8


class Terminal:
    """A display may stand below the lines; it is taken away while the owner is asked, and what is shown waits."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self.console = _console() if self._is_terminal else None
        self.can_ask = sys.stdin.isatty() and sys.stderr.isatty()
        self._render: Callable[[], RenderableType] | None = None
        self._live: Live | None = None
        self._held: deque[Callable[[], None]] | None = None
        self._show: Callable[[Callable[[], None]], None] | None = None
        self._lock = RLock()

    def show(self, line: str, style: str = "") -> None:
        if not (self.console and style):
            self.write(f"{line}\n")
            return
        from rich.text import Text

        self.print(Text(printable(line), style), soft_wrap=True)

    def print(self, what: RenderableType, **how: Any) -> None:
        """What has colours, where there is a console."""
        assert self.console
        self._do(partial(self.console.print, what, **how))

    def write(self, text: str) -> None:
        """Whole lines: also what the handlers of logs call."""
        self._do(partial(self._write, text))

    def flush(self) -> None:
        sys.stderr.flush()

    def put_below(self, render: Callable[[], RenderableType]) -> None:
        """Shows what is rendered, again and again, below everything else."""
        with self._lock:
            self._render = render
            self._raise()

    def take_away(self) -> None:
        with self._lock:
            self._lower()
            self._render = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """The terminal is the question's alone, and left as it was found, also if the question is given up."""
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
        """Meanwhile the screen belongs to somebody who does what writes to it in his own time."""
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
                action()
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
    """What would move the cursor, change colours or hide text is escaped: the words may be anybody's."""
    return escaped(text, keep="\n\t")


def _console() -> Console | None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return console if console.is_interactive else None


def _modes() -> list[Any] | None:
    """How the terminal is set: whether it echoes, above all."""
    try:
        import termios
    except ModuleNotFoundError:  # Windows
        return None
    return termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None


def _set_modes(modes: list[Any] | None) -> None:
    if modes:
        import termios

        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
