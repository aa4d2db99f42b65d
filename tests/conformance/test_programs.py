"""What `make conformance` relies on: both programs run anywhere with the package alone, and failures have reasons."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from a2c_smcp.registry import MCPRegistry
from tests.computer.supervised import serving
from tests.conformance.__main__ import HERE
from tests.ports import free_port
from tests.program import forked

CLIENT, SERVER, BRIDGE = (HERE / f"{name}.py" for name in ("client", "server", "bridge"))


@pytest.mark.covers("mcp-conformance")
@pytest.mark.parametrize("program", [CLIENT, SERVER, BRIDGE], ids=["client", "server", "bridge"])
def test_each_program_imports_the_package_and_the_standard_library_only(program: Path) -> None:
    tree = ast.parse(program.read_text("utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"a2c_smcp"}


@pytest.mark.covers("mcp-conformance")
def test_the_client_runs_in_any_folder_and_leaves_nothing_there(tmp_path: Path) -> None:
    copy = tmp_path / "a program" / "clïent.py"
    copy.parent.mkdir()
    copy.write_bytes(CLIENT.read_bytes())
    calls = [{"name": "add", "arguments": {"a": 20, "b": 22}}]
    scenario = {
        "MCP_CONFORMANCE_SCENARIO": "http-custom-headers",
        "MCP_CONFORMANCE_CONTEXT": json.dumps({"toolCalls": calls}),
        "HOME": str(tmp_path),
    }
    with serving() as (port, _):
        done = subprocess.run(
            [sys.executable, copy, f"http://127.0.0.1:{port}/mcp"],
            env={**os.environ, **scenario},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")
    name, _, result = done.stdout.partition(" ")
    assert (name, json.loads(result)["structuredContent"]) == ("add", {"result": 42})
    assert [path.name for path in tmp_path.iterdir()] == [copy.parent.name]


@pytest.mark.covers("mcp-conformance", "registry-served")
def test_the_server_runs_in_any_folder_and_says_where(tmp_path: Path) -> None:
    copy = tmp_path / "a program" / "sërver.py"
    copy.parent.mkdir()
    copy.write_bytes(SERVER.read_bytes())
    port = free_port()
    command = forked(copy, "--port", port)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            url = process.stdout.readline().strip()
            assert url == f"http://127.0.0.1:{port}/mcp"
            registry = MCPRegistry()
            names = registry.add_mcp_server({"name": "suite", "url": url})
            assert "test_simple_text" in names
            assert registry.read_resource("test://template/7/data")["contents"][0]["mimeType"] == "application/json"
            registry.remove_mcp_server("suite")
        finally:
            process.terminate()
        assert process.stdout.read() == ""
    assert [path.name for path in tmp_path.iterdir()] == [copy.parent.name]


@pytest.mark.covers("mcp-conformance", "bridge-conformance")
def test_the_bridge_runs_in_any_folder_and_says_when_it_is_ready(tmp_path: Path) -> None:
    copy = tmp_path / "a program" / "brïdge.py"
    copy.parent.mkdir()
    copy.write_bytes(BRIDGE.read_bytes())
    port = free_port()
    with serving() as (upstream, _):
        url = f"http://127.0.0.1:{upstream}/mcp"
        command = forked(copy, "--port", port, "--upstream", url)
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            try:
                assert process.stdout.readline() == "ready\n"
                registry = MCPRegistry()
                registry.add_mcp_server({"name": "office", "url": f"http://127.0.0.1:{port}/mcp"})
                assert registry.call("add", {"a": 20, "b": 22}) == {"result": 42}
                registry.remove_mcp_server("office")
            finally:
                process.terminate()
            assert process.stdout.read() == ""
        assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [copy.parent.name]


@pytest.mark.covers("mcp-conformance")
def test_each_failure_that_is_expected_is_explained() -> None:
    lines = (HERE / "expected-failures.yaml").read_text("utf-8").splitlines()
    entries = [line for line in lines if line.lstrip().startswith("- ")]
    assert [line for line in entries if "  # " not in line] == []


@pytest.mark.covers("mcp-conformance")
def test_the_suite_and_its_node_are_pinned_by_hash() -> None:
    packages = json.loads((HERE / "package-lock.json").read_text("utf-8"))["packages"]
    assert packages["node_modules/@modelcontextprotocol/conformance"]["version"] == "0.2.0-alpha.12"
    nodes = [name for name in packages if name.startswith("node_modules/node-")]
    assert {packages[name]["version"].partition(".")[0] for name in nodes} == {"22"}
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
