"""What a command answers, on stdout: a table for a person, JSON for a program, text for both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from a2c_smcp.cli.terminal import printable
from a2c_smcp.protocol.visible import escaped

__all__ = ["is_for_programs", "put_json", "put_table", "put_text"]


def is_for_programs(asked: bool | None) -> bool:
    """Whether JSON is wanted: as asked, otherwise where stdout is no terminal."""
    return not sys.stdout.isatty() if asked is None else asked


def put_json(value: Any, *, in_one_line: bool = False) -> None:
    """On a terminal, what it would obey, or what would hide text, is escaped: it is the same JSON."""
    text = json.dumps(value, ensure_ascii=False, indent=None if in_one_line else 2)
    _write(escaped(text, keep="\n") if sys.stdout.isatty() else text)


def put_text(text: str) -> None:
    """As it is, but nothing that a terminal would obey."""
    _write(printable(text) if sys.stdout.isatty() else text)


def put_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns that are empty in all rows are left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    filled = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index in filled:
        table.add_column(columns[index], overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(printable(row[index])) for index in filled))
    Console(highlight=False).print(table)


def _write(text: str) -> None:
    """A lone surrogate, which JSON allows and UTF-8 does not, is written escaped."""
    line = text if text.endswith("\n") else f"{text}\n"
    encoding = sys.stdout.encoding
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
