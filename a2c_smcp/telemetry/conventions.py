"""The spans of the package: their names and attributes, and what a span is for the work that it shows.

The names follow OpenTelemetry's conventions for GenAI, MCP and RPC; our own begin with `a2c.`. A span never has
arguments, results, messages of errors or credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, TypeAlias

SpanKindName: TypeAlias = Literal["internal", "client", "server"]
AttributeValues: TypeAlias = dict[str, "str | int | bool"]

REQ_ID = "a2c.req_id"
OUTCOME = "a2c.outcome"
ANSWERED = "a2c.answer"
ERROR_TYPE = "error.type"
TOOL_ERROR = "tool_error"
REQUEST_ID = "jsonrpc.request.id"

_SYSTEM = {"rpc.system.name": "a2c_smcp"}
_EXECUTE = "execute_tool"


class SpanStart(NamedTuple):
    """A span that is about to begin."""

    name: str
    kind: SpanKindName
    attributes: AttributeValues


def agent_call(event: str, tool: str, computer: str, office: str | None, req_id: str) -> SpanStart:
    """A tool call of an agent, from `emit_tool_call` to its result."""
    return SpanStart(f"{_EXECUTE} {tool}", "client", _tool(tool, req_id) | _request(event, computer, office, req_id))


def agent_request(event: str, computer: str, office: str | None, req_id: str) -> SpanStart:
    """Any other request of an agent to a computer."""
    return SpanStart(event, "client", _request(event, computer, office, req_id))


def relayed(event: str, tool: str | None, computer: str, office: str, req_id: str, outcome: str) -> SpanStart:
    """A request of an agent on the Server, which does not know the tool of a sealed one."""
    attributes = _request(event, computer, office, req_id) | {OUTCOME: outcome}
    return SpanStart(event, "server", attributes | {"gen_ai.tool.name": tool} if tool else attributes)


def computer_call(tool: str, office: str, agent: str, req_id: str) -> SpanStart:
    """A tool call on the computer, from its arrival to a result that may leave."""
    caller: AttributeValues = {"a2c.office": office, "a2c.agent": agent, REQ_ID: req_id}
    return SpanStart(f"{_EXECUTE} {tool}", "server", _tool(tool, req_id) | _SYSTEM | caller)


def mcp_request(method: str, target: str | None, revision: str, transport: str) -> SpanStart:
    """A request to an MCP server that is sent without the SDK, which makes such a span itself.

    `target` is the name of a tool or prompt. URIs of resources are left out: they may have a password in them.
    """
    attributes: AttributeValues = {"mcp.method.name": method, "network.transport": transport}
    if revision:
        attributes["mcp.protocol.version"] = revision
    if method == "tools/call" and target:
        attributes |= {"gen_ai.operation.name": _EXECUTE, "gen_ai.tool.name": target}
    elif method == "prompts/get" and target:
        attributes["gen_ai.prompt.name"] = target
    return SpanStart(f"{method} {target}" if target else method, "client", attributes)


def approval(server: str, tool: str) -> SpanStart:
    """The time that a call waits for its approval."""
    return SpanStart("a2c.approval", "internal", {"a2c.mcp_server": server, "gen_ai.tool.name": tool})


def question(server: str, method: str) -> SpanStart:
    """The time that a call waits for the answer to what its MCP server asks."""
    return SpanStart("a2c.question", "internal", {"a2c.mcp_server": server, "mcp.method.name": method})


def queue(what: str) -> SpanStart:
    """The time that a call waits for its turn, or for an MCP server that starts."""
    return SpanStart("a2c.queue", "internal", {"a2c.queue.name": what})


def connection_wait(event: str) -> SpanStart:
    """The time that a request waits before it is sent again."""
    return SpanStart("a2c.wait", "internal", {"rpc.method": event})


def resend(event: str, number: int) -> SpanStart:
    """A sending of a request after the first."""
    return SpanStart(f"a2c.resend {event}", "internal", {"rpc.method": event, "a2c.resend_count": number})


def _tool(tool: str, req_id: str) -> AttributeValues:
    return {"gen_ai.operation.name": _EXECUTE, "gen_ai.tool.name": tool, "gen_ai.tool.call.id": req_id}


def _request(event: str, computer: str, office: str | None, req_id: str) -> AttributeValues:
    attributes: AttributeValues = {**_SYSTEM, "rpc.method": event, "a2c.computer": computer, REQ_ID: req_id}
    return attributes if office is None else attributes | {"a2c.office": office}


# A span that has begun, as those see it whose work it shows.

Times: TypeAlias = tuple[int, int]
"""Begin and end of a span, in nanoseconds since 1970."""


class LiveSpan(AbstractContextManager["LiveSpan"]):
    """A span that is current until the block ends. This class itself is the one that does nothing."""

    __slots__ = ()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def set(self, name: str, value: str | int | bool) -> None:
        """Sets an attribute."""

    def fail(self, error_type: str) -> None:
        """The span is one of a failure, of this kind."""

    def inject(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """`_meta` with the context of this span."""
        return meta


Facts: TypeAlias = tuple[Any, ...]
MoreFacts: TypeAlias = Mapping[str, Any]
"""The arguments that a function of this module is called with, when its span is made."""
