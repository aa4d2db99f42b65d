"""Live output on the terminal: MCP servers that start, and work that goes on, with a bar if it says how far it is.

Where stderr is no terminal, a change of a server's state is one line, and the spinner shows nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from a2c_smcp.cli.errors import with_mcp_server_remedy
from a2c_smcp.cli.terminal import Terminal, printable

if TYPE_CHECKING:  # agents use the spinner, and need no MCP
    from rich.console import Console, RenderableType

    from a2c_smcp.mcp_host.config.servers import MCPServerConfig
    from a2c_smcp.mcp_host.status import State

__all__ = ["STATE_COLOURS", "Meter", "ServerProgress", "spinning"]

STATE_COLOURS: dict[State | Literal["waiting"], str] = {
    "ready": "green",
    "starting": "cyan",
    "waiting": "cyan",
    "backoff": "yellow",
    "auth_required": "yellow",
    "failed": "red",
    "stopped": "bright_black",
    "disabled": "bright_black",
}
"""A summary counts the states in this order."""

_MARGIN = 4
"""The terminal prints `^C` after the last line.

These free columns stop that line from wrapping, because a wrapped line is not erased.
"""


@dataclass(slots=True)
class _ServerLine:
    """What is shown of one server. `settled`: when its first start succeeded or failed."""

    state: State | Literal["waiting"]
    reason: str = ""
    tools: int = 0
    began: float | None = None
    settled: float | None = None

    def become(self, state: State, reason: str, tools: int) -> None:
        self.state, self.reason, self.tools = state, reason, tools
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        if not self.is_under_way and self.settled is None:
            self.settled = now

    @property
    def is_under_way(self) -> bool:
        return self.state in ("waiting", "starting")

    @property
    def elapsed(self) -> str:
        if self.began is None:
            return ""
        return f"{(self.settled or time.monotonic()) - self.began:.1f} s"

    @property
    def detail(self) -> str:
        tools = f"{self.tools} tool{'' if self.tools == 1 else 's'}"
        return tools if self.state == "ready" else printable(with_mcp_server_remedy(self.reason))


class ServerProgress:
    """Shows the states of MCP servers. Call it with each change of a state.

    On a terminal, servers that start have a line each, redrawn until all of them have settled or `end` is called;
    after that, and elsewhere, a change is printed as one line. `ended` is set when nothing is redrawn.
    """

    def __init__(self, terminal: Terminal, tools: Callable[[str], int]) -> None:
        self._terminal = terminal
        self._tools = tools
        self._servers: dict[str, _ServerLine] = {}
        self.ended = asyncio.Event()

    @contextmanager
    def shown(self, configs: Iterable[MCPServerConfig]) -> Iterator[None]:
        """Show the start of these servers, if there is a terminal."""
        if self._terminal.console:
            self._servers = {each.name: _ServerLine("disabled" if each.disabled else "waiting") for each in configs}
        if self._servers:
            self._terminal.put_below(self._new_display())
            self._end_if_settled()
        else:
            self.end()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Replace the moving lines by a table of the last states."""
        if self._servers:
            self._terminal.take_away()
            self._terminal.print(_listing(self._servers))
            self._servers = {}
        self.ended.set()

    def __call__(self, name: str, state: State, reason: str) -> None:
        if not self._servers:
            line = f"{name}: {state}{f' ({with_mcp_server_remedy(reason)})' if reason else ''}"
            self._terminal.show(line, event="server", server=name, state=state, reason=reason or None)
            return
        server = self._servers.setdefault(name, _ServerLine("waiting"))
        server.become(state, reason, self._tools(name) if state == "ready" else 0)
        self._end_if_settled()

    def _end_if_settled(self) -> None:
        if all(server.settled or server.state == "disabled" for server in self._servers.values()):
            self.end()

    def _new_display(self) -> Callable[[], RenderableType]:
        """The function that draws a frame; rich calls it from its own thread.

        All servers share one line if they are more than the terminal has lines.
        """
        from rich.constrain import Constrain
        from rich.spinner import Spinner

        console = self._terminal.console
        assert console
        spinner = Spinner("line" if console.options.ascii_only else "dots")

        def draw() -> RenderableType:
            servers = dict(self._servers)
            frame = _summary(servers, spinner) if len(servers) >= console.height else _listing(servers, spinner)
            return Constrain(frame, console.width - _MARGIN)

        return draw


