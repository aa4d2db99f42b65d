"""Where this computer sits: in one office of one Server, or nowhere. Its MCP servers run all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from a2c_smcp.cli.errors import sentence
from a2c_smcp.computer.calls.journal import journal_of
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.private_files import instance_of
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.errors import SMCPError

__all__ = ["Seat"]


class Seat:
    """`say` hears what becomes of the connection, `news` is the last of it; `on_move` hears that it is another one."""

    def __init__(
        self,
        computer: Computer,
        url: str,
        office: str,
        *,
        say: Callable[[str], None],
        on_move: Callable[[], None],
        **link: Any,
    ) -> None:
        self.url, self.office, self.news = url, office, "not connected"
        self._computer, self._link = computer, link
        self._say, self._on_move = say, on_move
        self._serving: asyncio.Task[None] | None = None

    @property
    def api_key(self) -> str | None:
        key: str | None = self._link.get("api_key")
        return key

    @property
    def is_taken(self) -> bool:
        return self._serving is not None and not self._serving.done()

    async def join(self, office: str) -> None:
        """Leaves the office it is in, and serves this one, until told otherwise."""
        await self.leave()
        self.office = office
        self._on_move()
        self._serving = asyncio.create_task(self._serve())

    async def connect(self, url: str, api_key: str | None) -> None:
        """The same office at another Server. The key of one Server is never shown to another."""
        await self.leave()
        self.url, self._link = url, {**self._link, "api_key": api_key}
        await self.join(self.office)

    async def leave(self) -> None:
        serving, self._serving = self._serving, None
        if serving:
            serving.cancel()
            await asyncio.wait([serving])
            self._tell(f"left {self.office}")
            self._on_move()

    async def _serve(self) -> None:
        try:
            with (
                instance_of(self._computer.name, self.url) as instance,
                journal_of(self._computer.name, self.url, self.office) as journal,
            ):
                kept: dict[str, Any] = {"instance": instance, "journal": journal}
                await SMCPComputerClient(
                    self._computer, self.url, self.office, on_connection=self._tell, **kept, **self._link
                ).run()
        except SMCPError as error:
            reason = self._computer.mask.text(str(error))
            self._tell(f"{sentence(f'not in {self.office}: {reason}')} `join OFFICE` or `connect URL` tries again")

    def _tell(self, news: str) -> None:
        self.news = news
        self._say(news)
