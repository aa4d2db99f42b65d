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
    naughty,
    pids_in,
    session,
    text_of,
)
from tests.program import start_program

GRANDCHILDREN = ["grandchild", "grandchild_setsid", "grandchild_orphaned"]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")


@pytest.mark.covers("mcp-stdio")
async def test_a_missing_command_is_refused_at_once_by_name() -> None:
    with within(0.5), pytest.raises(CommandNotFound, match="'no-such-program' is not on PATH"):
        async with session(parse_server({"name": "x", "command": "no-such-program"})):
            pass
    with within(0.5), pytest.raises(CommandNotFound, match=r"'\./no-such-program' does not exist"):
        async with session(parse_server({"name": "x", "command": "./no-such-program"})):
            pass


@pytest.mark.covers("mcp-stdio")
async def test_a_file_that_cannot_be_executed_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    with pytest.raises(StartFailed, match="Exec format error"):
        async with session(parse_server({"name": "x", "command": str(broken)})):
            pass


@pytest.mark.covers("mcp-stdio")
async def test_a_missing_working_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="does not exist"):
        async with session(good(cwd=str(tmp_path / "nowhere"))):
            pass


@pytest.mark.covers("mcp-stdio")
async def test_a_server_sees_its_configured_directory_and_environment_only(tmp_path: Path) -> None:
    async with session(good(cwd=str(tmp_path), env={"TOKEN": "for-this-one"})) as one:
        seen = (await one.call_tool(ToolRequest("environment", {}, 60)))["structuredContent"]
    assert seen.pop("CWD") == str(tmp_path)
    assert seen.pop("TOKEN") == "for-this-one"
    assert set(seen) - {"LC_CTYPE"} <= set(child_environment(os.environ, None))


@pytest.mark.covers("mcp-stdio")
def test_children_inherit_only_harmless_variables_proxies_and_certificates() -> None:
    inherited = {
        "HOME": "/h",
        "LANG": "C",
        "LC_ALL": "C",
        "TMPDIR": "/t",
        "https_proxy": "p",
        "NO_PROXY": "n",
        "SSL_CERT_FILE": "/ca.pem",
        "SSL_CERT_DIR": "/certs",
        "NODE_EXTRA_CA_CERTS": "/ca.pem",
        "REQUESTS_CA_BUNDLE": "/ca.pem",
        "CURL_CA_BUNDLE": "/ca.pem",
        "npm_config_cafile": "/ca.pem",
    }
    kept_back = {
        "NODE_TLS_REJECT_UNAUTHORIZED": "0",
        "AWS_SECRET_ACCESS_KEY": "s",
        "A2C_API_KEY": "k",
        "SHELL": "() { :; }",
    }
    own_of_server = {"PATH": "/mine", "X": "y"}
    seen = child_environment(inherited | kept_back | {"PATH": "/bin"}, own_of_server)
    assert seen == inherited | own_of_server


@pytest.mark.covers("mcp-stdio")
async def test_a_result_of_fifteen_megabytes_takes_less_than_half_a_second() -> None:
    async with session(naughty()) as one:
        await one.call_tool(ToolRequest("big", {"size": 1000}, 60))
        with within(0.5):
            result = await one.call_tool(ToolRequest("big", {"size": 15_000_000}, 20))
    assert len(text_of(result)) == 15_000_000


@pytest.mark.covers("mcp-stdio")
async def test_garbage_is_skipped_and_counted() -> None:
    async with session(naughty("garbage")) as one:
        assert text_of(await one.call_tool(ToolRequest("echo", {"a": 1}, 60))) == '{"a": 1}'
        assert one.diagnostics["skipped_lines"] == 5


@pytest.mark.covers("mcp-stdio")
async def test_of_a_flood_on_stderr_the_last_64_kib_are_kept() -> None:
    async with session(naughty("stderr_flood")) as one:
        await eventually(lambda: str(one.diagnostics["stderr"]).endswith("the last line\n"))
        kept = str(one.diagnostics["stderr"])
    assert 60_000 < len(kept.encode()) <= 64 * 1024 + 4
    assert "line 19999" in kept
    assert "line 1 " not in kept


