"""`a2c-smcp agent logs`: print what MCP servers of a computer log, until Ctrl-C."""

from __future__ import annotations

import asyncio
from datetime import datetime
from enum import StrEnum
from typing import Any

from a2c_smcp.cli.agent.run import OfficeContext
from a2c_smcp.cli.agent.show import UntilStopped
from a2c_smcp.cli.errors import Failed, server_names_hint
from a2c_smcp.cli.terminal import put_text
from a2c_smcp.errors import ServerNotFound
from a2c_smcp.protocol.codec import dumps

__all__ = ["LogWatch", "ServerLogLevel"]

_WAITING = 1000
"""Lines that may wait to be printed; of more, the newest are dropped."""


class ServerLogLevel(StrEnum):
    """MCP's levels of log messages."""

    debug = "debug"
    info = "info"
    notice = "notice"
    warning = "warning"
    error = "error"
    critical = "critical"
    alert = "alert"
    emergency = "emergency"


class LogWatch(UntilStopped):
    """The work of `a2c-smcp agent logs`."""

    def __init__(self, computer: str, server: str | None, level: ServerLogLevel, *, as_json: bool) -> None:
        super().__init__()
        self._computer, self._server, self._level, self._as_json = computer, server, level, as_json
        self._lines: asyncio.Queue[str] = asyncio.Queue(_WAITING)
        self._context: OfficeContext | None = None

    async def __call__(self, context: OfficeContext) -> None:
        self._context = context
        try:
            await context.agent.set_log_level(self._computer, self._level.value, self._server)
        except ServerNotFound as error:
            config: Any = await context.agent.get_config(self._computer)
            raise Failed(error.message, server_names_hint(str(self._server), [*config.get("servers", {})])) from None
        whose = f"{self._server} logs" if self._server else f"the MCP servers of {self._computer} log"
        context.terminal.show(f"showing what {whose}, from {self._level} on (Ctrl-C ends it)")
        await self.run(self._show())

    async def _show(self) -> None:
        while True:
            put_text(await self._lines.get())

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        if not self._lines.full():
            self._lines.put_nowait(self._line(log))

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        if self._context and data["computer"] == self._computer:
            self._context.terminal.show(f"{self._computer} has left; its logs go on when it is back", "yellow")

    def _line(self, log: dict[str, Any]) -> str:
        now = datetime.now().astimezone()
        if self._as_json:
            known = {key: log[key] for key in ("mcp_server", "level", "logger", "data") if key in log}
            return dumps({"time": now.isoformat("T", "milliseconds"), "computer": self._computer, **known})
        data = log.get("data")
        text = data if isinstance(data, str) else dumps(data)
        logger = f"{log['logger']}: " if log.get("logger") else ""
        said = f"{logger}{text}".rstrip().replace("\n", "\n    ")
        return f"{now:%H:%M:%S}  {log.get('mcp_server')}  {log.get('level')}  {said}"
