"""Everything that can be typed, and the names that it can be about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.answering import ANSWERING
from a2c_smcp.cli.prompt.calling import CALLING, schema_of
from a2c_smcp.cli.prompt.completion import Known
from a2c_smcp.cli.prompt.computer_commands import OWNING
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.language import Command, WrongUse
from a2c_smcp.cli.prompt.looking import LOOKING
from a2c_smcp.cli.prompt.office_commands import MOVING

__all__ = ["COMMANDS", "known_to"]


async def _help(console: Console, arguments: list[str]) -> None:
    console.draw(views.help_on(COMMANDS))
    console.say(
        "Tab completes; Ctrl-C clears the line, or ends what is going on, or stops this program, as Ctrl-D does"
    )


COMMANDS: tuple[Command, ...] = (
    *LOOKING,
    *CALLING,
    *OWNING,
    *ANSWERING,
    *MOVING,
    Command("help", "", "Show this list.", _help),
)


def known_to(console: Console) -> Known:
    """What completion may offer at this console."""
    computer = console.computer

    def schema(tool: str) -> Mapping[str, Any]:
        try:
            return schema_of(console, tool)
        except WrongUse:
            return {}

    return Known(
        commands=COMMANDS,
        names={
            "SERVER": lambda: {name: each.state for name, each in computer.status().items()},
            "TOOL": lambda: {each["name"]: each["bundle_id"] for each in computer.get_tools()},
            "INPUT": lambda: {each.id: each.definition.description or "" for each in computer.inputs.list()},
            "AGENT": lambda: {each.agent: "" for each in console.grants},
            "REQUEST": lambda: {f"#{each.number}": each.request.name for each in console.requests},
            "keep": lambda: {"keep": "beyond the end of this program"},
        },
        schema=schema,
    )
