"""The Markdown elements that the reference uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["THIS_MACHINE", "code", "fence", "page", "table"]

THIS_MACHINE = "name of this machine"
"""Replaces a default that differs between machines."""


def page(title: str, *parts: str) -> str:
    """A page with a comment that it is generated and must not be edited."""
    made = "<!-- Generated from the code by `make reference`: do not edit. -->"
    return "\n\n".join([f"# {title}", made, *(part.strip("\n") for part in parts if part)]) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns that are empty in all rows are left out."""
    rows = list(rows)
    kept = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    lines = [[columns[index] for index in kept], ["---"] * len(kept), *([row[index] for index in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def fence(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _cell(text: str) -> str:
    """A bar would end the cell, and readers of Markdown do not agree on how to escape one in code."""
    return " ".join(text.split()).replace(" | ", " or ").replace("|", "/")
