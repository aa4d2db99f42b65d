"""Lines that the program prints to be pasted start what they name: the package itself, and this program again."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.installation import EXTRAS, install_command
from tests.stage.cases import cases

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMMIT = "4bdc7306eb0e4a5b7a7c4d19cbb5ee9fe9fae2a1"
FROM_GIT = {"url": "https://git.example/smcp.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
ASK = "from a2c_smcp.installation import install_command; print(install_command('redis'))"


def run(*words: str | Path, cwd: Path, **environ: str) -> str:
    env = {**os.environ, **environ}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def installed_from(folder: Path, origin: dict[str, Any] | None) -> None:
    """Writes down, as installers do, where the package came from. The first on the path counts."""
    written = folder / "a2c_smcp-1.0.dist-info"
    written.mkdir()
    (written / "METADATA").write_text("Metadata-Version: 2.1\nName: a2c-smcp\nVersion: 1.0\n", "utf-8")
    if origin is not None:
        (written / "direct_url.json").write_text(json.dumps(origin), "utf-8")


def told(folder: Path, path: str = "/nowhere") -> list[str]:
    """The command for the extra `redis`, in words, by a Python whose own folder is not on the PATH."""
    return shlex.split(run(sys.executable, "-c", ASK, cwd=folder, PYTHONPATH=str(folder), PATH=path))


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """One in a folder whose name a shell would take apart."""
    out = tmp_path / "räder & more"
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


def test_what_came_as_a_wheel_is_installed_from_it_again(wheel: Path, tmp_path: Path) -> None:
    installed_from(tmp_path, {"url": wheel.as_uri(), "archive_info": {}})
    line = told(tmp_path)
    assert line == [sys.executable, "-m", "pip", "install", f"{wheel}[redis]"]
    said = run("sh", "-c", f"{shlex.join(line)} --dry-run --no-deps --no-index --ignore-installed", cwd=tmp_path)
    assert "Would install a2c-smcp-1.0.0a1" in said


def test_a_clone_that_is_worked_in_stays_one(tmp_path: Path) -> None:
    installed_from(tmp_path, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert told(tmp_path)[-2:] == ["-e", f"{tmp_path}[redis]"]


@cases(
    "origin, source",
    (FROM_GIT, f"a2c-smcp[redis] @ git+https://git.example/smcp.git@{COMMIT}"),
    ({"url": "https://files.example/a2c.whl", "archive_info": {}}, "a2c-smcp[redis] @ https://files.example/a2c.whl"),
    ({"url": "file:///gone/since/long", "dir_info": {}}, ".[redis]"),
    (None, ".[redis]"),
    ids=["a repository", "a file on the web", "a folder that is gone", "nobody knows"],
)
def test_the_line_names_where_it_came_from(tmp_path: Path, origin: dict[str, Any] | None, source: str) -> None:
    installed_from(tmp_path, origin)
    assert told(tmp_path)[-1] == source


def test_a_plain_pip_is_named_where_it_is_the_right_one(tmp_path: Path) -> None:
    assert told(tmp_path, path=str(BIN))[:2] == ["pip", "install"]


WITHOUT_MCP = """
import sys
sys.modules.update(dict.fromkeys({modules}))
from a2c_smcp.agent import AsyncSMCPAgentClient, SMCPAgentClient
from sage.libs.agents.action.mcp_registry import MCPRegistry
registry = MCPRegistry()
@registry.tool
def add(a: int, b: int) -> int: "Add two numbers."; return a + b
assert registry.call("add", {{"a": 1, "b": 2}}) == 3
for statement in {statements}:
    try: exec(statement)
    except ModuleNotFoundError as error: print(error)
"""


@pytest.mark.covers("agent-beside-frameworks")
def test_only_what_hosts_mcp_servers_needs_mcp(tmp_path: Path) -> None:
    features = {
        "from a2c_smcp.computer import Computer": "a Computer",
        "from a2c_smcp.registry import RemoteMCPAdapter": "an MCP server in a registry",
        "registry.as_mcp_server()": "an MCP server in a registry",
    }
    code = WITHOUT_MCP.format(modules=EXTRAS["computer"], statements=[*features])
    said = run(sys.executable, "-c", code, cwd=tmp_path)
    needed = f"needs the extra `computer`: {install_command('computer')}"
    assert said.splitlines() == [f"{feature} {needed}" for feature in features.values()]


def test_the_bare_name_is_printed_where_the_path_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"one": {"command": "one"}}}), "utf-8")
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    said = run("a2c-smcp", "import", "mcp.json", "--into", "a2c.json", "--write", cwd=tmp_path, PATH=path)
    assert "to try it on this machine: a2c-smcp up\n" in said
