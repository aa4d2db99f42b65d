"""What `make conformance` relies on: both programs run anywhere with the package alone, and failures have reasons."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2c_smcp.registry import MCPRegistry
from tests.computer.supervised import serving
from tests.conformance.__main__ import HERE
from tests.on_disk import names_in
from tests.ports import free_port
from tests.program import forked

pytestmark = pytest.mark.covers("mcp-conformance")

CLIENT, SERVER, BRIDGE, AUTHORIZATION = (
    HERE / f"{name}.py" for name in ("client", "server", "bridge", "authorization")
)


@pytest.mark.parametrize("program", [CLIENT, SERVER, BRIDGE, AUTHORIZATION], ids=lambda program: program.stem)
def test_each_program_imports_the_package_and_the_standard_library_only(program: Path) -> None:
    tree = ast.parse(program.read_text("utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"a2c_smcp"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder to run a program in, which leaves nothing there."""
    (tmp_path / "a program").mkdir()
    yield tmp_path
    assert names_in(tmp_path) == ["a program"]


def copied(program: Path, folder: Path) -> Path:
    """Somewhere else, under a name that is not ASCII."""
    return Path(shutil.copy(program, folder / "a program" / f"ï{program.name}"))


@contextmanager
def running(program: Path, folder: Path, *words: object, code: int = 0) -> Iterator[str]:
    """A copy of a program, by its first line, which is all that it prints. It ends with this code when told."""
    command = forked(copied(program, folder), *words)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
        assert process.stdout.read() == ""
    assert process.returncode == code


def test_the_client_runs_in_any_folder_and_leaves_nothing_there(folder: Path) -> None:
    calls = [{"name": "add", "arguments": {"a": 20, "b": 22}}]
    context = {"MCP_CONFORMANCE_CONTEXT": json.dumps({"toolCalls": calls}), "HOME": str(folder)}
    env = {**os.environ, "MCP_CONFORMANCE_SCENARIO": "http-custom-headers", **context}
    with serving() as (port, _):
        command = [sys.executable, copied(CLIENT, folder), f"http://127.0.0.1:{port}/mcp"]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    name, _, result = done.stdout.partition(" ")
    assert (name, json.loads(result)["structuredContent"]) == ("add", {"result": 42})


@pytest.mark.covers("registry-served")
def test_the_server_runs_in_any_folder_and_says_where(folder: Path) -> None:
    port, registry = free_port(), MCPRegistry()
    with running(SERVER, folder, "--port", port, code=-signal.SIGTERM) as url:
        assert url == f"http://127.0.0.1:{port}/mcp"
        assert "test_simple_text" in registry.add_mcp_server({"name": "suite", "url": url})
        assert registry.read_resource("test://template/7/data")["contents"][0]["mimeType"] == "application/json"
        registry.remove_mcp_server("suite")


@pytest.mark.covers("bridge-conformance")
def test_the_bridge_runs_in_any_folder_and_says_when_it_is_ready(folder: Path) -> None:
    port, registry = free_port(), MCPRegistry()
    with serving() as (upstream, _):
        words = ("--port", port, "--upstream", f"http://127.0.0.1:{upstream}/mcp")
        with running(BRIDGE, folder, *words) as said:
            assert said == "ready"
            registry.add_mcp_server({"name": "office", "url": f"http://127.0.0.1:{port}/mcp"})
            assert registry.call("add", {"a": 20, "b": 22}) == {"result": 42}
            registry.remove_mcp_server("office")


def test_each_failure_that_is_expected_is_explained() -> None:
    lines = (HERE / "expected-failures.yaml").read_text("utf-8").splitlines()
    entries = [line for line in lines if line.lstrip().startswith("- ")]
    assert [line for line in entries if "  # " not in line] == []


def test_the_suite_and_its_node_are_pinned_by_hash() -> None:
    packages = json.loads((HERE / "package-lock.json").read_text("utf-8"))["packages"]
    assert packages["node_modules/@modelcontextprotocol/conformance"]["version"] == "0.2.0-alpha.12"
    nodes = [name for name in packages if name.startswith("node_modules/node-")]
    assert {packages[name]["version"].partition(".")[0] for name in nodes} == {"22"}
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
