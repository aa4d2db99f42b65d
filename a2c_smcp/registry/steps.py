"""The steps of a plan, as a planner writes them: which can be carried out, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from a2c_smcp.errors import BadRequest

__all__ = ["BadPlan", "ReplyStep", "Step", "ToolStep", "read_plan"]


class BadPlan(BadRequest, ValueError):
    """Steps that cannot be carried out. `details["errors"]` has the `index` and a `message` of each fault."""

    title = "Bad plan"


@dataclass(frozen=True, slots=True)
class ToolStep:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyStep:
    text: str


Step: TypeAlias = ToolStep | ReplyStep


def read_plan(steps: object) -> tuple[Step, ...]:
    """The steps, understood. Raises `BadPlan`, which names every step that is not."""
    if isinstance(steps, str | bytes | Mapping) or not isinstance(steps, Sequence):
        raise BadPlan("it is not a list of steps", errors=[])
    faults = [(index, fault) for index, step in enumerate(steps) if (fault := _fault_in(step))]
    if faults:
        told = "; ".join(f"step {index} {fault}" for index, fault in faults)
        raise BadPlan(told, errors=[{"index": index, "message": fault} for index, fault in faults])
    return tuple(_read(step) for step in steps)


def _fault_in(step: object) -> str | None:
    if isinstance(step, ToolStep | ReplyStep):
        return None
    if not isinstance(step, Mapping):
        return f"is no object but {type(step).__name__}"
    kind = step.get("type")
    fault = _FAULTS.get(kind) if isinstance(kind, str) else None
    return fault(step) if fault else f"has the type {kind!r}, which is none of {', '.join(map(repr, _FAULTS))}"


def _fault_in_tool(step: Mapping[str, Any]) -> str | None:
    if not isinstance(step.get("name"), str) or not step["name"]:
        return "calls a tool and has no name"
    arguments = step.get("arguments")
    if arguments is not None and not isinstance(arguments, Mapping):
        return f"has arguments that are no object but {type(arguments).__name__}"
    return None


def _fault_in_reply(step: Mapping[str, Any]) -> str | None:
    return None if isinstance(step.get("text"), str) else "is a reply and has no text"


_FAULTS = {"tool": _fault_in_tool, "reply": _fault_in_reply}


def _read(step: Any) -> Step:
    if isinstance(step, ToolStep | ReplyStep):
        return step
    if step["type"] == "reply":
        return ReplyStep(step["text"])
    return ToolStep(step["name"], dict(step.get("arguments") or {}))
