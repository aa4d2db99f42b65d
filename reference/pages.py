"""The pages of the reference, and the function that generates each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reference import api, commands, configuration, events, failures, mcp_features, metrics, modules

__all__ = ["FOLDER", "PAGES"]

FOLDER = Path(__file__).parents[1] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "events.md": events.page,
    "mcp.md": mcp_features.page,
    "cli.md": commands.page,
    "errors.md": failures.page,
    "metrics.md": metrics.page,
    "configuration.md": configuration.page,
    "api.md": api.page,
    "modules.md": modules.page,
}
