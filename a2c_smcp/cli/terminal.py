"""The output of commands: results on stdout (`put_…`), everything else on stderr, through a `Terminal`.

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
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from getpass import getpass
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import mcp_server_remedy, with_remedy
from a2c_smcp.loops import in_thread
from a2c_smcp.protocol.escaping import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from a2c_smcp.agent import CallStatus
    from a2c_smcp.mcp_host.config.servers import MCPServerConfig
    from a2c_smcp.mcp_host.status import ServerStatus, State

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
        self.can_ask = logs.is_terminal(sys.stdin) and sys.stderr.isatty()
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
            if modes:
                import termios

                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
            with self._lock:
                held, self._held = self._held or (), None
                for action in held:
                    self._do(action)
                self._raise()

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


_GAP = 2
_LEAST = 16
"""Characters between two columns of a table, and the least width of a column that is cut."""
_SENTENCE = re.compile(r".*?(?:(?<!e\.g)(?<!i\.e)(?<!etc)[.!?](?=\s)|[。！？])")


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
    sentence = _SENTENCE.match(paragraph)
    return sentence[0] if sentence else paragraph


def put_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, cut: str = "") -> None:
    """Print a table on stdout, without columns that are empty. On a terminal the column to `cut` gets what is left."""
    from rich.cells import cell_len, set_cell_size

    lines = [[*columns], *([escaped(cell) for cell in row] for row in rows)]
    filled = [index for index in range(len(columns)) if any(row[index] for row in lines[1:])]
    lines = [[row[index] for index in filled] for row in lines]
    widths = [max(map(cell_len, column)) + _GAP for column in zip(*lines, strict=True)]
    if sys.stdout.isatty():
        _put_grid(lines, widths, cut)
    else:
        put_text("\n".join("".join(map(set_cell_size, row, widths)).rstrip() for row in lines))


def _put_grid(lines: Sequence[Sequence[str]], widths: Sequence[int], cut: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index, name in enumerate(lines[0]):
        is_cut = name == cut
        room = max(_LEAST, console.width - sum(widths) + widths[index] - _GAP) if is_cut else None
        table.add_column(name, overflow="ellipsis" if is_cut else "fold", no_wrap=is_cut or index == 0, max_width=room)
    for row in lines[1:]:
        table.add_row(*map(Text, row))
    console.print(table)


def _write(text: str) -> None:
    """Write, and escape lone surrogates, which JSON allows and UTF-8 does not."""
    line = text if text.endswith("\n") else f"{text}\n"
    encoding = sys.stdout.encoding
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


# Conversations with the person at the terminal: one at a time, and no other output until it has ended.
#
# A conversation is a function that is given `Read` and may read any number of answers. What it writes itself goes
# straight to stderr; the `Terminal` holds back other output meanwhile. While a prompt is open, its editor
# reads the answers; otherwise lines are read as the terminal gives them, or by the reader that was given.

T = TypeVar("T")
Accept = Callable[[str], T]
"""Converts an answer, or raises `ValueError` with a message for the person, who is then asked again."""
Read: TypeAlias = Callable[[str, bool], Awaitable[str]]
"""Shows a text and reads a line, hidden or not. Raises `EOFError` for Ctrl-D, `Interrupted` where Ctrl-C is a key."""
Converse: TypeAlias = Callable[[Callable[[Read], Awaitable[Any]]], Awaitable[Any]]
"""Lends the terminal to a conversation, and returns what that returns."""


class Interrupted(EOFError):
    """Ctrl-C; its text is what was on the line. A question that gets it has no answer, as with Ctrl-D."""


class Conversations:
    """Holds one conversation at a time. Ctrl-D gives no answer (`None`), which is not an error."""

    def __init__(self, terminal: Terminal, read: Read | None = None) -> None:
        self._terminal = terminal
        self._read = read or read_line
        self._editor: Converse | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def held_by(self, editor: Converse) -> AsyncIterator[None]:
        """Read answers through the editor of the prompt, after an open conversation has ended."""
        async with self._turn:
            self._editor = editor
        try:
            yield
        finally:
            self._editor = None

    async def converse(self, conversation: Callable[[Read], Awaitable[T]]) -> T:
        """Wait for the conversation's turn, and return what it does. Raises `EOFError` if the prompt's line is left."""
        async with self._turn:
            with self._terminal.asking():
                result: T = await (self._editor(conversation) if self._editor else conversation(self._read))
                return result

    async def ask(self, text: str, accept: Accept[T], *, hidden: bool = False) -> T | None:
        """Ask one question, and return the converted answer; `None` if there is none."""
        try:
            return await self.converse(partial(_accepted, text=printable(text), accept=accept, hidden=hidden))
        except EOFError:
            return None


async def _accepted(read: Read, *, text: str, accept: Accept[T], hidden: bool) -> T:
    while True:
        try:
            return accept(await read(text, hidden))
        except ValueError as problem:
            _tell(str(problem))


async def read_line(text: str, hidden: bool) -> str:
    try:
        line: str = await in_thread(_read_hidden if hidden else _read, text)
    except EOFError:
        _tell("")
        raise
    return line


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _read_hidden(text: str) -> str:
    logs.write_the_rest()  # getpass writes to the terminal itself: what is still to be erased would erase the question
    return getpass(text)


def _read(text: str) -> str:
    """Read a line of stdin. `input` would lock stdin, and a program that ends meanwhile would crash on the lock."""
    sys.stderr.write(text)
    sys.stderr.flush()
    line: bytes = sys.stdin.buffer.raw.read(65536)  # type: ignore[union-attr]  # of a console of Windows: in UTF-8, whatever its code page is
    if not line:
        raise EOFError
    return line.decode(sys.stdin.encoding, "replace").rstrip("\r\n")


def yes_or_no(answer: str) -> bool:
    known = {"y": True, "yes": True, "n": False, "no": False, "": False}
    word = answer.strip().lower()
    if word not in known:
        raise ValueError("answer y or n")
    return known[word]


# Live output on the terminal: MCP servers that start, and work that goes on, with a bar if it says how far it is.
#
# Where stderr is no terminal, a change of a server's state is one line, and the spinner shows nothing.

STATE_COLOURS: dict[State | Literal["waiting"], str] = {
    "ready": "green",
    "starting": "cyan",
    "waiting": "cyan",
    "backoff": "yellow",
    "auth_required": "yellow",
    "failed": "red",
    **dict.fromkeys(("asleep", "stopped", "disabled"), "bright_black"),
}
"""A summary counts the states in this order."""

_MARGIN = 4
"""Free columns for `^C` after the last line: a line that wraps is not erased."""


@dataclass(slots=True)
class _ServerLine:
    """One server on the display. `settled`: when its first start succeeded or failed."""

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
        return tools if self.state in ("ready", "asleep") else printable(self.reason)


class ServerProgress:
    """Shows the states of MCP servers. Call it with each change of a state.

    On a terminal, servers that start have a line each, redrawn until all of them have settled or `end` is called;
    after that, and elsewhere, a change is printed as one line. `ended` is set when nothing is redrawn.
    """

    def __init__(self, terminal: Terminal, status: Callable[[str], ServerStatus | None]) -> None:
        self._terminal = terminal
        self._status = status
        self._servers: dict[str, _ServerLine] = {}
        self.ended = asyncio.Event()

    @contextmanager
    def shown(self, configs: Iterable[MCPServerConfig]) -> Iterator[None]:
        """Show the start of these servers, if there is a terminal."""
        if self._terminal.console:
            self._servers = {
                config.name: _ServerLine("disabled" if config.disabled else "waiting") for config in configs
            }
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
        status = self._status(name)
        advice = with_remedy(reason, mcp_server_remedy(status.fault)) if status else reason
        if not self._servers:
            line = f"{name}: {state}{f' ({advice})' if reason else ''}"
            self._terminal.show(line, event="server", server=name, state=state, reason=reason or None)
            return
        server = self._servers.setdefault(name, _ServerLine("waiting"))
        server.become(state, advice, status.tools if status else 0)
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
    """The progress that the work itself reports. Its message is written by others."""

    def __init__(self) -> None:
        self.share: float | None = None
        """From 0 to 1; `None` if it does not say how much there is to do."""
        self.words = ""
        self.has_bytes = False
        self.waits_since: float | None = None

    def become(self, status: CallStatus) -> None:
        """As `report`, of a state of the work. Nothing replaces a report but that it waits."""
        if status.state != "running" or self.waits_since is not None or not self.words:
            self.words = printable(" ".join(str(status).split()))
            self.waits_since = None if status.state == "running" else time.monotonic()

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.share = min(max(progress / total, 0.0), 1.0) if total and total > 0 else None
        counted = f"{progress:g} of {total:g}" if total and total > 0 else f"{progress:g}"
        text = " ".join(str(message or "").split())
        self.words, self.waits_since = printable(f"{counted}, {text}" if text else counted), None

    def report_bytes(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """As `report`, of bytes that are transferred."""
        self.has_bytes = True
        self.share = min(done / total, 1.0) if total else None
        self.words = f"{done / _MB:.1f} of {total / _MB:.1f} MB" if total else f"{done / _MB:.1f} MB"


@contextmanager
def spinning(terminal: Terminal, what: str, hint: str = "") -> Iterator[Meter]:
    """Show a spinner, the text, the meter, the seconds elapsed and the hint; nothing without a terminal."""
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
        waited = "" if meter.waits_since is None else f" ({time.monotonic() - meter.waits_since:.0f} s)"
        said = meter.words + waited
        words = Text(said, "cyan", no_wrap=True, overflow="ellipsis")
        columns += [words] if said else []
        columns.append(Text(f"{time.monotonic() - began:.1f} s", "bold"))
        columns += [Text(hint, "dim")] if console.width >= _WIDE or not said else []
        line = Table.grid(padding=(0, 1, 0, 0))
        for column in columns:
            line.add_column(no_wrap=column is not words)  # the message of the work is the first to be cut
        line.add_row(*columns)
        return Constrain(line, console.width - _MARGIN)

    return draw