def _listing(servers: dict[str, _ServerLine], spinner: RenderableType | None = None) -> RenderableType:
    """A row for each server. With a spinner details are cut to one line, without it they are complete."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(overflow="fold")
    for name, server in servers.items():
        detail = Text(server.detail)
        if spinner:
            detail = Text(" ".join(server.detail.split()), no_wrap=True, overflow="ellipsis")
        last = spinner if spinner and server.is_under_way else detail
        table.add_row(Text(printable(name)), Text(server.state, STATE_COLOURS[server.state]), server.elapsed, last)
    return table


def _summary(servers: dict[str, _ServerLine], spinner: RenderableType) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    counts = Counter(server.state for server in servers.values())
    states = [Text(f"{counts[state]} {state}", colour) for state, colour in STATE_COLOURS.items() if counts[state]]
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(Text(f"{len(servers)} servers:"), Text(", ").join(states), spinner)
    return line


_MB = 1_000_000


class Meter:
    """How far the work has come, as it says itself. Its message is written by others."""

    def __init__(self) -> None:
        self.share: float | None = None
        """From 0 to 1; `None` if it does not say how much there is to do."""
        self.words = ""

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.share = min(max(progress / total, 0.0), 1.0) if total and total > 0 else None
        counted = f"{progress:g} of {total:g}" if total and total > 0 else f"{progress:g}"
        said = " ".join(str(message or "").split())
        self.words = printable(f"{counted}, {said}" if said else counted)

    def report_bytes(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """As `report`, of bytes that are transferred."""
        self.share = min(done / total, 1.0) if total else None
        self.words = f"{done / _MB:.1f} of {total / _MB:.1f} MB" if total else f"{done / _MB:.1f} MB"


@contextmanager
def spinning(terminal: Terminal, what: str, hint: str = "") -> Iterator[Meter]:
    """Show a spinner, the text, what the meter says, the seconds elapsed and the hint; nothing without a terminal."""
    meter = Meter()
    if not terminal.console:
        yield meter
        return
    terminal.put_below(_drawing(terminal.console, what, hint, meter))
    try:
        yield meter
    finally:
        terminal.take_away()


_BAR, _WIDE = 20, 100
"""Columns of a bar, and of a terminal with room for a message and a hint."""


def _drawing(console: Console, what: str, hint: str, meter: Meter) -> Callable[[], RenderableType]:
    from rich.constrain import Constrain
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    began, spinner = time.monotonic(), Spinner("line" if console.options.ascii_only else "dots", style="cyan")
    label = Text(printable(what), no_wrap=True, overflow="ellipsis")

    def draw() -> RenderableType:
        columns: list[RenderableType] = [spinner, label]
        if meter.share is not None:
            columns += [ProgressBar(1.0, meter.share, width=_BAR), Text(f"{meter.share:.0%}", "bold")]
        words = Text(meter.words, "cyan", no_wrap=True, overflow="ellipsis")
        columns += [words] if meter.words else []
        columns.append(Text(f"{time.monotonic() - began:.1f} s", "bold"))
        columns += [Text(hint, "dim")] if console.width >= _WIDE or not meter.words else []
        line = Table.grid(padding=(0, 1, 0, 0))
        for each in columns:
            line.add_column(no_wrap=each is not words)  # what the work says is the first to be cut
        line.add_row(*columns)
        return Constrain(line, console.width - _MARGIN)

    return draw
