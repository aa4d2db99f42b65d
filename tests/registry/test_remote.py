"""Tools of real MCP servers in a registry: one adapter, and all tools of a server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout, ConfigError, ServerNotFound
from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.failures import ServerExists, ServerGone, ServerNotReady
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.registry import MCPRegistry, ToolFailed
from a2c_smcp.registry.content import value_of
from a2c_smcp.registry.functions import InvalidArguments
from a2c_smcp.registry.remote import RemoteMCPAdapter
from a2c_smcp.registry.remote.servers import ServerAddress
from a2c_smcp.registry.toolset import UnknownTool
from tests.computer.hosted import pids_with
from tests.computer.supervised import is_alive, serving
from tests.program import forked, run_program
from tests.registry.servers import COMMAND, PATIENCE, descendants, good, wait_for
from tests.registry.tools import registry_of
from tests.stage.raising import raises

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.fixture
def marker() -> str:
    return f"marker-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def lasting() -> Iterator[str]:
    """The marker of a server that is there for all tests that do it no harm."""
    name = f"marker-{uuid.uuid4().hex}"
    with RemoteMCPAdapter("add", config=good(marker=name)) as adapter:
        adapter.call({"a": 0, "b": 0})
        yield name


@pytest.fixture
def add(lasting: str) -> Iterator[RemoteMCPAdapter]:
    with RemoteMCPAdapter("add", "Add", NUMBERS, config=good(marker=lasting)) as adapter:
        yield adapter


@pytest.fixture
def own_add(marker: str) -> Iterator[RemoteMCPAdapter]:
    with RemoteMCPAdapter("add", "Add", NUMBERS, config=good(marker=marker)) as adapter:
        yield adapter


def of_good(name: str, marker: str, **options: Any) -> RemoteMCPAdapter:
    return RemoteMCPAdapter(name, config=good(marker=marker), **options)


def text(*lines: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": line} for line in lines], **more}


# One tool


def test_the_adapter_of_001_is_a_tool() -> None:
    remote = RemoteMCPAdapter(name="add", description="Add two numbers", input_schema=NUMBERS, server_cmd=COMMAND)
    registry = registry_of(remote)
    try:
        assert registry.describe() == {"add": {"description": "Add two numbers", "input_schema": NUMBERS}}
        assert registry.call("add", {"a": 1, "b": 2}) == {"result": 3}
    finally:
        remote.close()


IMAGE = {"type": "image", "data": "", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (text("3", structuredContent={"result": 3}), {"result": 3}),
        (text("one", "two"), "one\ntwo"),
        (text("", structuredContent={}), {}),
        ({"content": []}, None),
        ({}, None),
        ({"content": [*text("see")["content"], IMAGE]}, [{"type": "text", "text": "see"}, IMAGE]),
    ],
)
def test_an_mcp_result_becomes_a_python_value(result: dict[str, Any], value: Any) -> None:
    assert value_of(result) == value


def test_an_error_result_is_raised_with_its_text() -> None:
    with pytest.raises(ToolFailed, match="no such city") as caught:
        value_of(text("no such city", isError=True))
    assert caught.value.result["isError"]


@pytest.mark.parametrize(
    ("structured", "reason"),
    [
        ({"error": "no such city"}, "Tool failed: no such city"),
        ({"error": {"code": 7}}, 'Tool failed: {"code": 7}'),
        ({"reason": "城"}, 'Tool failed: {"reason": "城"}'),
        ({}, "Tool failed"),
        (None, "Tool failed"),
    ],
)
def test_an_error_without_text_uses_its_structured_content(structured: Any, reason: str) -> None:
    with raises(ToolFailed, message=reason):
        value_of({"content": [], "structuredContent": structured, "isError": True})


def test_a_failing_tool_raises_unless_its_adapter_returns_raw_results(lasting: str) -> None:
    with of_good("add", lasting, raw=True) as raw, of_good("fail", lasting, raw=True) as failing:
        assert raw.call({"a": 1, "b": 2})["structuredContent"] == {"result": 3}
        assert failing.call({})["isError"]
    with of_good("fail", lasting) as adapter, pytest.raises(ToolFailed, match="fail"):
        adapter.call({})


async def test_an_adapter_can_be_awaited_in_any_event_loop(add: RemoteMCPAdapter) -> None:
    assert await add.acall({"a": 1, "b": 2}) == {"result": 3}

    def elsewhere() -> Any:
        return asyncio.run(add.acall({"a": 2, "b": 2}))

    assert await asyncio.to_thread(elsewhere) == {"result": 4}


@pytest.mark.parametrize("timeout", [None, PATIENCE], ids=["no timeout", "with a timeout it runs in a thread"])
async def test_the_registry_awaits_an_adapter_and_refuses_to_block_an_event_loop(
    add: RemoteMCPAdapter, timeout: float | None
) -> None:
    registry, numbers = MCPRegistry(timeout=timeout), {"a": 1, "b": 2}
    registry.register(add)
    assert await registry.acall("add", numbers) == {"result": 3}
    for call in (lambda: add.call(numbers), lambda: registry.call("add", numbers)):
        with pytest.raises(LoopIsRunning, match="await acall"):
            call()
    assert await asyncio.to_thread(registry.call, "add", numbers) == {"result": 3}


def test_many_threads_share_one_session(own_add: RemoteMCPAdapter, marker: str) -> None:
    with of_good("add", marker) as other, ThreadPoolExecutor(8) as pool:
        adapters = [own_add, other] * 50
        results = pool.map(lambda pair: pair[1].call({"a": pair[0], "b": 1}), enumerate(adapters))
        assert [result["result"] for result in results] == [*range(1, 101)]
        assert len(pids_with(marker)) == 1


def test_the_last_adapter_of_a_server_ends_it(own_add: RemoteMCPAdapter, marker: str) -> None:
    with of_good("add", marker) as other:
        own_add.call({"a": 1, "b": 1})
        other.call({"a": 1, "b": 1})
    assert pids_with(marker)
    own_add.close()
    assert not pids_with(marker)


def test_a_closed_adapter_says_so(add: RemoteMCPAdapter) -> None:
    add.close()
    with pytest.raises(ServerNotReady, match="closed"):
        add.call({"a": 1, "b": 1})


async def test_leaving_the_async_context_ends_the_server(marker: str) -> None:
    async with of_good("add", marker) as adapter:
        await adapter.acall({"a": 1, "b": 1})
    assert not pids_with(marker)


async def test_closing_in_an_event_loop_does_not_block_it(marker: str) -> None:
    adapter = of_good("add", marker)
    await adapter.acall({"a": 1, "b": 1})
    adapter.close()
    await asyncio.to_thread(wait_for, lambda: not pids_with(marker))


def test_a_remote_call_has_a_timeout(add: RemoteMCPAdapter, lasting: str) -> None:
    add.call({"a": 1, "b": 1})
    with of_good("slow", lasting, timeout=0.5) as slow, pytest.raises(CallTimeout):
        slow.call({"steps": 1, "pause": 60})
    assert add.call({"a": 1, "b": 1}) == {"result": 2}


async def test_a_cancelled_call_leaves_the_session_usable(add: RemoteMCPAdapter, lasting: str) -> None:
    await add.acall({"a": 1, "b": 1})
    async with of_good("slow", lasting) as slow:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.acall({"steps": 1, "pause": 60}), 0.2)
        assert await add.acall({"a": 1, "b": 1}) == {"result": 2}


def test_an_unknown_remote_tool_is_refused_with_similar_names(lasting: str) -> None:
    with (
        of_good("ad", lasting) as adapter,
        pytest.raises(UnknownTool, match=r"'good' has no tool 'ad'.*'add'") as caught,
    ):
        adapter.call({})
    assert caught.value.details["near"][0] == "add"


def test_an_adapter_can_rename_a_tool(lasting: str) -> None:
    with of_good("plus", lasting, tool="add") as adapter:
        assert adapter.call({"a": 1, "b": 2}) == {"result": 3}


def test_a_crashed_server_is_started_again_for_the_next_call(own_add: RemoteMCPAdapter, marker: str) -> None:
    with of_good("crash", marker) as crash, pytest.raises(ServerGone, match="crashing as asked"):
        crash.call({})
    assert own_add.call({"a": 1, "b": 2}) == {"result": 3}


def test_a_command_that_does_not_exist_is_named() -> None:
    adapter = RemoteMCPAdapter("x", server_cmd=["no-such-program"])
    with adapter, pytest.raises(ServerNotReady, match="no-such-program"):
        adapter.call({})


@pytest.mark.parametrize(("kind", "path"), [("streamable", "mcp"), ("sse", "sse")])
def test_servers_are_reached_over_http(kind: str, path: str) -> None:
    with serving() as (port, _):
        config = {"name": "far", "type": kind, "server_parameters": {"url": f"http://127.0.0.1:{port}/{path}"}}
        with RemoteMCPAdapter("add", config=parse_server(config)) as adapter:
            assert adapter.call({"a": 1, "b": 2}) == {"result": 3}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, TypeError, "either server_cmd or config"),
        ({"server_cmd": COMMAND, "config": good()}, TypeError, "either server_cmd or config"),
        ({"server_cmd": "python server.py"}, TypeError, "server_cmd is a list"),
        ({"server_cmd": []}, TypeError, "server_cmd is a list"),
        ({"config": {"name": "x"}}, ConfigError, "type"),
        ({"config": {"name": "x", "command": "y", "args": ["${input:key}"]}}, ConfigError, "cannot ask"),
    ],
)
def test_an_invalid_server_is_refused_at_once(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RemoteMCPAdapter("tool", **options)


@pytest.mark.parametrize("arguments", [{"a": object()}, {"a": b"\xff"}, {"a": CIRCLE}, ["a"], None])
def test_arguments_that_are_not_a_json_object_are_refused(add: RemoteMCPAdapter, arguments: Any) -> None:
    with pytest.raises(InvalidArguments):
        add.call(arguments)


# A whole server


@pytest.fixture
def registry() -> Iterator[MCPRegistry]:
    tools = MCPRegistry()
    yield tools
    for name in tools.mcp_servers:
        tools.remove_mcp_server(name)


@pytest.fixture
def filled(registry: MCPRegistry, marker: str) -> MCPRegistry:
    """With the tools of `good`."""
    registry.add_mcp_server(good(marker=marker))
    return registry


def test_all_tools_of_a_server_are_added_at_once(registry: MCPRegistry, marker: str) -> None:
    names = registry.add_mcp_server(good(marker=marker))
    assert names == [*registry]
    assert {"add", "slow", "grow"} <= {*names}
    assert registry.call("add", {"a": 1, "b": 2}) == {"result": 3}
    assert registry.describe()["add"]["input_schema"]["required"] == ["a", "b"]
    assert registry["add"].origin == "good"


def test_removing_a_server_removes_its_tools_and_its_process(registry: MCPRegistry, marker: str) -> None:
    registry.tool(value_of)
    registry.add_mcp_server(good(marker=marker))
    registry.remove_mcp_server("good")
    assert [*registry] == ["value_of"]
    assert not pids_with(marker)
    with pytest.raises(ServerNotFound):
        registry.remove_mcp_server("good")


def test_a_kept_tool_does_not_start_a_removed_server_again(filled: MCPRegistry, marker: str) -> None:
    kept = filled["add"]
    filled.remove_mcp_server("good")
    with pytest.raises(ServerNotReady, match="closed"):
        kept.call({"a": 1, "b": 2})
    assert not pids_with(marker)


def test_tools_that_appear_later_are_added(filled: MCPRegistry) -> None:
    kept = filled["add"]
    filled.call("grow", {"name": "more"})
    wait_for(lambda: "more" in filled)
    assert filled.call("more", {}) == "more"
    assert filled["add"] is kept


def test_the_tools_of_a_crashed_server_stay_and_the_next_call_waits_for_it(registry: MCPRegistry, marker: str) -> None:
    registry.add_mcp_server(good(marker=marker))
    before = [*registry]
    with pytest.raises(ServerGone):
        registry.call("crash", {})
    assert [*registry] == before
    assert registry.call("add", {"a": 1, "b": 2}) == {"result": 3}


def test_a_tool_whose_name_is_taken_is_prefixed_with_its_server(registry: MCPRegistry, marker: str) -> None:
    @registry.tool
    def add(a: int, b: int) -> str:
        """Ours."""
        return "ours"

    registry.add_mcp_server(good(marker=marker))
    registry.add_mcp_server(good("other", marker=marker))
    assert registry.call("add", {"a": 1, "b": 1}) == "ours"
    assert registry.call("good__add", {"a": 1, "b": 1}) == {"result": 2}
    assert registry.call("other__slow", {"steps": 0}) == {"result": "done"}
    assert len(pids_with(marker)) == 1


def test_a_tool_registered_over_a_servers_tool_stays(filled: MCPRegistry) -> None:

    @filled.tool
    def add() -> str:
        """Ours now."""
        return "ours"

    filled.call("grow", {"name": "more"})
    wait_for(lambda: "good__add" in filled)
    filled.remove_mcp_server("good")
    assert [*filled] == ["add"]


def test_configured_tags_aliases_and_forbidden_tools_are_used(registry: MCPRegistry, marker: str) -> None:
    meta = {"add": {"alias": "plus"}, "big": {"tags": ["large"]}}
    config = good(marker=marker, forbidden_tools=["crash"], tool_meta=meta, default_tool_meta={"tags": ["good"]})
    registry.add_mcp_server(config)
    assert registry.call("plus", {"a": 1, "b": 2}) == {"result": 3}
    assert "crash" not in registry
    assert "add" not in registry
    assert [*registry.describe(tags=["large"])] == ["big"]
    assert "plus" in registry.describe(tags=["good"])


def test_a_name_is_given_to_one_server_only(filled: MCPRegistry, marker: str) -> None:
    with pytest.raises(ServerExists):
        filled.add_mcp_server(good(marker=marker))
    assert [*filled.mcp_servers] == ["good"]


def test_a_server_that_does_not_start_leaves_no_tool_and_no_process(registry: MCPRegistry, marker: str) -> None:
    config = good(marker=marker)
    config["server_parameters"]["args"] = ["-c", "raise SystemExit('no licence')"]
    with pytest.raises(ServerNotReady, match="no licence"):
        registry.add_mcp_server(config)
    assert [*registry.mcp_servers] == []
    assert not pids_with(marker)
    assert registry.add_mcp_server(good(marker=marker))


def test_a_silent_server_has_a_start_timeout(registry: MCPRegistry, marker: str) -> None:
    config = good(marker=marker)
    config["server_parameters"]["args"] = ["-c", "import time; time.sleep(60)"]
    with pytest.raises(CallTimeout):
        registry.add_mcp_server(config, start_timeout=0.3)
    assert not pids_with(marker)


def test_a_disabled_server_is_not_started(registry: MCPRegistry, marker: str) -> None:
    with pytest.raises(ServerNotReady, match="disabled"):
        registry.add_mcp_server(good(marker=marker, disabled=True))


def test_registries_share_the_session_of_a_server(filled: MCPRegistry, marker: str) -> None:
    with MCPRegistry().mcp_server(good(marker=marker)) as names:
        assert "add" in names
        assert len(pids_with(marker)) == 1
    assert filled.call("add", {"a": 1, "b": 2}) == {"result": 3}


BURGLAR = Path(__file__).parents[1] / "computer" / "servers" / "burglar.py"


def burglar(**more: Any) -> dict[str, Any]:
    parameters = {"command": sys.executable, "args": [str(BURGLAR)], **more.pop("parameters", {})}
    return {"name": "burglar", "type": "stdio", "server_parameters": parameters, **more}


@pytest.mark.covers("registry-sessions")
@pytest.mark.skipif(not possible().files, reason="this kernel has no Landlock that covers files")
def test_a_registry_that_asks_for_a_sandbox_never_shares_a_session_without_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the owner's secret")
    read = {"code": f"found = open({str(secret)!r}).read()"}
    registries = [MCPRegistry(), MCPRegistry(), MCPRegistry()]
    loose, strict, wider = registries
    try:
        loose.add_mcp_server(burglar())
        assert loose.call("run", read) == "the owner's secret"
        strict.add_mcp_server(burglar(sandbox="strict"))
        with pytest.raises(ToolFailed, match="Permission denied"):
            strict.call("run", read)
        wider.add_mcp_server(burglar(sandbox={"read": [str(tmp_path)]}))
        assert wider.call("run", read) == "the owner's secret"
    finally:
        for one in registries:
            for name in one.mcp_servers:
                one.remove_mcp_server(name)


@pytest.mark.covers("registry-sessions")
def test_what_confines_or_identifies_a_session_is_in_its_key_and_what_only_lists_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(**more: Any) -> str:
        return ServerAddress(burglar(**more)).key

    def http(**more: Any) -> str:
        return ServerAddress({"name": "web", "server_parameters": {"url": "https://mcp.example/mcp", **more}}).key

    own = {"name": "other", "forbidden_tools": ["x"], "default_tool_meta": {"auto_apply": True}, "pin": "off"}
    assert key(**own) == key()
    parameters: list[dict[str, Any]] = [{"env": {"A": "1"}}, {"env": {"A": "2"}}, {"cwd": "/"}, {"encoding": "latin-1"}]
    sandboxes: list[Any] = ["strict", {"read": ["/srv"]}, {"connect": [443]}, {"required": False}]
    keys = [key(), *(key(parameters=each) for each in parameters), *(key(sandbox=each) for each in sandboxes)]
    keys += [key(protocol="older"), key(desktop="any"), http()]
    keys += [http(headers={"Authorization": name}) for name in ("Bearer a", "Bearer b")]
    keys += [http(auth={"client_id": name}) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    keys.append(key())
    assert len({*keys}) == len(keys)
    assert key(parameters={"cwd": "."}) == key()


async def test_async_code_uses_a_server_as_a_context_manager(registry: MCPRegistry, marker: str) -> None:
    async with registry.mcp_server(good(marker=marker)) as names:
        assert names == [*registry]
        assert await registry.acall("add", {"a": 1, "b": 2}) == {"result": 3}
        with pytest.raises(LoopIsRunning, match="async with registry"):
            registry.add_mcp_server(good("other"))
    assert len(registry) == 0
    assert not pids_with(marker)


def test_a_registry_without_mcp_servers_does_not_import_the_sdk() -> None:
    look = "import sys, a2c_smcp.registry; print('mcp' in sys.modules, a2c_smcp.registry.RemoteMCPAdapter.__name__)"
    program = subprocess.run([sys.executable, "-c", look], stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    assert program.stdout == b"False RemoteMCPAdapter\n"


# The end of the program

PROGRAM = """
    import asyncio, logging, os, signal, sys
    from a2c_smcp.registry import MCPRegistry
    from tests.registry.servers import good

    # On a busy machine any step may take the 0.1 s that development mode complains about.
    logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))
    registry = MCPRegistry()
    registry.add_mcp_server(good())
    assert registry.call("add", {"a": 1, "b": 2}) == {"result": 3}
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""
ENDINGS = {
    "normally": ("", 0),
    "by an exception": ("raise ValueError('unforeseen')", 1),
    "in an event loop": ("asyncio.run(registry.acall('add', {'a': 1, 'b': 2}))", 0),
    "without a word": ("os._exit(7)", 7),
    "by SIGINT": ("os.kill(os.getpid(), signal.SIGINT); sys.stdin.readline()", -signal.SIGINT),
    "by SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); sys.stdin.readline()", -signal.SIGTERM),
    "by SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL); sys.stdin.readline()", -signal.SIGKILL),
    "in a call": (
        "import threading; threading.Timer(0.2, os._exit, [9]).start(); registry.call('slow', {'pause': 60})",
        9,
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_no_process_is_left_when_the_program_ends(name: str, tmp_path: Path) -> None:
    """Those that end as usual run in development mode, which warns of what was left open; the others are forked."""
    ending, code = ENDINGS[name]
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM) + ending)
    command = [sys.executable, "-X", "dev", str(script)] if code == 0 else forked(script)
    strict = os.environ | {"PYTHONWARNINGS": "error"}
    with subprocess.Popen(command, env=strict, stdin=-1, stdout=-1, stderr=-1) as program:
        assert program.stdout is not None
        came_of_it = descendants(int(program.stdout.readline()))
        assert len(came_of_it) == 3
        _, complaints = program.communicate(b"\n", PATIENCE)
    assert program.returncode == code
    assert complaints == b"" or b"unforeseen" in complaints or b"KeyboardInterrupt" in complaints
    assert b"Warning" not in complaints
    wait_for(lambda: not any(is_alive(pid) for pid in came_of_it))


FORKING = """
    import os
    from a2c_smcp.registry.remote import RemoteMCPAdapter
    from tests.registry.servers import good

    with RemoteMCPAdapter("add", config=good()) as add:
        print(add.call({"a": 1, "b": 2}), flush=True)
        child = os.fork()
        if child == 0:
            print(add.call({"a": 20, "b": 2}), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(add.call({"a": 2, "b": 2}), flush=True)
"""


def test_a_forked_process_has_servers_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(FORKING))
    program = run_program(script=script)
    assert program.returncode == 0, program.stderr
    assert program.stdout.splitlines() == ["{'result': 3}", "{'result': 22}", "{'result': 4}"]
