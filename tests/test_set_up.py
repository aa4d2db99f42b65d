"""Set-up by `make`: it says what it is doing, and does not take a failure for success."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COUNT = 11
TARGET = ".cache/peers/own/.ready"


def wheel(folder: Path, number: int) -> str:
    """A package with nothing in it; its line in a lock file."""
    name = f"empty_{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in about.items():
            archive.writestr(f"{name}-1.0.dist-info/{file}", text)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return f"{name}==1.0 \\\n    --hash=sha256:{sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The lock file of a peer that exists only here."""
    path = tmp_path / "tests" / "interop" / "peers-own.txt"
    path.parent.mkdir(parents=True)
    path.write_text("".join(wheel(tmp_path, number) for number in range(COUNT)), "utf-8")
    return path


@pytest.fixture
def quick_venv(tmp_path: Path) -> Path:
    """A folder with a `python3` that makes virtual environments at once: their Python is ours, with our pip."""
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
        [ "$1 $2 $3" = "-m venv --clear" ] && rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && exit
        exec {shlex.quote(sys.executable)} "$@"
        """,
        "utf-8",
    )
    program.chmod(0o755)
    return program.parent


def make(folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_TARGET": str(folder / "installed")}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PIP_"))}
    env |= local | {"PIP_CONFIG_FILE": os.devnull, "PATH": f"{programs}{os.pathsep}{env['PATH']}"}
    command = ["make", "-f", ROOT / "Makefile", TARGET]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=180)


def test_it_says_what_it_fetches_and_ends_when_pip_fails(lock: Path, quick_venv: Path, tmp_path: Path) -> None:
    done = make(tmp_path, quick_venv)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    said = done.stderr.splitlines()
    assert f"  fetching {COUNT} packages of tests/interop/peers-own.txt" in said
    assert any(line.startswith(f"  10 of {COUNT}: ") for line in said)
    assert "  all are fetched, and being installed" in said
    assert (tmp_path / TARGET).exists()
    lock.write_text(lock.read_text("utf-8").replace("sha256:", "sha256:0"), "utf-8")
    (tmp_path / TARGET).unlink()
    done = make(tmp_path, quick_venv)
    assert done.returncode != 0
    assert not (tmp_path / TARGET).exists()
