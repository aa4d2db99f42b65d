"""The wheel: 001's address works after an installation, beside another distribution of `sage`."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.covers("registry-address")

ROOT = Path(__file__).parents[2]
OTHER = "from a2c_smcp.registry import MCPRegistry\nREGISTRY = MCPRegistry()\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(out), cwd=ROOT)
    (built,) = out.glob("a2c_smcp-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--no-compile", "--no-deps", "--no-index", "--target", str(target))
    run("-m", "pip", "install", *options, str(wheel))
    return target


@pytest.fixture
def another_sage(tmp_path: Path) -> Path:
    package = tmp_path / "other" / "sage" / "libs" / "agents" / "planning"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(OTHER)
    (package.parents[2] / "kernel.py").write_text("NAME = 'another sage'\n")
    return tmp_path / "other"


def run(*arguments: str, cwd: Path | None = None, path: list[Path] | None = None) -> str:
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {})
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_folder_of_sage_is_a_regular_package(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("sage/")]
    assert names == ["sage/libs/agents/action/mcp_registry.py"]


def test_the_address_of_001_works_after_an_installation(installed: Path, tmp_path: Path) -> None:
    code = "from sage.libs.agents.action.mcp_registry import MCPRegistry as R, __file__ as f; R().describe(); print(f)"
    shown = run("-c", code, cwd=tmp_path, path=[installed])
    assert Path(shown.strip()).is_relative_to(installed)


@pytest.mark.parametrize("ours_first", [True, False])
def test_another_distribution_of_sage_is_not_shadowed(
    installed: Path, another_sage: Path, tmp_path: Path, ours_first: bool
) -> None:
    code = (
        "from sage.kernel import NAME; from sage.libs.agents.planning import REGISTRY;"
        "from sage.libs.agents.action.mcp_registry import MCPRegistry, __file__ as home;"
        "print(NAME, isinstance(REGISTRY, MCPRegistry), home, sep='\\n')"
    )
    path = [installed, another_sage] if ours_first else [another_sage, installed]
    name, is_the_same, home = run("-c", code, cwd=tmp_path, path=path).splitlines()
    assert (name, is_the_same) == ("another sage", "True")
    assert Path(home).is_relative_to(installed)
