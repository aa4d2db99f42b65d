"""What the project wants of its numbers. A benchmark measures under these keys; `report` says what was met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["GOALS", "Goal", "judged"]

Sense = Literal["≥", "≤"]


@dataclass(frozen=True, slots=True)
class Goal:
    """One number that is wanted: `relay.node` of section `relay`, at least 1.8 times what Node does."""

    key: str
    what: str
    sense: Sense
    bound: float
    of: str

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    def is_met_by(self, measured: float) -> bool:
        return measured >= self.bound if self.sense == "≥" else measured <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g}{self.of}"


_RELAY = "relay of `a2c-smcp server`, calls per CPU-second"
_MOUNTED = "the same, mounted in a uvicorn application"
_CALL = "end to end, beside the direct MCP call"
_CONSOLE = "operator's console, 1,000 computers and 100 calls/s"

GOALS = (
    Goal("relay.node", _RELAY, "≥", 1.8, "× Node socket.io"),
    Goal("relay.plain", _RELAY, "≥", 8, "× plain python-socketio"),
    Goal("relay.published", _RELAY, "≥", 30, "× published 0.4.2"),
    Goal("relay.bare", _RELAY, "≥", 0.55, "× a bare picows relay"),
    Goal("relay.mounted_node", _MOUNTED, "≥", 0.8, "× Node socket.io"),
    Goal("relay.mounted_plain", _MOUNTED, "≥", 5, "× plain python-socketio"),
    Goal("relay.node_100kB", "relay, 100 kB results", "≥", 2.5, "× Node socket.io"),
    Goal("relay.node_1MB", "relay, 1 MB results", "≥", 2.5, "× Node socket.io"),
    Goal("end_to_end.p50", _CALL, "≤", 1.3, "× its p50"),
    Goal("end_to_end.throughput", _CALL, "≥", 0.9, "× its throughput, 32 in flight"),
    Goal("progress.p50", "progress, from the MCP server to the agent's callback", "≤", 5, " ms over an answer's way"),
    Goal("progress.change", "change of a resource, from the MCP server to the agent's callback", "≤", 10, " ms"),
    Goal("transfers.put", "a file of 100 MB to a computer", "≥", 0.4, "× a plain copy over one websocket"),
    Goal("transfers.fetch", "a file of 100 MB from a computer", "≥", 0.4, "× a plain copy over one websocket"),
    Goal("transfers.memory", "memory of each process meanwhile", "≤", 32, " MiB more"),
    Goal("transfers.beside", "small calls beside it, p99", "≤", 2, "× those beside another Server's"),
    Goal("sealed.sealed", "a sealed call", "≤", 0.5, " ms p50 over a plain one"),
    Goal("sealed.signed", "a signed call", "≤", 0.25, " ms p50 over a plain one"),
    Goal("sealed.both", "a sealed and signed call", "≤", 0.7, " ms p50 over a plain one"),
    Goal("sealed.server", "CPU of the Server for a sealed call", "≤", 1.1, "× that of a plain one"),
    Goal("monitored.relay", "relay with metrics and audit trail, calls per CPU-second", "≥", 0.9, "× without"),
    Goal("monitored.traces", "a call with traces of all programs", "≤", 1.1, "× its p50 without"),
    Goal("operator_console.page", f"{_CONSOLE}: a whole page", "≤", 1, " s"),
    Goal("operator_console.paint", "the same: first paint in Chromium", "≤", 1, " s"),
    Goal("operator_console.lag", "the same: the latest of all updates", "≤", 1, " s"),
    Goal("operator_console.cpu", "the same: CPU of the Server for a page that is open", "≤", 0.05, " of a core"),
    Goal("computer.get_tools", "`get_tools`, 500 tools", "≥", 20, "× faster than 0.4.2"),
    Goal("computer.get_desktop", "`get_desktop`, 50 windows", "≥", 2, "× faster than 0.4.2"),
    Goal("computer.get_desktop_3", "`get_desktop`, 3 of 50 windows", "≥", 10, "× faster than 0.4.2"),
    Goal("crowds.joins", "500 computers joining one office", "≥", 10, "× less server CPU than 0.4.2"),
    Goal("crowds.memory", "memory per idle connection, polling first", "≤", 30, " kB"),
    Goal("crowds.memory_websocket", "memory per idle connection, websocket first", "≤", 30, " kB"),
    Goal("growth.offices", "relay cost per call as offices grow", "≤", 0.1, " (exponent)"),
    Goal("growth.tools", "relay cost per call as tools grow", "≤", 0.1, " (exponent)"),
    Goal("nodes.cpu", "call between nodes, CPU of both", "≤", 0.333, "× python-socketio's Redis manager"),
    Goal("nodes.pace", "calls per second between nodes", "≥", 0.4, "× those within one"),
    Goal("nodes.pace_stock", "calls per second between nodes", "≥", 3, "× python-socketio's Redis manager"),
    Goal("nodes.p50", "call between nodes, p50", "≤", 0.5, " ms over one within"),
    Goal("nodes.asked", "call between nodes, requests to the directory", "≤", 0, " times"),
    Goal(
        "bridge.p50", "a call through bridge, Server and computer, beside the direct one over HTTP", "≤", 2, "× its p50"
    ),
    Goal("bridge.throughput", "the same, 32 in flight", "≥", 0.6, "× its throughput"),
    Goal("bridge.lost", "50 MCP clients, 20 calls a second each, two of them do not read", "≤", 0, " calls lost"),
    Goal("bridge.slow", "the same: the others, beside the two", "≤", 1.5, "× their p50 without them"),
    Goal("bridge_catalog.tools", "200 computers with 50 equal tools: what an MCP client is sent", "≤", 50, " tools"),
    Goal("bridge_catalog.build", "the same list", "≤", 50, " ms of CPU to build"),
    Goal("sandboxed_start.added", "start of an MCP server in a strict sandbox", "≤", 20, " ms more than without"),
    Goal("on_call.processes", "ten MCP servers asleep", "≤", 0, " processes of them"),
    Goal("on_call.memory", "the same, each", "≤", 1, " MiB"),
    Goal("on_call.first", "the first call of one of them, beside a start and a call", "≤", 1.2, "× its time"),
)


def judged(measured: Mapping[str, float]) -> list[dict[str, Any]]:
    """All goals, each with what was measured and whether that is enough; `None` is what was not measured."""
    return [_judged(goal, measured.get(goal.key)) for goal in GOALS]


def _judged(goal: Goal, value: float | None) -> dict[str, Any]:
    met = None if value is None else goal.is_met_by(value)
    return {**asdict(goal), "goal": str(goal), "measured": value, "met": met}
