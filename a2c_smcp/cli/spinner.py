"""A line on the terminal that turns while somebody waits, with the time it has taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from a2c_smcp.cli.terminal import Terminal, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["turning"]

_MARGIN = 4
"""Room for the `^C` that a terminal writes after the last line: a frame that it wraps is not erased in full."""


@contextmanager
def turning(terminal: Terminal, what: str, hint: str = "") -> Iterator[None]:
    """Nothing is shown where stderr is no terminal."""
    if not terminal.console:
        yield
        return
    terminal.put_below(_drawing(terminal.console, what, hint))
    try:
        yield
    finally:
        terminal.take_away()


def _drawing(console: Console, what: str, hint: str) -> Callable[[], RenderableType]:
    from rich.constrain import Constrain
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    began, spinner = time.monotonic(), Spinner("line" if console.options.ascii_only else "dots", style="cyan")
    label = Text(printable(what), no_wrap=True, overflow="ellipsis")

    def draw() -> RenderableType:
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(spinner, label, Text(f"{time.monotonic() - began:.1f} s", "bold"), Text(hint, "dim", no_wrap=True))
        return Constrain(line, console.width - _MARGIN)

    return draw
