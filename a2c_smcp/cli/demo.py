"""`a2c-smcp demo`: the whole story on this machine, told as it happens."""

from __future__ import annotations

import typer

__all__ = ["demo"]


def demo() -> None:
    """Show it."""
    typer.echo("soon")
