"""The published package's agent, 0.1.2 or 0.4.2, driven by a test (see `lines`)."""

from __future__ import annotations

import lines  # isort: skip

import asyncio
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from a2c_smcp.agent.client import AsyncSMCPAgentClient

_tag: ContextVar[str | None] = ContextVar("tag", default=None)


class Hooks:
    """What the package tells its user, under the names that either version calls."""

    async def on_computer_enter_office(self, data: Any, client: Any) -> None:
        lines.heard("enter_office", data)

    async def on_computer_leave_office(self, data: Any, client: Any) -> None:
        lines.heard("leave_office", data)

    async def on_computer_update_config(self, data: Any, client: Any) -> None:
        lines.heard("update_config", data)

    async def on_computer_update_tool_list(self, data: Any, client: Any) -> None:
        lines.heard("update_tool_list", data)

    async def on_tools_received(self, computer: str, tools: list[Any], client: Any) -> None:
        lines.heard("tools", {"computer": computer, "tools": [tool["name"] for tool in tools]})

    async def on_skills_received(self, computer: str, skills: list[Any], client: Any) -> None:
        lines.heard("skills", {"computer": computer, "skills": skills})


class Client(AsyncSMCPAgentClient):
    """The package's client. It remembers the ids of tagged tool calls and reports the desktops that it fetches."""

    req_ids: dict[str, str]

    async def call(self, event: str, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if event == "client:tool_call" and (tag := _tag.get()):
            self.req_ids[tag] = data["req_id"]
            lines.heard("calling", {"tag": tag, "req_id": data["req_id"]})
        return await super().call(event, data, *args, **kwargs)

    def process_desktop_response(self, response: Any, computer: str) -> None:
        lines.heard("desktop", {"computer": computer, "desktop": response})
        super().process_desktop_response(response, computer)


class Agent(lines.Commands):
    async def join(self) -> Any:
        """The package does not wait for the ack: who wants to know asks somebody else."""
        return await self.client.join_office(self.office, self.name, namespace=lines.NAMESPACE)

    async def leave(self) -> Any:
        return await self.client.leave_office(self.office, namespace=lines.NAMESPACE)

    async def list_room(self) -> Any:
        return await self.client.get_computers_in_office(self.office)

    async def get_tools(self, computer: str) -> Any:
        return await self.client.get_tools_from_computer(computer)

    async def get_config(self, computer: str) -> Any:
        if hasattr(self.client, "get_config_from_computer"):
            return await self.client.get_config_from_computer(computer)
        # 0.1 has no method for it; the request has the fields of one for tools
        return await self.call("client:get_config", self.client.create_get_tools_request(computer))

    async def get_desktop(self, computer: str, size: int | None = None, window: str | None = None) -> Any:
        return await self.client.get_desktop_from_computer(computer, size=size, window=window)

    async def get_resources(self, computer: str, mcp_server: str, cursor: str | None = None) -> Any:
        return await self.client.get_resources(computer, mcp_server, cursor)

    async def get_skills(self, computer: str) -> Any:
        return await self.client.get_skills(computer)

    async def get_skill(self, computer: str, name: str, rel_path: str | None = None) -> Any:
        return await self.client.get_skill(computer, name, rel_path)

    async def get_blob(self, computer: str, blob_handle: str, chunk_offset: int = 0) -> Any:
        return await self.client.get_blob(computer, blob_handle, chunk_offset=chunk_offset)

    async def tool_call(
        self, computer: str, tool: str, params: dict[str, Any], timeout: int = 10, tag: str | None = None
    ) -> Any:
        """`tag` names the call for `cancel`, once `calling` has been reported."""
        _tag.set(tag)
        return await self.client.emit_tool_call(computer, tool, params, timeout)

    async def put_blob(self, computer: str, path: str, name_hint: str | None = None) -> Any:
        """Sends a file that the test has written."""
        sent = await self.client.put_blob(computer, Path(path).read_bytes(), name_hint=name_hint)
        return {name: str(getattr(sent, name)) for name in ("landing_path", "sha256")}

    async def cancel(self, tag: str) -> Any:
        data = {"agent": self.name, "req_id": self.client.req_ids[tag]}
        return await self.client.emit("server:tool_call_cancel", data, namespace=lines.NAMESPACE)


async def main() -> None:
    args = lines.options().parse_args()
    client = Client(DefaultAgentAuthProvider(args.name, args.office, args.api_key), Hooks())
    client.req_ids = {}
    await lines.obey(Agent(client, args.name, args.office), client.connect_to_server(args.url))


if __name__ == "__main__":
    asyncio.run(main())
