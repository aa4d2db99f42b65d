"""The page of events, out of the table that the Server itself reads."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from a2c_smcp import smcp
from a2c_smcp.protocol.events import EVENTS, OLDER_FIELDS, Action, Event
from reference import markdown
from reference.markdown import code, table
from reference.types import words

__all__ = ["page"]

_ACTIONS = {
    Action.JOIN: "takes a seat in an office; the others there hear of it",
    Action.LEAVE: "gives the seat up; the others there hear of it",
    Action.LIST: "is answered by the Server with everybody in the office",
    Action.CANCEL: "ends a call: the computer that runs it hears of it",
    Action.BROADCAST: "is told to the others in the office",
    Action.FORWARD: "goes to the computer it names, whose answer comes back as it is",
}
_NEWER = """\
Two kinds of events are carried even if they are newer than this table: `client:<x>` from an agent goes to the computer
that it names, and `server:update_<x>` from a computer is told to its office as `notify:update_<x>`. Everything else is
refused with 400."""
_INTRODUCTION = """\
Socket.IO on the namespace `/smcp`. How to connect, what is answered and what an error looks like is in
[the protocol](../protocol.md); what the codes mean is in [errors](errors.md)."""


def page() -> str:
    rows = [(code(row.name), " or ".join(row.senders), _ACTIONS[row.action], code(row.notice or "")) for row in EVENTS]
    return markdown.page(
        "Events",
        _INTRODUCTION,
        table(["event", "sent by", "what it does", "notice"], rows),
        _NEWER,
        "## What each one carries",
        *(_section(row) for row in EVENTS),
        "## Older names",
        "They are understood, and never sent first.",
        table(["older", "means"], _older()),
        "## Structures",
        "Every structure of the protocol, under its name in `a2c_smcp.smcp`.",
        *(f"### {name}\n\n{_fields(shape, shape.__required_keys__)}" for name, shape in _structures()),
    )


def _section(row: Event) -> str:
    """An event that carries what another does has the same fields; they are printed all the same."""
    extra = sorted(row.checked - frozenset(row.request.__annotations__ if row.request else ()))
    also = f"\n\nMay also have {', '.join(map(code, extra))}." if extra else ""
    return f"### {row.name}\n\n{_fields(row.request, row.required)}{also}"


def _fields(shape: Any, required: frozenset[str]) -> str:
    schema = TypeAdapter(shape).json_schema(ref_template="#/{model}")
    fields = schema.get("properties") or schema["$defs"][shape.__name__]["properties"]
    rows = [(code(name), _words(field), "yes" if name in required else "") for name, field in fields.items()]
    return table(["field", "type", "required"], rows)


def _words(field: dict[str, Any]) -> str:
    nullable = any(choice.get("type") == "null" for choice in field.get("anyOf", ()))
    return words(field) + (" or null" if nullable else "")


def _older() -> list[tuple[str, str]]:
    names = [(row.older, row.name) for row in EVENTS if row.older]
    names += [(row.older_notice, row.notice) for row in EVENTS if row.older_notice and row.notice]
    names += [(f"field {older}", f"field {name}") for name, older in OLDER_FIELDS.items()]
    return [(code(older), code(name)) for older, name in names]


def _structures() -> list[tuple[str, Any]]:
    found = [(name, getattr(smcp, name)) for name in sorted(smcp.__all__)]
    return [(name, shape) for name, shape in found if is_typeddict(shape)]
