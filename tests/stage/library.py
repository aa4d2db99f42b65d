"""A computer with the example server `library`, whose calls are all approved."""

from __future__ import annotations

from typing import Any

from a2c_smcp.computer.computer import Computer
from tests.stage.guides import example_server

__all__ = ["CATALOGUE", "computer_with_library"]

CATALOGUE = "library://catalogue"


def computer_with_library(*others: dict[str, Any], name: str = "library") -> Computer:
    computer = Computer("laptop", approve=lambda request: True)
    for config in ({"name": name, **example_server("library")}, *others):
        computer.add_server(config)
    return computer
