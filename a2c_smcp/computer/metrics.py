"""The metrics of a Computer, and the page on this machine at which Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.observation import (
    AgentRequestRefused,
    ApprovalAnswered,
    ApprovalAsked,
    BlobFetched,
    BlobStored,
    ComputerHappened,
    QuestionAnswered,
    QuestionAsked,
    SeatChanged,
    ToolCallBegun,
    ToolCallEnded,
)
from a2c_smcp.http.loopback import LOOPBACK_HOSTS
from a2c_smcp.telemetry.catalog import COMPUTER
from a2c_smcp.telemetry.metrics import CONTENT_TYPE, Metrics, watch_process

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["ComputerMetrics", "serving_metrics"]


_OWNER = "owner"
_HOST = "127.0.0.1"


class ComputerMetrics:
    """Counts what happens on a computer, from now on. `audit` is its audit file, if it has one."""

    def __init__(self, computer: Computer, audit: AuditFile | None = None) -> None:
        self.metrics = metrics = Metrics(COMPUTER)
        watch_process(metrics, "a2c_computer_build_info")
        metrics.watch("a2c_computer_servers", lambda: _by_state(computer))
        metrics.watch("a2c_computer_tools", lambda: len(computer.get_tools()))
        metrics.watch(
            "a2c_computer_server_starts_total",
            lambda: {(name,): float(each.starts) for name, each in computer.status().items()},
        )
        if audit:
            metrics.watch("a2c_computer_audit_failing", lambda: bool(audit.trouble))
            metrics.watch("a2c_computer_audit_lost_total", lambda: audit.lost)
        self._connected = metrics.counter("a2c_computer_connected")
        self._in_flight = metrics.counter("a2c_computer_calls_in_flight")
        self._durations = metrics.histogram("a2c_computer_call_duration_seconds")
        self._waiting = {
            "approvals": metrics.counter("a2c_computer_approvals_waiting"),
            "questions": metrics.counter("a2c_computer_questions_waiting"),
        }
        self._begun: set[int] = set()
        self._reactions: dict[type, Callable[[Any], None]] = {
            ToolCallBegun: self._begin,
            ToolCallEnded: self._end,
            ApprovalAsked: lambda it: self._wait("approvals", it.waits),
            ApprovalAnswered: self._approve,
            QuestionAsked: lambda it: self._wait("questions", it.waits),
            QuestionAnswered: self._answer,
            AgentRequestRefused: lambda it: metrics.count("a2c_computer_refused_total", str(it.code)),
            BlobFetched: lambda it: self._move("fetched", it.size),
            BlobStored: lambda it: self._move("stored", it.size),
            SeatChanged: self._connect,
        }
        computer.observation.add(self._observe, often=True)

    def _observe(self, happened: ComputerHappened) -> None:
        if react := self._reactions.get(type(happened)):
            react(happened)

    def _begin(self, happened: ToolCallBegun) -> None:
        self._begun.add(id(happened.call))
        self._in_flight.value = len(self._begun)

    def _end(self, happened: ToolCallEnded) -> None:
        """A call that was refused at once ends without having begun."""
        self._begun.discard(id(happened.call))
        self._in_flight.value = len(self._begun)
        self._durations.observe(happened.seconds)
        self.metrics.count("a2c_computer_calls_total", happened.result.outcome)

    def _approve(self, happened: ApprovalAnswered) -> None:
        self._wait("approvals", -happened.waits)
        self.metrics.count("a2c_computer_approvals_total", happened.by or _OWNER, happened.decision)

    def _answer(self, happened: QuestionAnswered) -> None:
        self._wait("questions", -happened.waits)
        self.metrics.count("a2c_computer_questions_total", happened.by or _OWNER, happened.action)

    def _wait(self, kind: str, more: int) -> None:
        self._waiting[kind].value += more

    def _move(self, direction: str, size: int) -> None:
        self.metrics.count("a2c_computer_blobs_total", direction)
        self.metrics.count("a2c_computer_blob_bytes_total", direction, by=size)

    def _connect(self, happened: SeatChanged) -> None:
        self._connected.value = float(happened.state == "joined")


def _by_state(computer: Computer) -> dict[tuple[str, ...], float]:
    return dict(Counter((each.state,) for each in computer.status().values()))


@asynccontextmanager
async def serving_metrics(computer: Computer, port: int, audit: AuditFile | None = None) -> AsyncIterator[int]:
    """Serves `/metrics` on this machine until the block ends. Yields the port. Raises `OSError`."""
    from aiohttp import web

    counted = ComputerMetrics(computer, audit)

    async def page(request: web.Request) -> web.Response:
        """Under another name than this machine's, a foreign web page may ask (DNS rebinding)."""
        name = request.host.rpartition(":")[0] if ":" in request.host.rpartition("]")[2] else request.host
        if name not in LOOPBACK_HOSTS:
            return web.Response(status=400, text="ask under the name localhost\n")
        return web.Response(body=counted.metrics.render().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, _HOST, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
