"""Skills for tests: folders of the owner, and an MCP server that offers some."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import uuid4

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller

SERVER = Path(__file__).with_name("skill_server.py")


def skill_text(name: str = "review", body: str = "Read the code.", **fields: str) -> str:
    lines = "".join(
        f"{key}: {value}\n" for key, value in {"name": name, "description": "Reviews code.", **fields}.items()
    )
    return f"---\n{lines}---\n{body}"


class Home:
    """A folder of skills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "user").mkdir(mode=0o700)

    def put(self, skill: str, file: str, content: str | bytes) -> Path:
        """Write a file of the owner's skill."""
        path = self.path / "user" / skill / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    @staticmethod
    def names(folder: Path) -> set[str]:
        """What is in a folder."""
        return {each.name for each in folder.iterdir()}

    def staged(self, place: str) -> Path:
        return self.path / "mcp" / place


class Offer:
    """What the MCP server offers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._resources: dict[str, dict[str, Any]] = {}
        self._contents: dict[str, Any] = {}
        self.more: dict[str, Any] = {}
        self.write()

    @property
    def config(self) -> dict[str, Any]:
        parameters = {"command": sys.executable, "args": [str(SERVER), str(self._path)]}
        return {
            "name": "skill srv!",
            "type": "stdio",
            "server_parameters": parameters,
            "default_tool_meta": {"auto_apply": True},
        }

    def root(self, uri: str, source: str = "resources", **meta: Any) -> Offer:
        self._resources[uri] = {"uri": uri, "name": uri, "_meta": {"source": source, **meta}}
        return self

    def file(self, uri: str, content: str | bytes, **more: Any) -> Offer:
        self._resources[uri] = {"uri": uri, "name": uri, **more}
        kind = {"text": content} if isinstance(content, str) else {"blob": b64encode(content).decode()}
        return self.contents(uri, [{"uri": uri, **kind}])

    def contents(self, uri: str, contents: Any) -> Offer:
        self._contents[uri] = contents
        return self

    def skill(self, root: str, name: str, body: str = "Read the code.", **meta: Any) -> Offer:
        return self.root(root, **meta).file(f"{root}/SKILL.md", skill_text(name, body))

    def remove(self, uri: str) -> Offer:
        for known in [each for each in self._resources if each == uri or each.startswith(f"{uri}/")]:
            del self._resources[known]
        return self

    def write(self) -> None:
        offer = {"resources": [*self._resources.values()], "contents": self._contents, **self.more}
        self._path.write_text(json.dumps(offer))

    async def tell(self, computer: Computer, method: str, **params: Any) -> None:
        """Have the server send a notification, after writing what it offers now."""
        self.write()
        told = {"method": method, "params": params}
        result = await computer.execute_tool(Caller("nowhere", "test"), uuid4().hex, "tell", told, 30)
        assert not result.get("isError"), result

    async def change(self, computer: Computer) -> None:
        await self.tell(computer, "notifications/resources/list_changed")
