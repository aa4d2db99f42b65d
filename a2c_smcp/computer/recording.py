"""The records of a Computer: the audit file, and the metrics for Prometheus.

An entry is in the audit file before the answer leaves. A call takes one line. Its arguments are recorded as a keyed
hash of their JSON, or, if that was asked for, as they are shown to the owner: with secrets masked. If they cannot be
written as JSON, the line is without them. Results are not recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.audit.observers import Observed
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.observation import ToolCallBegun, ToolCallEnded
from a2c_smcp.protocol.structure import ARGUMENTS
from a2c_smcp.telemetry.metrics import COMPUTER, CONTENT_TYPE, Metrics, watch_process
from a2c_smcp.web import LOOPBACK_NAMES, ASGIApp, host_name

_NO_JSON = (TypeError, ValueError, RecursionError)


@contextmanager
def recorded(computer: Computer, path: Path | None, *, with_arguments: bool = False) -> Iterator[AuditFile | None]:
    """Inside the `with` block, record what happens on a computer, if there is a path. Raises `ConfigError`."""
    if path is None:
        yield None
        return
    file = AuditFile(path)

    def arguments_of(ended: ToolCallEnded) -> Any:
        params = ended.call.params
        return computer.mask.data(params, ARGUMENTS, ended.server) if with_arguments else file.hash(_json(params))

    def observe(happened: Observed) -> None:
        entry = happened.entry()
        if entry is None:
            return
        if isinstance(happened, ToolCallEnded):
            with suppress(*_NO_JSON):
                entry["arguments"] = arguments_of(happened)
        file.write(entry)
        file.flush()

    computer.observation.add(observe, often=True)
    try:
        yield file
    finally:
        computer.observation.remove(observe)
        file.close()


def _json(arguments: Any) -> bytes:
    """Arguments as JSON without spaces. Raises one of `_NO_JSON` if they are nested too deep.

    orjson refuses half a surrogate pair and integers of more than 64 bits, which JSON may hold.
    """
    try:
        return orjson.dumps(arguments, default=repr)
    except TypeError:
        return json.dumps(arguments, separators=(",", ":"), default=repr).encode("ascii")


class ComputerMetrics:
    """Counts what happens on a computer, from now on. `audit` is its audit file, if it has one."""

    def __init__(self, computer: Computer, audit: AuditFile | None = None) -> None:
        self.metrics = metrics = Metrics(COMPUTER)
        watch_process(metrics, "a2c_computer_build_info")
        metrics.watch(
            "a2c_computer_servers", lambda: dict(Counter((server.state,) for server in computer.status().values()))
        )
        metrics.watch("a2c_computer_frozen", lambda: computer.owner.frozen is not None)
        metrics.watch("a2c_computer_tools", lambda: len(computer.get_tools()))
        metrics.watch(
            "a2c_computer_server_starts_total",
            lambda: {(name,): float(server.starts) for name, server in computer.status().items()},
        )
        if audit:
            metrics.watch("a2c_computer_audit_failing", lambda: bool(audit.trouble))
            metrics.watch("a2c_computer_audit_lost_total", lambda: audit.lost)
            metrics.watch("a2c_computer_audit_gone_total", lambda: audit.gone)
        self._begun: set[int] = set()
        metrics.watch("a2c_computer_calls_in_flight", self._begun.__len__)
        computer.observation.add(self._observe, often=True)

    def _observe(self, happened: Observed) -> None:
        if isinstance(happened, ToolCallBegun):
            self._begun.add(id(happened.call))
        elif isinstance(happened, ToolCallEnded):
            self._begun.discard(id(happened.call))  # a call that was refused at once never began
        happened.count(self.metrics)


def metrics_page(computer: Computer, audit: AuditFile | None = None) -> ASGIApp:
    """Return an application that serves `/metrics`, which count from now on."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    counted = ComputerMetrics(computer, audit)

    async def page(request: Request) -> Response:
        """Under another name than this machine's, a foreign web page may ask (DNS rebinding)."""
        if host_name(request.headers.get("host", "")) not in LOOPBACK_NAMES:
            return Response("ask under the name localhost\n", 400)
        return Response(counted.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return Starlette(routes=[Route("/metrics", page)])
