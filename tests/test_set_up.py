"""Set-up by `make`: it says what it is doing, and does not take a failure for success."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


ENVIRONMENTS = {"requirements.lock": ".venv", "tests/interop/peers-0.4.2.txt": ".cache/peers/0.4.2"}


def wanted_extras(environment: Path) -> Iterator[tuple[str, str]]:
    """The packages that others in an environment want with an extra, and the extra."""
    folder = next(environment.glob("lib/python*/site-packages"))
    for package in distributions(path=[str(folder)]):
        for line in package.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield from ((canonicalize_name(requirement.name), extra) for extra in requirement.extras)


@pytest.mark.parametrize("lock", ENVIRONMENTS)
def test_a_lock_names_the_extras_that_packages_are_wanted_with(lock: str) -> None:
    """pip prefers a release newer than the lock for a package that is wanted with an extra, and has no hash for it."""
    pins = re.findall(r"^([\w.-]+)(?:\[([\w, -]+)\])?==", (ROOT / lock).read_text("utf-8"), re.MULTILINE)
    named = {(canonicalize_name(name), extra) for name, extras in pins for extra in re.split(", *", extras)}
    wanted = {(name, extra) for name, extra in wanted_extras(ROOT / ENVIRONMENTS[lock]) if name != "a2c-smcp"}
    assert wanted
    assert wanted - named == set()
