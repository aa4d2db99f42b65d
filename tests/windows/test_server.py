"""`a2c-smcp server` in Windows' own Python, with peers on Linux."""

from __future__ import annotations

import json
import signal
from urllib.parse import urlsplit

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import NotAuthenticated
from tests.computer.hosted import hosted
from tests.program import run_program
from tests.windows.conftest import OnWindows, is_clean

LONG = 240.0
KEY = "a2c_" + "k" * 40


@pytest.mark.covers("windows-programs")
async def test_a_server_relays_calls_keeps_an_audit_file_and_ends_cleanly(windows: OnWindows) -> None:
    server = await windows.a2c("server", "--port", "0", "--audit", "audit.jsonl", A2C_SERVER_API_KEY=KEY)
    url = await server.listens(LONG)
    computer = Computer("laptop")

    @computer.tool(auto_apply=True)
    def greet(name: str) -> str:
        return f"Grüße, {name}"

    with pytest.raises(NotAuthenticated):
        await AsyncSMCPAgentClient("stranger", url=url, office="desk", api_key="wrong").connect()
    async with (
        hosted(computer, url, "desk", windows.folder / "computer", api_key=KEY),
        AsyncSMCPAgentClient("planner", url=url, office="desk", api_key=KEY) as agent,
    ):
        for _ in range(20):
            assert (await agent.emit_tool_call("laptop", "greet", {"name": "Zoë ✓"})).text == "Grüße, Zoë ✓"
    server.signal(signal.SIGINT)
    assert await server.ends(LONG) == 0, server.said
    assert is_clean(server.said)
    verified = run_program("audit", "verify", windows.folder / "audit.jsonl")  # on Linux: the files are the same
    assert verified.returncode == 0, verified.stderr
    events = [json.loads(line)["event"] for line in (windows.folder / "audit.jsonl").read_bytes().splitlines()]
    assert events.count("call ended") == 20 or events.count("call") == 20, events


@pytest.mark.covers("windows-programs")
async def test_a_port_belongs_to_one_server(windows: OnWindows) -> None:
    server = await windows.a2c("server", "--port", "0")
    port = urlsplit(await server.listens(LONG)).port
    second = await windows.a2c("server", "--port", str(port))
    assert await second.ends(LONG) == 1
    assert await second.says("Cannot listen on 127.0.0.1")


OF_A_LIBRARY = "aiofastnet openssl_compat error: "
"""Printed where Python is in a folder whose name the code page lacks, such as that of CI."""

CANNOT_EXIST = {
    "workers": (["server", "--port", "0", "--workers", "2"], "processes cannot share a port, as --workers wants"),
}


@pytest.mark.covers("windows-limits")
@pytest.mark.parametrize(("words", "said"), CANNOT_EXIST.values(), ids=list(CANNOT_EXIST))
async def test_what_windows_lacks_is_said_in_one_sentence_before_anything_starts(
    words: list[str], said: str, windows: OnWindows
) -> None:
    program = await windows.a2c(*words)
    assert await program.ends(LONG) == 2
    (line,) = [line for line in program.err if not line.startswith(OF_A_LIBRARY)]
    assert said in line
    assert program.out == []


ROTATES = """
from pathlib import Path
from a2c_smcp.audit.file import AuditFile
file = AuditFile(Path("audit.jsonl"), largest=2000, kept=50)
for number in range(200):
    file.write({"event": "test", "number": number})
    file.flush()
file.close()
"""


@pytest.mark.covers("windows-programs")
async def test_an_audit_file_rotates_and_its_chain_holds(windows: OnWindows) -> None:
    program = await windows.start("-c", ROTATES)
    assert await program.ends(LONG) == 0, program.said
    assert len(list(windows.folder.glob("audit.jsonl.[0-9]*"))) > 3
    verified = run_program("audit", "verify", windows.folder / "audit.jsonl")
    assert verified.returncode == 0, verified.stderr
