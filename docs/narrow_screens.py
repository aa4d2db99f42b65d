"""A MkDocs hook: tables and code that can be read on narrow screens. The rules for them are in `assets/site.css`."""

from __future__ import annotations

import re
from html import escape, unescape

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

__all__ = ["on_post_page"]

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
_CODE = re.compile(r"<code>([^<\n]+)</code>")
_TAG = re.compile(r"<[^>]+>")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_NUMBER = re.compile(r"[-–]?\d[\d.,]*(?: \S{1,3})?")
_COMMANDS = re.compile(r'<div class="language-sh highlight">.*?</div>', re.DOTALL)
_HYPHENATED = re.compile(r"(?<![\w./-])[\w./]*-[\w./-]+(?=[^<>]*(?:<|$))")
_BREAKS = re.compile(r"(?<=[_/.:=(,])(?=[A-Za-z{\"'])")

_FITS = 20
"""A name of so many characters has room even in a narrow column, so it is not broken."""
_PROSE = 40
"""A cell of more characters has sentences, which need a wide column."""


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Called with the page as HTML, when the search has read its text already."""
    output = _TABLE.sub(_table, output)
    output = _CODE.sub(_name, output)
    return _COMMANDS.sub(lambda block: _HYPHENATED.sub(_word, block[0]), output)


def _name(found: re.Match[str]) -> str:
    return f"<code>{_HYPHENATED.sub(_word, found[1])}</code>"


def _word(found: re.Match[str]) -> str:
    """Options and names in commands."""
    return f'<span class="unbroken">{found[0]}</span>' if len(found[0]) <= _FITS else found[0]


def _table(found: re.Match[str]) -> str:
    """Each cell gets the heading of its column. A table with sentences beside other columns becomes a list of rows."""
    table = found[0]
    headings = [_text(heading) for heading in _HEAD.findall(table)]
    rows = _ROW.sub(lambda row: _row(row[0], headings), table)
    return rows.replace("<table>", "<table data-stacked>", 1) if _is_stacked(table) else rows


def _is_stacked(table: str) -> bool:
    rows = [[_text(cell) for _, cell in _CELL.findall(row)] for row in _ROW.findall(table)]
    cells = [cell for row in rows for cell in row[1:]]
    numbers = sum(1 for cell in cells if _NUMBER.fullmatch(cell))
    has_prose = any(_width(cell) > _PROSE for cell in cells)
    columns = max(map(len, rows))
    return (columns > 4 or (columns > 2 and has_prose)) and numbers < len(cells) / 2


def _row(row: str, headings: list[str]) -> str:
    labels = iter(headings)

    def cell(found: re.Match[str]) -> str:
        inside = _DATE.sub(r'<span class="unbroken">\g<0></span>', _CODE.sub(_breakable, found[2]))
        return f'<td{found[1]} data-label="{escape(next(labels, ""))}">{inside}</td>'

    return _CELL.sub(cell, row)


def _breakable(found: re.Match[str]) -> str:
    """A long name may be broken after its separators, and not inside a word."""
    return f"<code>{_BREAKS.sub('<wbr>', found[1])}</code>" if len(unescape(found[1])) > _FITS else found[0]


def _width(text: str) -> int:
    """A Chinese character is as wide as two letters."""
    return sum(2 if sign > "\u2e80" else 1 for sign in text)


def _text(html: str) -> str:
    return unescape(_TAG.sub("", html)).strip()
