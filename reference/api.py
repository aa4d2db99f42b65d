"""The page of the Python API: signatures and docstrings of public names."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, ForwardRef, get_overloads

from reference import markdown
from reference.markdown import fence

__all__ = ["PUBLIC", "page"]

PUBLIC: dict[str, tuple[str, ...]] = {
    "a2c_smcp.computer": (
        "Computer",
        "ComputerOptions",
        "Caller",
        "Approvals",
        "ApprovalRequest",
        "BlobLimits",
        "Inputs",
        "InputState",
        "ServerStatus",
        "HostLimits",
        "read_configuration",
        "parse_configuration",
        "Configuration",
        "organize_desktop",
        "Window",
    ),
    "a2c_smcp.agent": (
        "AsyncSMCPAgentClient",
        "SMCPAgentClient",
        "EmitOptions",
        "ReadOptions",
        "Question",
        "Answer",
        "AgentEvents",
        "AgentAuthProvider",
        "Credentials",
    ),
    "a2c_smcp.protocol.results": ("CallToolResult",),
    "a2c_smcp.protocol.window_uri": ("WindowURI",),
    "a2c_smcp.registry": (
        "MCPRegistry",
        "Text",
        "Image",
        "Audio",
        "EmbeddedResource",
        "ResourceLink",
        "ToolResult",
        "PromptMessage",
        "ToolContext",
        "AsyncToolContext",
        "Policy",
        "Retry",
        "Limit",
        "Hook",
        "ToolCall",
        "report_progress",
        "OpenTelemetryHook",
        "RemoteMCPAdapter",
        "run_plan",
        "run_plan_async",
        "PlanRun",
        "StepOutcome",
    ),
    "a2c_smcp.registry.remote.mcp_server": ("RegistryServer",),
    "a2c_smcp.server": (
        "create_app",
        "Settings",
        "Limits",
        "AuthenticationProvider",
        "DefaultAuthenticationProvider",
        "Principal",
        "SMCPNamespace",
        "SMCPApp",
    ),
    "a2c_smcp.server.auth.jwt": ("JWTAuthenticationProvider",),
    "a2c_smcp.errors": ("SMCPError",),
}

_INTRODUCTION = """\
The public classes and functions, by the module to import them from. The guides explain their use:
[Computer](../computer.md), [Agent](../agent.md), [registry](../registry.md), [Server](../server.md).
Numbers such as 003 or 001 §9 name the five texts of the specification, 000 to 004."""
_WIDTH = 100
_EMPTY = inspect.Signature.empty
_INTERNAL = re.compile(r"\s\(WIRE §\d+\)")
_PLAIN = (type(None), bool, int, float, str)
_SILENT = ("socketio.", "pydantic.", "builtins", "typing")
"""Modules whose classes are inherited from but not ours to tell of."""


def page() -> str:
    parts = [part for module, names in PUBLIC.items() for part in _module(module, names)]
    return markdown.page("Python API", _INTRODUCTION, *parts)


def _module(module: str, names: tuple[str, ...]) -> Iterator[str]:
    yield f"## {module}"
    for name in names:
        found = getattr(importlib.import_module(module), name)
        yield from _class(name, found) if inspect.isclass(found) else _function(name, found)


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"### {name}"
    yield fence("py", _spelled(function, name))
    yield _told(function)


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"### {name}"
    yield fence("py", _constructor(name, cls))
    yield _told(cls)
    yield _told(next(vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each)))
    members = [member for each in _members(cls) if (member := _member(*each))]
    if members:
        yield "\n\n".join(members)


def _constructor(name: str, cls: type) -> str:
    """As it is called. What cannot be called with anything is shown as the class it is."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return f"class {name}"
    return f"class {name}{_parameters(signature.replace(return_annotation=_EMPTY))}"


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of ours, inherited ones too, in the order in which they are written."""
    found: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith(_SILENT):
            continue
        found |= {name: value for name, value in vars(each).items() if not name.startswith("_")}
    yield from found.items()


def _member(name: str, found: Any) -> str | None:
    if isinstance(found, property) or hasattr(found, "attrname"):
        getter: Any = found.fget if isinstance(found, property) else found.func
        returned = inspect.signature(getter).return_annotation
        return _entry(f"{name}: {_type(returned)}", _told(getter))
    function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    return _entry(_spelled(function, name), _told(function)) if inspect.isfunction(function) else None


def _entry(spelled: str, told: str) -> str:
    return f"{fence('py', spelled)}\n\n{told}" if told else fence("py", spelled)


def _spelled(function: Any, name: str) -> str:
    """The signature, or all overloads of it."""
    waits = "async def" if inspect.iscoroutinefunction(function) else "def"
    several = get_overloads(function) or [function]
    return "\n".join(f"{waits} {name}{_parameters(inspect.signature(each))}" for each in several)


def _parameters(signature: inspect.Signature) -> str:
    own = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    parts = [*_separated(own)]
    arrow = "" if signature.return_annotation is _EMPTY else f" -> {_type(signature.return_annotation)}"
    in_one_line = f"({', '.join(parts)}){arrow}"
    return in_one_line if len(in_one_line) <= _WIDTH else "(\n" + "".join(f"    {it},\n" for it in parts) + f"){arrow}"


def _separated(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Parameters, with `/` after positional-only ones and `*` before keyword-only ones."""
    kinds = [each.kind for each in parameters]
    for index, each in enumerate(parameters):
        if each.kind is each.KEYWORD_ONLY and not {each.KEYWORD_ONLY, each.VAR_POSITIONAL} & {*kinds[:index]}:
            yield "*"
        yield _parameter(each)
        if each.kind is each.POSITIONAL_ONLY and each.POSITIONAL_ONLY not in kinds[index + 1 :]:
            yield "/"


def _parameter(it: inspect.Parameter) -> str:
    stars = "*" if it.kind is it.VAR_POSITIONAL else "**" if it.kind is it.VAR_KEYWORD else ""
    kind = "" if it.annotation is _EMPTY else f": {_type(it.annotation)}"
    if it.default is _EMPTY:
        return f"{stars}{it.name}{kind}"
    return f"{stars}{it.name}{kind} = {_value(it.default)}"


def _type(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value(default: Any) -> str:
    """Plain values only: any other default may differ between machines, or be private."""
    return repr(default) if type(default) in _PLAIN else "…"


def _told(found: Any) -> str:
    """Its docstring, unless it is inherited or generated by a library."""
    text = found.__doc__ or ""
    made_up = inspect.isclass(found) and text.startswith(f"{found.__name__}(")
    if made_up or text == object.__init__.__doc__:
        return ""
    return _INTERNAL.sub("", inspect.cleandoc(text))
