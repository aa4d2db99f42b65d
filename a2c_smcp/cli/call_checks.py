"""Options of the owner about what passes: tools that change their definition, and scanners of calls."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.options import option
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.errors import ConfigError

__all__ = ["Pin", "PinOption", "ScannerOption", "use_scanners"]


class Pin(StrEnum):
    """What happens when a tool changes its definition, for servers whose entry has no `pin`."""

    off = "off"
    warn = "warn"
    ask = "ask"


PinOption = Annotated[
    Pin | None,
    option(
        None,
        "--pin",
        "When a tool changes its definition: nothing, a warning, or your approval again.",
        show_default="ask, for tools that ask; else warn",
    ),
]
ScannerOption = Annotated[
    list[str] | None,
    option(
        None,
        "--scanner",
        "Checks each call: module:function, file.py:function or a command; repeat for more.",
        show_default=False,
        metavar="SCANNER",
    ),
]


def use_scanners(computer: Computer, given: list[str] | None, configuration: Configuration) -> None:
    """Use the scanners of the command line, then those of the files. To import one runs it. Raises `Failed`."""
    try:
        computer.scanners.give(given or ())
        computer.scanners.configure(configuration.scanners)
    except ConfigError as error:
        raise Failed(error.message, "Correct or leave out the scanner.") from None
