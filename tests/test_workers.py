"""The processes that run the tests: nothing that a test says is lost, also if its process ends in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.workers import Workers
def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true")
def pytest_configure(config):
    config.option.fast = True
    config.pluginmanager.register(Workers(2))
"""
FIRST = """
import os, warnings, pytest
@pytest.fixture(scope="module")
def started():
    print("STARTED")
    yield
    with open(os.environ["NOTES"], "a") as notes:
        notes.write("ended\\n")
@pytest.mark.parametrize("n", range(4))
def test_passes(n, started): pass
def test_fails(started):
    print("before it failed")
    assert 1 + 1 == 3
def test_warns(): warnings.warn("mind the gap")
"""
SECOND = """
import os, signal, warnings
warnings.warn("before the processes are forked")
def test_ends_its_process(): os.kill(os.getpid(), signal.SIGKILL)
def test_behind_it(tmp_path): assert not any(tmp_path.iterdir())
def test_last(): pass
"""


def test_failures_output_warnings_and_the_end_of_a_process_are_reported(tmp_path: Path) -> None:
    for name, text in (("conftest", CONFTEST), ("test_first", FIRST), ("test_second", SECOND)):
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NOTES": str(tmp_path / "notes")}
    options = ["-p", "no:asyncio", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-rA", *options, str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert "2 failed, 7 passed, 2 warnings" in said
    assert "before it failed" in said
    assert said.count("UserWarning: mind the gap") == said.count("UserWarning: before the processes are forked") == 1
    assert "ended with the exit code -9 while it ran this test" in said
    assert "PASSED test_second.py::test_behind_it" in said
    ends = (tmp_path / "notes").read_text("utf-8").count("ended")
    assert 1 <= ends <= 3, "once per process that used it, and again in one that came back to the module"
