"""Command lines of others sign in, as their users do, and call a tool for a model that a script stands in for."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.bridged import CACHE, KEY, printed, surroundings, visit
from tests.clients.scripted_model import scripted_model
from tests.computer.pseudo_terminal import on_a_terminal
from tests.ports import free_port
from tests.stage.signing_in import Person
from tests.waiting import until_it_goes

pytestmark = [pytest.mark.covers("clients"), pytest.mark.covers("mcp-sign-in")]

MODULES = CACHE / "mcp-clients" / "node_modules"
PLATFORM = f"{sys.platform}-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"
NODE = MODULES / ".bin" / "node"
CODEX = next(iter(MODULES.glob(f"codex-{PLATFORM}/vendor/*/bin/codex")), Path("codex"))
CLAUDE = MODULES / f"@anthropic-ai/claude-code-{PLATFORM}" / "claude"
OPENCODE = MODULES / f"opencode-{PLATFORM}" / "bin" / "opencode"
GEMINI = (NODE, MODULES / "@google/gemini-cli/bundle/gemini.js")
INSPECTOR = (NODE, MODULES / ".bin" / "mcp-inspector")
ASK = "add 1 and 2"
WIDE = 1000
"""Columns: no client breaks the address of the page."""
PAGE = re.compile(r"""http://[^\s\x1b\x07"]*/sign-in/authorize\?[^\s\x1b\x07"]+(?=[\s\x1b\x07"])""")


@dataclass
class Client:
    """How a user signs it in and asks it, and what it shows of a call that has returned 3."""

    login: Sequence[str | Path]
    ask: Sequence[str | Path]
    shows: str
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    types: Sequence[tuple[str, str]] = ()
    """What the user types when the screen shows something."""
    code: int = 0


async def codex(office: str, model: str) -> Client:
    config = f"""
mcp_oauth_credentials_store = "file"
model = "scripted"
model_provider = "scripted"
[model_providers.scripted]
name = "scripted"
base_url = "{model}/v1"
[mcp_servers.desk]
url = "{office}"
default_tools_approval_mode = "approve"
"""
    return Client(
        login=[CODEX, "mcp", "login", "desk"],
        ask=[CODEX, "exec", "--skip-git-repo-check", "--json", ASK],
        shows='"structured_content":{"result":3}',
        files={".codex/config.toml": config},
    )


async def claude_code(office: str, model: str) -> Client:
    server = {"type": "http", "url": office}
    options = ["--allowedTools", "mcp__desk__add", "--output-format", "stream-json", "--verbose"]
    return Client(
        login=[CLAUDE, "mcp", "login", "desk"],
        ask=[CLAUDE, "-p", ASK, "--model", "scripted", *options],
        shows='{\\"result\\":3}',
        files={".claude.json": json.dumps({"hasCompletedOnboarding": True, "mcpServers": {"desk": server}})},
        variables={
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
        },
    )


async def opencode(office: str, model: str) -> Client:
    options = {"baseURL": f"{model}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"scripted": {"tool_call": True}}}
    config = {
        "autoupdate": False,
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "provider": {"scripted": provider},
        "mcp": {"desk": {"type": "remote", "url": office}},
    }
    return Client(
        login=[OPENCODE, "mcp", "auth", "desk"],
        ask=[OPENCODE, "run", "--format", "json", ASK],
        shows='"output":"3"',
        files={".config/opencode/opencode.json": json.dumps(config)},
        variables={"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    )


async def gemini_cli(office: str, model: str) -> Client:
    settings = {
        "mcpServers": {"desk": {"httpUrl": office, "trust": True}},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    return Client(
        login=[*GEMINI, "--prompt", "/mcp auth desk"],
        ask=[*GEMINI, "--model", "gemini-2.5-flash", "--prompt", ASK, "--output-format", "stream-json"],
        shows='"output":"3"',
        files={".gemini/settings.json": json.dumps(settings)},
        variables={"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model},
        types=[("[Y/n]", "y\r")],
        code=42,  # it has signed in, and would now show its tools, which it cannot without its screen
    )


async def inspector(office: str, model: str) -> Client:
    """It has no model, and forgets who has signed in: signing in and the call are one command."""
    call = ["--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=1", "b=2", "--format", "json"]
    callback = ["--callback-url", f"http://127.0.0.1:{free_port()}/oauth/callback"]
    words = [*INSPECTOR, "--cli", office, "--transport", "http", *callback, *call]
    return Client(login=words, ask=[], shows='"structuredContent":{"result":3}')


@pytest.mark.parametrize("client", [codex, claude_code, opencode, gemini_cli, inspector])
async def test_a_command_line_signs_in_as_its_users_do_and_calls(signing_in: str, client: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with scripted_model() as model:
        used: Client = await client(f"{signing_in}/mcp/desk", model)
        for name, text in used.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        environ = {**surroundings(home), "BROWSER": "true", "TERM": "xterm-256color", **used.variables}
        shown = await signed_in(signing_in, used, environ)
        assert used.shows in (await printed(used.ask, environ) if used.ask else shown)


async def signed_in(url: str, client: Client, environ: dict[str, str]) -> str:
    """What the client shows until it ends, while a person opens the page that it names."""
    async with on_a_terminal(*map(str, client.login), env=environ, columns=WIDE) as program:
        for shown, keys in client.types:
            await program.shows(shown)
            program.types(keys)
        await program.shows(lambda screen: PAGE.search(screen.raw))
        found = PAGE.search(program.screen.raw)
        assert found
        led = (await Person(url).sign_in(found[0], KEY)).headers["Location"]
        await until_it_goes(partial(visit, led))
        assert await program.ends() == client.code, program.screen.text
        return program.screen.raw
