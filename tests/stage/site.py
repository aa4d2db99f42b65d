"""The documentation as a site."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE_TOOLS = ROOT / ".cache" / "docs"
PATIENCE = 120


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strict build fails on a page without a menu entry and on a broken link."""
    assert (SITE_TOOLS / ".ready").exists(), f"{SITE_TOOLS} is missing, run `make docs`"
    folder = tmp_path_factory.mktemp("site")
    command = [SITE_TOOLS / "bin" / "python", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env={"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
