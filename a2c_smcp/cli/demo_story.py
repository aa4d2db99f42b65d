"""A story told while it happens: numbered lines, and at the end what it has proven."""

from __future__ import annotations

import asyncio
import textwrap
import time
from shutil import get_terminal_size

import typer

from a2c_smcp.cli.results import put_table

__all__ = ["DemoFailed", "Story", "expect"]

_COLOURS = {
    "server": "magenta",
    "stranger": "red",
    "computer": "green",
    "owner": "yellow",
    "agent": "cyan",
    "node": "magenta",
    "front": "yellow",
    "store": "blue",
}
_MARGIN = 25


class DemoFailed(Exception):
    """Something that the demo claims did not happen."""


class Story:
    """Who does what, and how long it took since the line before. A pause gives a reader time for the next."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._lines = 0
        self._proven: list[tuple[str, float]] = []
        self._since_proof = 0.0
        self.began = self._last = time.perf_counter()

    async def tell(self, who: str, what: str, proves: str = "") -> None:
        now = time.perf_counter()
        took = (now - self._last) * 1000
        self._lines += 1
        margin = typer.style(f"{self._lines:3} {took:6.0f} ms", dim=True)
        typer.echo(f"{margin}  {typer.style(f'{who:<9}', fg=_COLOURS[who])} {_wrapped(what)}")
        self._since_proof += took
        if proves:
            self._proven.append((proves, self._since_proof))
            self._since_proof = 0.0
        await asyncio.sleep(self._pause * (1 + len(what) / 80))
        self._last = time.perf_counter()

    def chapter(self, title: str) -> None:
        typer.secho(f"\n{title}", bold=True)
        self._since_proof = 0.0

    def sum_up(self) -> None:
        typer.secho("\nWhat has been proven\n", bold=True)
        put_table(["", "in"], [(f"✓ {what}", f"{took:.0f} ms") for what, took in self._proven])


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise DemoFailed(f"{found!r} came back in place of {wanted!r}")


def _wrapped(text: str) -> str:
    width = max(get_terminal_size().columns - _MARGIN, 40)
    return f"\n{' ' * _MARGIN}".join(textwrap.wrap(text, width) or [""])
