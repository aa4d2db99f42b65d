"""The names and attributes of all spans: OpenTelemetry's conventions for GenAI, MCP and RPC, and our own in `a2c.`.

A span never has arguments, results, messages of errors or credentials.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "ANSWERED",
    "ERROR_TYPE",
    "OUTCOME",
    "REQUEST_ID",
    "REQ_ID",
    "TOOL_ERROR",
    "AttributeValues",
    "SpanKindName",
    "SpanStart",
    "agent_call",
    "agent_request",
    "approval",
    "computer_call",
    "connection_wait",
    "mcp_request",
    "question",
    "queue",
    "relayed",
    "resend",
]

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
    return SpanStart(f"{_EXECUTE} {tool}", "server", _tool(tool, req_id) | _SYSTEM | _caller(office, agent, req_id))


def mcp_request(method: str, target: str | None, revision: str, transport: str) -> SpanStart:
    """A request to an MCP server that is sent without the SDK, which makes such a span itself."""
    attributes: AttributeValues = {"mcp.method.name": method, "network.transport": transport}
    if revision:
        attributes["mcp.protocol.version"] = revision
    if method == "tools/call" and target:
        attributes |= {"gen_ai.operation.name": _EXECUTE, "gen_ai.tool.name": target}
    elif method == "prompts/get" and target:
        attributes["gen_ai.prompt.name"] = target
    elif method == "resources/read" and target:
        attributes["mcp.resource.uri"] = target
    names_target = target and method != "resources/read"
    return SpanStart(f"{method} {target}" if names_target else method, "client", attributes)


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


def _caller(office: str, agent: str, req_id: str) -> AttributeValues:
    return {"a2c.office": office, "a2c.agent": agent, REQ_ID: req_id}
