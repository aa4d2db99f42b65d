"""MCP servers as child processes: environment, reading and writing, and that no process is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.mcp_host.config.servers import parse_server, source
from a2c_smcp.mcp_host.failures import CommandNotFound, ServerGone, StartFailed
from a2c_smcp.mcp_host.processes.environment import child_environment
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.mcp_host.transports.messages import LineDecoder, from_line
from tests.computer.pace import within
from tests.computer.supervised import (
    PATIENCE,
    SERVERS,
    all_gone,
    eventually,
    good,
    is_alive,
    linux_only,
    naughty,
    pids_in,
    session,
    start_and_stop,
    text_of,
)
from tests.executables import executable
from tests.program import start_program
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("mcp-stdio")

GRANDCHILDREN = ["grandchild", "grandchild_setsid", "grandchild_orphaned"]


@cases("command, said", ("no-such-program", "is not on PATH"), ("./no-such-program", "does not exist"))
async def test_a_missing_command_is_refused_at_once_by_name(command: str, said: str) -> None:
    with within(0.5), pytest.raises(CommandNotFound, match=f"'{command}' {said}"):
        await start_and_stop(parse_server({"name": "x", "command": command}))


async def test_what_cannot_be_executed_and_a_missing_working_directory_are_refused_with_a_reason(
    tmp_path: Path,
) -> None:
    broken = executable(tmp_path / "broken", "")
    broken.write_bytes(b"\x7fELF but not really")
    with pytest.raises(StartFailed, match="Exec format error"):
        await start_and_stop(parse_server({"name": "x", "command": str(broken)}))
    with pytest.raises(StartFailed, match="does not exist"):
        await start_and_stop(good(cwd=str(tmp_path / "nowhere")))


async def test_a_server_sees_its_configured_directory_and_environment_only(tmp_path: Path) -> None:
    async with session(good(cwd=str(tmp_path), env={"TOKEN": "for-this-one"})) as one:
        seen = (await one.call_tool(ToolRequest("environment", {}, 60)))["structuredContent"]
    assert seen.pop("CWD") == str(tmp_path)
    assert seen.pop("TOKEN") == "for-this-one"
    assert set(seen) - {"LC_CTYPE"} <= set(child_environment(os.environ, None))


def test_children_inherit_only_harmless_variables_proxies_and_certificates() -> None:
    certificates = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    harmless = ("HOME", "LANG", "LC_ALL", "TMPDIR", "https_proxy", "NO_PROXY", *certificates, "npm_config_cafile")
    inherited = {name: f"the {name}" for name in harmless}
    secret = dict.fromkeys(("NODE_TLS_REJECT_UNAUTHORIZED", "AWS_SECRET_ACCESS_KEY", "A2C_API_KEY"), "0")
    own_of_server = {"PATH": "/mine", "X": "y"}
    seen = child_environment(inherited | secret | {"PATH": "/bin", "SHELL": "() { :; }"}, own_of_server)
    assert seen == inherited | own_of_server


async def test_a_result_of_fifteen_megabytes_takes_less_than_half_a_second(fine: MCPSession) -> None:
    await fine.call_tool(ToolRequest("big", {"size": 1000}, 60))
    with within(0.5):
        result = await fine.call_tool(ToolRequest("big", {"size": 15_000_000}, 20))
    assert len(text_of(result)) == 15_000_000


async def test_garbage_is_skipped_and_counted() -> None:
    async with session(naughty("garbage")) as one:
        assert text_of(await one.call_tool(ToolRequest("echo", {"a": 1}, 60))) == '{"a": 1}'
        assert one.diagnostics["skipped_lines"] == 5


async def test_of_a_flood_on_stderr_the_last_64_kib_are_kept() -> None:
    async with session(naughty("stderr_flood")) as one:
        await eventually(lambda: str(one.diagnostics["stderr"]).endswith("the last line\n"))
        kept = str(one.diagnostics["stderr"])
    assert 60_000 < len(kept.encode()) <= 64 * 1024 + 4
    assert ("line 19999" in kept, "line 1 " in kept) == (True, False)


NPM = """npm error code {code}
npm error errno {code}
npm error request to https://registry.example/server failed, reason: self-signed certificate in certificate chain
npm error A complete log of this run can be found in: /home/ann/.npm/_logs/2026-11-18-debug-0.log
"""
NPM_404 = """npm warn Unknown project config "yes".
npm error code E404
npm error 404 Not Found - GET https://registry.example/nothing - Not found
npm error 404
npm error 404  'nothing@*' is not in this registry.
npm error A complete log of this run can be found in: /home/ann/.npm/_logs/2026-11-18-debug-0.log
"""
NODE = """node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/home/ann/server.js'
    at Function._resolveFilename (node:internal/modules/cjs/loader:1225:15) {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v22.12.0
"""


@cases(
    "said, reason",
    (NPM.format(code="SELF_SIGNED_CERT_IN_CHAIN"), "reason: self-signed certificate in certificate chain"),
    (NPM_404, "npm error 404 Not Found - GET https://registry.example/nothing - Not found"),
    (NODE, "Error: Cannot find module '/home/ann/server.js'"),
    ("ValueError: no key\nshutting down\n3 requests served\n", "ValueError: no key"),
    ("ready\nno licence\n", "no licence"),
    ("npm error\n", "npm error"),
    ("Node.js v22.12.0\n", "Node.js v22.12.0"),
    ids=[
        "npm without trust",
        "npm without a package",
        "Node.js",
        "more after it",
        "words of its own",
        "npm alone",
        "Node.js alone",
    ],
)
async def test_the_line_that_says_why_it_ended_is_the_reason(said: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "said"
    file.write_text(said, "utf-8")
    server = parse_server({"name": "x", "command": "sh", "args": ["-c", 'cat "$1" >&2; exit 1', "sh", str(file)]})
    with pytest.raises(ServerGone, match=f"exited with code 1: .*{re.escape(reason)}$"):
        await start_and_stop(server)


@cases(
    "script, reason",
    ("echo ready to serve >&2; exit 0", "it exited with code 0"),
    ("echo ready to serve >&2; kill -9 $$", "it was killed by SIGKILL"),
    ("echo an old error, long mended >&2; kill -15 $$", "it was killed by SIGTERM"),
    ids=["a line that is no error", "a signal", "a signal after an error"],
)
async def test_a_line_that_says_nothing_of_the_end_is_no_reason(script: str, reason: str) -> None:
    with pytest.raises(ServerGone, match=f": {reason}$"):
        await start_and_stop(parse_server({"name": "x", "command": "sh", "args": ["-c", script]}))


@pytest.mark.parametrize("encoding", ["utf-16-le", "latin-1", "shift_jis"])
async def test_the_encoding_is_honoured(encoding: str) -> None:
    config = naughty(env={"PYTHONIOENCODING": encoding}, encoding=encoding)
    async with session(config) as one:
        result = await one.call_tool(ToolRequest("echo", {"text": "ä漢"}, 60))
        assert json.loads(text_of(result)) == {"text": "ä漢"}


@cases(
    "errors, lines",
    ("strict", ["{}", "\udfff", "[]"]),
    ("replace", ["{}", "a\ufffdb", "[]"]),
    ("ignore", ["{}", "ab", "[]"]),
)
def test_the_error_handler_applies_to_invalid_bytes(errors: str, lines: list[str]) -> None:
    assert LineDecoder("utf-8", errors).feed(b"{}\na\xffb\n[]\n") == lines


def test_lines_come_out_whole_however_they_arrive() -> None:
    text = "ä1\n\n漢字\nlast\nrest"
    for size in range(1, 9):
        decoder, data = LineDecoder("utf-8", "strict"), text.encode()
        parts = [decoder.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert [line for part in parts for line in part] == ["ä1", "", "漢字", "last"]


@pytest.mark.covers("mcp-robust")
def test_faulty_answers_become_errors_of_their_requests() -> None:
    def read(line: str) -> list[dict[str, Any]]:
        return [item.message.model_dump(by_alias=True, exclude_unset=True) for item in from_line(line)]

    assert read('{"id":1,"result":{}}') == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert read('{"id":1,"result":[1]}')[0]["error"]["code"] == -32603
    assert read('{"jsonrpc":"2.0","id":1,"result":{"a":NaN,"s":"\\ud800"}}')[0]["result"] == {"a": None, "s": "\ud800"}
    assert read('{"id":1,"result":{"a":1e400,"b":1.5}}')[0]["result"] == {"a": None, "b": 1.5}
    assert len(read('[{"id":1,"result":{}},{"method":"x"}]')) == 2
    for nonsense in ("", "7", "{", '{"id":1}{', "[" * 100_000, '{"id":{},"result":{}}'):
        with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
            from_line(nonsense)


@pytest.mark.covers("supervise-orphans")
@pytest.mark.parametrize("mode", ["ignores_sigterm", "ignores_eof"])
async def test_a_server_that_refuses_to_end_is_killed_within_five_seconds(mode: str) -> None:
    async with session(naughty(mode)) as one:
        pid = int(str(one.diagnostics["pid"]))
        with within(5):
            await one.stop()
    assert not is_alive(pid)


@linux_only
@pytest.mark.covers("supervise-orphans")
@pytest.mark.parametrize("mode", GRANDCHILDREN)
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_grandchildren_end_with_their_server(is_killed: bool, mode: str, tmp_path: Path) -> None:
    async with session(naughty(mode, tmp_path / "pids")) as one:
        pids = await eventually(lambda: pids_in(tmp_path / "pids"))
        assert all(is_alive(pid) for pid in pids)
        if is_killed:
            with within(2):
                os.kill(int(str(one.diagnostics["pid"])), 9)
                await all_gone(pids)
        else:
            with within(5):
                await one.stop()
            assert not any(is_alive(pid) for pid in pids)


@linux_only
@pytest.mark.covers("supervise-orphans")
async def test_when_the_computer_is_killed_all_its_children_are_gone_within_two_seconds(tmp_path: Path) -> None:
    configs = [source(naughty(mode, tmp_path / mode)) for mode in GRANDCHILDREN]
    configs += [source(naughty("ignores_sigterm")), source(naughty("ignores_eof"))]
    host = await start_program(json.dumps(configs), script=SERVERS / "host.py")
    assert host.stdout is not None
    try:
        pids = json.loads(await asyncio.wait_for(host.stdout.readline(), PATIENCE))
        for mode in GRANDCHILDREN:
            pids += pids_in(tmp_path / mode)
        assert all(is_alive(pid) for pid in pids)
    except BaseException:
        host.kill()
        raise
    with within(2):
        host.kill()
        await host.wait()
        await all_gone(pids)


@linux_only
@pytest.mark.covers("supervise-orphans")
async def test_a_killed_guard_takes_no_server_with_it_and_is_replaced() -> None:
    guard = ProcessGuard()
    argv = [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"]
    try:
        first = await guard.launch(sys.executable, argv, {}, "/")
        assert await first.stdout.readline() == b"here\n"
        process = guard._process
        assert process is not None
        process.kill()
        process.wait()
        second = await guard.launch(sys.executable, argv, {}, "/")
        assert await second.stdout.readline() == b"here\n"
        assert not first.exited.is_set()
        for child in (first, second):
            await child.end(grace=1, term=1, limit=4)
            assert child.exit_code == 0
    finally:
        await guard.close()