@pytest.mark.covers("mcp-stdio")
async def test_the_failure_says_how_a_server_ended() -> None:
    with pytest.raises(ServerGone, match="exited with code 7: I do not feel like it"):
        async with session(naughty("exits")):
            pass
    async with session(naughty()) as one:
        os.kill(int(str(one.diagnostics["pid"])), 9)
        with pytest.raises(ServerGone, match="killed by SIGKILL"):
            await one.call_tool(ToolRequest("never", {}, 60))
        assert one.diagnostics["exit_code"] == -9


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


@pytest.mark.covers("mcp-stdio")
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (NPM.format(code="SELF_SIGNED_CERT_IN_CHAIN"), "reason: self-signed certificate in certificate chain"),
        (NPM_404, "npm error 404 Not Found - GET https://registry.example/nothing - Not found"),
        (NODE, "Error: Cannot find module '/home/ann/server.js'"),
        ("npm error\n", "npm error"),
        ("Node.js v22.12.0\n", "Node.js v22.12.0"),
    ],
    ids=["npm without trust", "npm without a package", "Node.js", "npm alone", "Node.js alone"],
)
async def test_the_line_that_says_why_it_ended_is_the_reason(said: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "said"
    file.write_text(said, "utf-8")
    server = parse_server({"name": "x", "command": "sh", "args": ["-c", 'cat "$1" >&2; exit 1', "sh", str(file)]})
    with pytest.raises(ServerGone, match=f"exited with code 1: .*{re.escape(reason)}$"):
        async with session(server):
            pass


@pytest.mark.covers("mcp-stdio")
@pytest.mark.parametrize("encoding", ["utf-16-le", "latin-1", "shift_jis"])
async def test_the_encoding_is_honoured(encoding: str) -> None:
    config = naughty(env={"PYTHONIOENCODING": encoding}, encoding=encoding)
    async with session(config) as one:
        result = await one.call_tool(ToolRequest("echo", {"text": "ä漢"}, 60))
        assert json.loads(text_of(result)) == {"text": "ä漢"}


@pytest.mark.covers("mcp-stdio")
@pytest.mark.parametrize(
    ("errors", "lines"),
    [("strict", ["{}", "\udfff", "[]"]), ("replace", ["{}", "a\ufffdb", "[]"]), ("ignore", ["{}", "ab", "[]"])],
)
def test_the_error_handler_applies_to_invalid_bytes(errors: str, lines: list[str]) -> None:
    assert LineDecoder("utf-8", errors).feed(b"{}\na\xffb\n[]\n") == lines


@pytest.mark.covers("mcp-stdio")
def test_lines_come_out_whole_however_they_arrive() -> None:
    text = "ä1\n\n漢字\nlast\nrest"
    for size in range(1, 9):
        decoder, data = LineDecoder("utf-8", "strict"), text.encode()
        parts = [decoder.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert [line for part in parts for line in part] == ["ä1", "", "漢字", "last"]


@pytest.mark.covers("mcp-stdio", "mcp-robust")
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
async def test_grandchildren_end_with_a_server_that_is_stopped(mode: str, tmp_path: Path) -> None:
    async with session(naughty(mode, tmp_path / "pids")) as one:
        pids = await eventually(lambda: pids_in(tmp_path / "pids"))
        assert all(is_alive(pid) for pid in pids)
        with within(5):
            await one.stop()
    assert not any(is_alive(pid) for pid in pids)


@linux_only
@pytest.mark.covers("supervise-orphans")
@pytest.mark.parametrize("mode", GRANDCHILDREN)
async def test_grandchildren_end_with_a_server_that_is_killed(mode: str, tmp_path: Path) -> None:
    async with session(naughty(mode, tmp_path / "pids")) as one:
        pids = await eventually(lambda: pids_in(tmp_path / "pids"))
        with within(2):
            os.kill(int(str(one.diagnostics["pid"])), 9)
            await all_gone(pids)


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
