"""The page of events, generated from the table that the Server uses."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from a2c_smcp import mcp_events, smcp
from a2c_smcp.protocol import operations
from a2c_smcp.protocol.events import EVENTS, OLDER_FIELDS, Action, EventSpec
from reference import markdown
from reference.markdown import code, table
from reference.types import words

__all__ = ["page"]

_ACTIONS = {
    Action.JOIN: "joins an office; the other members are notified",
    Action.LEAVE: "leaves an office; the other members are notified",
    Action.LIST: "returns all members of the office",
    Action.CANCEL: "cancels a call: the computer that runs it is notified",
    Action.BROADCAST: "is sent to the other members of the office as a notice",
    Action.TELL: "is sent as a notice to the agent that it names, which must be in the computer's office",
    Action.FORWARD: "is relayed to the computer that it names; the answer is relayed unchanged",
}
_NEWER = """\
Three kinds of events are relayed even if they are not in this table: `client:<x>` from an agent goes to the computer
that it names, `server:update_<x>` from a computer is sent to its office as `notify:update_<x>`, and `server:tell_<x>`
from a computer is sent to the agent of its office as `notify:tell_<x>`. Any other event is refused with 400."""
_INTRODUCTION = """\
These are Socket.IO events on the namespace `/smcp`. [The protocol](../protocol.md) describes connecting, answers and
errors; [errors](errors.md) explains the codes."""


def page() -> str:
    rows = [(code(row.name), " or ".join(row.senders), _ACTIONS[row.action], code(row.notice or "")) for row in EVENTS]
    return markdown.page(
        "Events",
        _INTRODUCTION,
        table(["event", "sent by", "what it does", "notice"], rows),
        _NEWER,
        "## Payloads",
        *(_section(row) for row in EVENTS),
        "## Older names",
        "The Server accepts them. It sends older notices to members that have used an older name, and with "
        "`--legacy-notices` to all.",
        table(["older", "means"], _older()),
        "## Structures",
        "The structures of the specification are in `a2c_smcp.smcp`, those we add in `a2c_smcp.mcp_events` "
        "and `a2c_smcp.protocol.operations`.",
        *(f"### {name}\n\n{_fields(shape, shape.__required_keys__)}" for name, shape in _structures()),
    )


def _section(row: EventSpec) -> str:
    """The fields of an event, also if another event has the same."""
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
    words = {name: value for module in (smcp, mcp_events, operations) for name, value in vars(module).items()}
    return [(name, shape) for name, shape in sorted(words.items()) if is_typeddict(shape)]
