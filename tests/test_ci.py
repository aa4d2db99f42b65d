"""The run of CI, in a copy of the checkout at an awkward path."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parent.parent
FILES = ("Makefile", "README.md", ".gitignore", "tests/test_ci.py", "sage/libs/agents/action/mcp_registry.py")


@pytest.fixture
def ci(tmp_path: Path) -> list[str]:
    """The program and its surroundings, where `make` writes down what it was asked and where, and waits to be told."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "temporary").mkdir()
    make = tmp_path / "bin" / "make"
    make.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" >"$TOLD.draft"\n'
        'find "$2" >"$TOLD.files"\nmv "$TOLD.draft" "$TOLD"\nexec sh -c "$THEN"\n',
        "utf-8",
    )
    make.chmod(0o755)
    path = f"{make.parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {"PATH": path, "TMPDIR": str(tmp_path / "temporary"), "TOLD": str(tmp_path / "told")}
    return ["env", *(f"{name}={value}" for name, value in surroundings.items())]


def test_the_tests_run_in_a_clean_copy_with_an_awkward_path(ci: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*ci, "THEN=exit 3", ROOT / ".ci" / "run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    option, copy, *targets = (tmp_path / "told").read_text("utf-8").splitlines()
    kinds = ["test-programs", "test-clients", "test-monitoring", "test-browser"]
    kinds += ["test-posix", "test-lowest", "test-windows"]
    assert (option, targets) == ("-C", ["test", *kinds, "conformance"])
    name = Path(copy).name
    assert len(name) >= 120
    assert " " in name
    assert "ü" in name
    assert copy in done.stderr
    held = {str(Path(line).relative_to(copy)) for line in (tmp_path / "told.files").read_text("utf-8").splitlines()}
    assert {*FILES} <= held
    assert held.isdisjoint({".git", ".venv", ".cache", "site"})
    assert [*(tmp_path / "temporary").iterdir()] == []


async def test_a_run_that_is_interrupted_leaves_no_copy(ci: list[str], tmp_path: Path) -> None:
    command = [*ci, "THEN=exec sleep 600", str(ROOT / ".ci" / "run")]
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    try:
        await until((tmp_path / "told").exists)
        os.killpg(process.pid, signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() != 0
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert [*(tmp_path / "temporary").iterdir()] == []
