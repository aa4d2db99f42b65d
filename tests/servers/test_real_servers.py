"""Servers of npm and PyPI that people use, each added by one line: those work in their sandbox that the page says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from a2c_smcp.computer.configuration.files import read_configuration
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import managed, text_of
from tests.stage.guides import GUIDES
from tests.stage.place import Place

PAGE = GUIDES / "add-servers.md"
DOWNLOAD = 900.0
"""A bound against hanging."""

pytestmark = [
    pytest.mark.covers("add-real"),
    pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports"),
]


class Tried(NamedTuple):
    """The words of `add`, a call, and what is in its answer. `fails`: it does not work, and says this."""

    words: str
    tool: str
    given: dict[str, Any]
    answer: str
    fails: bool = False


ENTITY = {"name": "desk", "entityType": "thing", "observations": ["four legs"]}
THOUGHT = {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
PIE = {"data": [{"category": "rent", "value": 1}], "outputType": "option"}
SERVERS = {
    "everything": Tried("-- npx -y @modelcontextprotocol/server-everything", "echo", {"message": "hello"}, "hello"),
    "filesystem": Tried(
        "--write {folder} -- npx -y @modelcontextprotocol/server-filesystem {folder}",
        "list_directory",
        {"path": "{folder}"},
        "[FILE] note.html",
    ),
    "memory": Tried(
        "--env MEMORY_FILE_PATH={{data}}/memory.jsonl -- npx -y @modelcontextprotocol/server-memory",
        "create_entities",
        {"entities": [ENTITY]},
        "four legs",
    ),
    "thinking": Tried(
        "-- npx -y @modelcontextprotocol/server-sequential-thinking", "sequentialthinking", THOUGHT, "totalThoughts"
    ),
    "charts": Tried("-- npx -y mcp-echarts", "generate_pie_chart", PIE, "rent"),
    "browser": Tried(
        "--network all -- npx -y @playwright/mcp --headless --isolated",
        "browser_navigate",
        {"url": "data:text/html,hello"},
        "### Error",
        fails=True,
    ),
    "time": Tried("-- uvx mcp-server-time --local-timezone UTC", "get_current_time", {"timezone": "UTC"}, "UTC"),
    "git": Tried(
        "--write {folder} -- uvx mcp-server-git --repository {folder}",
        "git_status",
        {"repo_path": "{folder}"},
        "note.html",
    ),
    "fetch": Tried(
        "--network {port} -- uvx mcp-server-fetch --ignore-robots-txt --allow-private-ips",
        "fetch",
        {"url": "http://127.0.0.1:{port}/note.html", "raw": True},
        "read me",
    ),
    "sqlite": Tried(
        "-- uvx --with mcp<2 mcp-server-sqlite --db-path {{data}}/notes.db",
        "write_query",
        {"query": "CREATE TABLE notes (text)"},
        "affected_rows",
    ),
    "word": Tried(
        "-- uvx --from office-word-mcp-server word_mcp_server",
        "create_document",
        {"filename": "letter.docx"},
        "created successfully",
    ),
    "excel": Tried("-- uvx --with mcp<2 excel-mcp-server stdio", "", {}, "excel-mcp.log", fails=True),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "note.html").write_text("<html><body><p>read me</p></body></html>")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_that_is_added_answers_in_its_sandbox(name: str, place: Place, folder: Path, port: int) -> None:
    tried, places = SERVERS[name], {"folder": str(folder), "port": port}
    program = await place.start("add", name, "--yes", *tried.words.format(**places).split())
    code = await program.ends(within=DOWNLOAD)
    if tried.fails and code:
        assert tried.answer in program.said
        return
    assert code == 0, program.said
    config = read_configuration(place.folder / "a2c.json").servers[name]
    given = {key: value.format(**places) if isinstance(value, str) else value for key, value in tried.given.items()}
    async with managed(config) as (manager, _, _events):
        assert manager[name].tools, manager.status()[name].reason
        result = await manager[name].requests.call_tool(ToolRequest(tried.tool, given, 60))
    assert tried.answer in text_of(result)
    assert bool(result.get("isError")) == tried.fails


def test_the_page_names_these_servers_and_those_that_do_not_work() -> None:
    lines = re.findall(r"^\| `a2c-smcp add (\S+) .*\| (yes|no: .*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: not works.startswith("yes") for name, works in lines} == {
        name: tried.fails for name, tried in SERVERS.items()
    }
    assert sum(not tried.fails for tried in SERVERS.values()) >= 10
