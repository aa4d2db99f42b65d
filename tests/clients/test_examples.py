"""Every example runs, as its docstring says, and shows what it is there to show."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted
from tests.stage.installed import installed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
PATIENCE = 90.0
STAGE = "office"
"""Not an example: what the others are played in."""

SHOWN = {
    "functions_only": (
        "agent: sees add_item: Put something on the shopping list.",
        "agent: the list is {'result': ['milk', 'egg', 'egg']}",
        "owner: may planner run clear_list? no",
        "agent: Approval refused: the owner said no to 'clear_list'",
    ),
    "two_computers": (
        "in the office: desk/laptop, desk/phone",
        "tools: battery, notify, phone__battery",
        "shown: phone is at 15 %",
    ),
    "windows": (
        "  window://example.kitchen/timer?priority=80 shows: 0 minutes left",
        "  window://example.kitchen/notes?priority=10 shows: The oven is slow.",
        "  window://example.kitchen/timer?priority=80 shows: 5 minutes left",
    ),
    "openai_loop": ("model: hears What is 6 times 7?", 'model: hears {"result": 42}', "answer: It is 42."),
    "langchain_loop": (
        "model: knows word_count",
        "tool: word_count({'text': 'to be or not to be'}) is a success: {\"result\": 6}",
        "answer: It has 6 words.",
    ),
}
"""The lines that each of them prints, in this order."""

SERVED = (
    *("fastapi_app", "ledger_server", "library_server", "restaurant_server", "scanner_server", "skill_server"),
    *("window_server", "changing_server", "redact_emails"),
)
"""Those that other programs use. They are tested here, by `windows` and in `tests/test_guides.py`."""

ELSEWHERE = ("cluster", "sign_in")
"""Those that are tested in `tests/nodes/test_cluster_example.py` and `tests/server/test_sign_in_example.py`."""

pytestmark = pytest.mark.covers("examples")


async def start(name: str, folder: Path, **environ: str) -> asyncio.subprocess.Process:
    theirs = {key: value for key, value in os.environ.items() if not key.startswith("A2C_")}
    environ = {**theirs, "XDG_STATE_HOME": str(folder), "PYTHONUNBUFFERED": "1", **environ}
    python = installed("examples", "examples") / "bin/python"
    return await asyncio.create_subprocess_exec(
        python, "-W", "error", FOLDER / f"{name}.py", cwd=ROOT, env=environ, stdin=-3, stdout=-1, stderr=-1
    )


def test_every_example_is_tested_and_says_how_it_is_run() -> None:
    examples = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.py") if path.stem != STAGE}
    assert examples.keys() == {*SHOWN, *SERVED, *ELSEWHERE}
    assert [name for name, text in examples.items() if f"python examples/{name}.py" not in text] == []
    assert [name for name, text in examples.items() if "def main() -> None:" not in text] == []


@pytest.mark.parametrize("name", SHOWN)
async def test_an_example_shows_what_it_is_there_to_show(name: str, tmp_path: Path) -> None:
    process = await start(name, tmp_path)
    async with asyncio.timeout(PATIENCE):
        out, err = (part.decode() for part in await process.communicate())
    assert (process.returncode, err) == (0, "")
    printed = out.splitlines()
    assert [line for line in dict.fromkeys(printed) if line in SHOWN[name]] == [*SHOWN[name]], out


@asynccontextmanager
async def application(folder: Path) -> AsyncIterator[str]:
    """The FastAPI application, listening."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await start("fastapi_app", folder, PORT=str(port), A2C_SERVER_API_KEY="of this test")
    try:
        assert process.stderr
        async with asyncio.timeout(PATIENCE):
            while b"running on" not in (line := await process.stderr.readline()):
                assert line, "it ended before it listened"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
    assert b"Traceback" not in err
    assert b"Application shutdown complete" in err


async def call(http: aiohttp.ClientSession, tool: str, arguments: Any) -> tuple[int, Any]:
    async with http.post(f"/call/laptop/{tool}", json=arguments) as response:
        return response.status, await response.json()


async def test_the_fastapi_application_calls_tools_of_computers_that_joined_its_server(tmp_path: Path) -> None:
    computer = Computer("laptop")

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with (
        application(tmp_path) as url,
        hosted(computer, f"{url}/a2c", "desk", tmp_path, api_key="of this test"),
        aiohttp.ClientSession(url) as http,
    ):
        async with http.get("/tools") as response:
            assert (await response.json())["add"]["description"] == "Add two numbers."
        status, result = await call(http, "add", {"a": 2, "b": 3})
        assert (status, result["content"][0]["text"]) == (200, "5")
        status, result = await call(http, "subtract", {})
        assert (status, result["detail"]) == (404, "No such tool: 'subtract'. It has add.")
        status, result = await call(http, "add", {"a": 2})
        assert status == 400
        assert "required" in result["detail"]
