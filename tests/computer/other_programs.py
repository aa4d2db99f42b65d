"""Files as other programs have them, with secrets that nobody has used before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

__all__ = ["FILES", "Home", "Sample"]


@dataclass
class Sample:
    """A file, the secrets in it, and the words in which it is told what is not taken over."""

    path: str
    text: str
    secrets: list[str]
    told: list[str]
    servers: dict[str, Any]
    """As they start once all inputs are filled in."""
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Home:
    """A person's home, where the project is a folder."""

    path: Path

    @property
    def project(self) -> Path:
        return self.path / "project"

    def put(self, sample: Sample) -> Path:
        file = self.path / sample.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(sample.text, "utf-8")
        return file


def _new(prefix: str = "") -> str:
    return f"{prefix}{uuid4().hex}"


def _stdio(command: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"command": command, "args": list(args), **more}


def claude_desktop() -> Sample:
    token, password, api_key = _new("ghp_"), _new("pw"), _new()[:9]
    database = f"postgresql://reader:{password}@db.example:5432/sales"
    servers: dict[str, Any] = {
        "filesystem": _stdio("npx", "-y", "@modelcontextprotocol/server-filesystem", "/Users/ann/Documents"),
        "github": _stdio(
            *("docker", "run", "-i", "--rm", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", "ghcr.io/github/github-mcp-server"),
            env={"GITHUB_PERSONAL_ACCESS_TOKEN": token, "LOG_LEVEL": "debug"},
        ),
        "postgres": _stdio("npx", "-y", "@modelcontextprotocol/server-postgres", database),
        "search": _stdio("uvx", "search-mcp", "--api-key", api_key, "--limit", "5"),
        "tracker": _stdio(
            *("npx", "mcp-remote", "https://tracker.example/sse", "--header", "Authorization: Bearer ${AUTH_TOKEN}"),
            env={"AUTH_TOKEN": "${AUTH_TOKEN}"},  # which Claude Desktop does not fill in
        ),
    }
    written = {**servers, "postgres": {**servers["postgres"], "autoApprove": ["query"]}}
    text = json.dumps({"globalShortcut": "Ctrl+Space", "mcpServers": written}, indent=2)
    told = ["left out: globalShortcut", "servers.postgres.autoApprove is an unknown field and is left out"]
    return Sample(".config/Claude/claude_desktop_config.json", text, [token, password, api_key], told, servers)


def claude_code() -> Sample:
    fallback, key = _new("sk-"), _new()
    api = {"type": "http", "url": "${API_BASE:-https://api.example}/mcp", "timeout": 600000}
    given = {
        "api": {**api, "headers": {"Authorization": "Bearer ${API_KEY:-" + fallback + "}"}},
        "events": {"type": "sse", "url": f"https://events.example/sse?room=7&access_token={key}"},
        "local": _stdio("${HOME}/bin/serve", "--region", "${REGION}", env={"CACHE": "${CACHE_DIR:-/tmp/cache}"}),
    }
    started = {
        "api": {"url": "https://api.example/mcp", "headers": {"Authorization": f"Bearer {fallback}"}},
        "events": {"url": f"https://events.example/sse?room=7&access_token={key}"},
        "local": _stdio("/home/of/ann/bin/serve", "--region", "north", env={"CACHE": "/tmp/cache"}),
    }
    told = ["servers.api.timeout is an unknown field and is left out", "REGION (A2C_INPUT_REGION)"]
    file = "project/.mcp.json"
    return Sample(file, json.dumps({"mcpServers": given}), [fallback, key], told, started, {"REGION": "north"})


def cursor() -> Sample:
    token, key = _new(), _new()
    given = {
        "linear": {"url": "https://linear.example/sse", "headers": {"Authorization": f"Bearer {token}"}},
        "docs": {"url": f"https://docs.example/s/{key}/mcp", "headers": {"X-Team": "${env:TEAM}"}},
        "notes": _stdio("node", "${workspaceFolder}/notes.js", env={"DEPTH": 3}, envFile=".env"),
    }
    started = {
        "linear": given["linear"],
        "docs": {"url": f"https://docs.example/s/{key}/mcp", "headers": {"X-Team": "blue"}},
        "notes": _stdio("node", "PROJECT/notes.js", env={"DEPTH": "3"}),
    }
    told = ["servers.notes.envFile is an unknown field and is left out", "TEAM (A2C_INPUT_TEAM)"]
    path = "project/.cursor/mcp.json"
    return Sample(path, json.dumps({"mcpServers": given}), [token, key], told, started, {"TEAM": "blue"})


def vscode() -> Sample:
    secret = _new()
    text = """{
  // servers of the team
  "inputs": [
    {"id": "token", "type": "promptString", "description": "Token", "password": true, "default": "SECRET"},
    {"id": "place", "type": "pickString", "options": [{"label": "North", "value": "n"}, "s"], "default": "n"},
    {"id": "signed-in", "type": "command", "command": "touch was-run", "args": {"scope": "all"}},
    {"id": "forgotten", "type": "promptString"},
  ],
  "servers": {
    "hub": {
      "type": "http",
      "url": "https://hub.example/mcp",
      "headers": {"Authorization": "Bearer ${input:token}", "X-Session": "${input:signed-in}"},
      "gallery": true, /* from the gallery */
    },
    "files": {"type": "stdio", "command": "npx", "args": ["files", "--at=${input:place}", "${config:files.mode}"]},
  },
}""".replace("SECRET", secret)
    headers = {"Authorization": f"Bearer {secret}", "X-Session": "typed in"}
    started = {
        "hub": {"url": "https://hub.example/mcp", "headers": headers},
        "files": _stdio("npx", "files", "--at=n", "${config:files.mode}"),
    }
    told = [
        "servers.hub.gallery is an unknown field and is left out",
        "inputs.signed-in was a command",
        "inputs.forgotten is used by no server",
        "${config:files.mode} stays as it is",
    ]
    return Sample("project/.vscode/mcp.json", text, [secret], told, started, {"signed-in": "typed in"})


def plain() -> Sample:
    token, cookie = _new("glpat-"), _new()
    servers = {
        "lab": _stdio("lab-mcp", f"--access={token}", env={"SETTINGS": json.dumps({"api_token": cookie, "depth": 2})}),
        "web": {"url": "https://web.example/mcp", "headers": {"Cookie": f"session={cookie}", "Accept": "text/plain"}},
    }
    listed = [{"name": name, **server} for name, server in servers.items()]
    return Sample("project/servers.json", json.dumps(listed), [token, cookie], [], servers)


FILES: dict[str, Callable[[], Sample]] = {
    "claude-desktop": claude_desktop,
    "claude-code": claude_code,
    "cursor": cursor,
    "vscode": vscode,
    "servers.json": plain,
}
"""By what is said on the command line."""
