"""What a command answers, on stdout: a table for a person, JSON for a program, text for both."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from a2c_smcp.cli.terminal import printable
from a2c_smcp.protocol.visible import escaped

__all__ = ["first_sentence", "is_for_programs", "put_json", "put_table", "put_text"]

_GAP = 2
_LEAST = 16
"""Columns of a table: between two of them, and what is always left of one that is cut."""
_SENTENCE = re.compile(r".*?(?:(?<!e\.g)(?<!i\.e)(?<!etc)[.!?](?=\s)|[。！？])")


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


def first_sentence(text: str) -> str:
    """Of what a tool says of itself, in one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    found = _SENTENCE.match(paragraph)
    return found[0] if found else paragraph


def put_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, cut: str = "") -> None:
    """Columns that are empty in all rows are left out; the one to `cut` has what the others leave of the width."""
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
    """A lone surrogate, which JSON allows and UTF-8 does not, is written escaped."""
    line = text if text.endswith("\n") else f"{text}\n"
    encoding = sys.stdout.encoding
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
