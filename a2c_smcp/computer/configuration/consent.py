"""Which changes of a configuration its owner has to agree to. Pure: two configurations in, a decision out.

An agent with a tool that writes files could otherwise have any program run, or let tools run without asking.
So a change that decides what is run, where it goes, what it is given or what need not be asked waits for a yes. What
only restricts, removes or describes is applied at once.

A field that no rule here calls harmless needs consent, so that one that is added to the models later does, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.secrets import MASKED
from a2c_smcp.computer.secrets.replace import replace_secrets
from a2c_smcp.computer.secrets.rules import Declared
from a2c_smcp.mcp_host.config.servers import (
    CommandInput,
    MCPServerConfig,
    MCPServerInput,
    input_to_wire,
    source,
)
from a2c_smcp.protocol.visible import one_line

__all__ = ["Difference", "Weighed", "weigh"]

_MOST = 400
_Loosens: TypeAlias = Callable[[Any, Any], bool]
"""Whether a field that was the first value and is now the second one allows more than before."""


@dataclass(frozen=True)
class Difference:
    """One field, as the owner may see it: secrets are masked. `None` where there is, or was, no such field."""

    place: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            return "nothing" if value is None else one_line(value, _MOST)

        if self.before == self.after:
            return f"{self.place}: changed, and not shown, since it may hold a secret"
        return f"{self.place}: {shown(self.after)}" + (
            "" if self.before is None else f" instead of {shown(self.before)}"
        )


@dataclass(frozen=True)
class Weighed:
    """What may be applied at once, and what waits for a yes. With a yes, the new configuration is applied whole."""

    at_once: Configuration
    waiting: tuple[Difference, ...] = ()


def weigh(before: Configuration, after: Configuration) -> Weighed:
    """Servers and inputs that need consent are left as they were before; all others are as they are after."""
    servers, inputs = dict(after.servers), dict(after.inputs)
    waiting: list[Difference] = []
    for name, config in after.servers.items():
        if found := [*_server(before.servers.get(name), config)]:
            waiting += found
            _leave(servers, before.servers, name)
    for id_, definition in after.inputs.items():
        if found := [*_input(before.inputs.get(id_), definition)]:
            waiting += found
            _leave(inputs, before.inputs, id_)
    return Weighed(replace(after, servers=servers, inputs=inputs), tuple(waiting))


def _leave(entries: dict[str, Any], before: Mapping[str, Any], name: str) -> None:
    if name in before:
        entries[name] = before[name]
    else:
        del entries[name]


def _server(before: MCPServerConfig | None, after: MCPServerConfig) -> Iterator[Difference]:
    place, new = f"servers.{after.name}", source(after)
    old = source(before) if before else {}
    fields = [name for name in (*type(after).model_fields, "type") if old.get(name) != new.get(name)]
    known_old, known_new = _shown(old), _shown(new)
    for name in dict.fromkeys(fields):
        if name == "server_parameters":
            yield from _parameters(place, old.get(name) or {}, new[name], (known_old.get(name) or {}, known_new[name]))
        elif _LOOSENS.get(name, _always)(old.get(name), new.get(name)):
            show = _aliases if name == "tool_meta" else _as_it_is
            yield Difference(f"{place}.{name}", show(known_old.get(name)), show(known_new.get(name)))
    for tool in _loosened_tools(old, new):
        yield Difference(f"{place}: {tool}", None if before is None else "asks", "runs without asking")


def _parameters(
    place: str, old: Mapping[str, Any], new: Mapping[str, Any], shown: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Iterator[Difference]:
    """Variables and headers one by one: each is a line of its own."""
    for name in dict.fromkeys((*old, *new)):
        was, is_ = old.get(name) or None, new.get(name) or None
        if name in _HARMLESS_PARAMETERS or was == is_:
            continue
        known = [each.get(name) for each in shown]
        if name in ("env", "headers") and all(isinstance(each, Mapping | None) for each in known):
            yield from _pairs(f"{place}.{name}", was or {}, is_ or {}, (known[0] or {}, known[1] or {}))
        else:
            yield Difference(f"{place}.{name}", *known)


def _pairs(
    place: str, old: Mapping[str, Any], new: Mapping[str, Any], shown: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Iterator[Difference]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield Difference(f"{place}.{name}", shown[0].get(name), shown[1].get(name))


def _shown(server: Mapping[str, Any]) -> dict[str, Any]:
    parameters = server.get("server_parameters")
    if not isinstance(parameters, Mapping):
        return dict(server)
    declared = Declared(server.get("secrets"))
    return {**server, "server_parameters": replace_secrets(parameters, "", lambda *_: MASKED, declared)}


def _as_it_is(value: Any) -> Any:
    return value


def _always(before: Any, after: Any) -> bool:
    return True


def _never(before: Any, after: Any) -> bool:
    return False


def _allows_tools(before: Any, after: Any) -> bool:
    return not set(before or ()) <= set(after or ())


def _unmasks(before: Any, after: Any) -> bool:
    """What was a secret may be seen by agents."""
    said: Mapping[str, Any] = after or {}
    return any(said.get(name) is not True for name in (before or {}) if before[name]) or any(
        is_secret is not True and (before or {}).get(name) is not False for name, is_secret in said.items()
    )


def _is_given(before: Any, after: Any) -> bool:
    return after is not None


_LOOSENS: dict[str, _Loosens] = {
    "name": _never,
    "disabled": lambda before, after: before is not None and after is not True,
    "forbidden_tools": lambda before, after: before is not None and _allows_tools(before, after),
    "tool_meta": lambda before, after: _aliases(before) != _aliases(after),
    "default_tool_meta": lambda before, after: _field(before, "alias") != _field(after, "alias"),
    "vrl": _is_given,
    "desktop": lambda before, after: after == "any",
    "secrets": _unmasks,
}
"""By field of a server. `tool_meta` decides more than that: see `_loosened_tools`."""

_HARMLESS_PARAMETERS = frozenset(
    ("timeout", "sse_read_timeout", "terminate_on_close", "encoding", "encoding_error_handler")
)


def _aliases(tools: Any) -> dict[str, Any]:
    """An alias decides which tool is meant by a name, also by one that is forbidden."""
    known = tools if isinstance(tools, Mapping) else {}
    return {tool: alias for tool, meta in known.items() if (alias := _field(meta, "alias")) is not None}


def _loosened_tools(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Those that run without asking from now on, and did not before."""
    metas = [data.get("tool_meta") for data in (old, new)]
    named = dict.fromkeys(tool for tools in metas if isinstance(tools, Mapping) for tool in tools)
    if _runs(new, None) and not _runs(old, None):
        yield "every tool that it does not say otherwise of"
    for tool in named:
        if _runs(new, tool) and not _runs(old, tool):
            yield f"tool {tool}"


def _runs(server: Mapping[str, Any], tool: str | None) -> bool:
    """An input may stand for `auto_apply`: that counts as a yes, whatever its value is."""
    tools = server.get("tool_meta")
    own = _field(tools.get(tool), "auto_apply") if isinstance(tools, Mapping) and tool is not None else None
    decides = own if own is not None else _field(server.get("default_tool_meta"), "auto_apply")
    return decides not in (None, False)


def _field(meta: Any, name: str) -> Any:
    return meta.get(name) if isinstance(meta, Mapping) else None


def _input(before: MCPServerInput | None, after: MCPServerInput) -> Iterator[Difference]:
    place, old, new = f"inputs.{after.id}", _wire(before), _wire(after)
    hides = isinstance(after, CommandInput) or bool(new.get("password")) or bool(old.get("password"))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) == new.get(name) or name in ("id", "description"):
            continue
        if name == "password" and new.get(name):
            continue
        is_hidden = name == "default" and hides
        known = [MASKED if is_hidden and value.get(name) is not None else value.get(name) for value in (old, new)]
        yield Difference(f"{place}.{name}", *known)


def _wire(definition: MCPServerInput | None) -> dict[str, Any]:
    return dict(input_to_wire(definition)) if definition else {}
