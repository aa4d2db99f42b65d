"""Opening a page: which program is started, with which words, and when none is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from a2c_smcp.cli import sign_in
from tests.executables import executable
from tests.stage.cases import cases
from tests.waiting import until

pytestmark = pytest.mark.covers("browser")

URL = "https://auth.example/authorize?a=1&b=$(touch /tmp/x);'\"%s"


def program(folder: Path, name: str, *, status: int = 0) -> Path:
    """A program that writes down the words it was started with."""
    noted = str(folder / f"{name}.words")
    code = (
        f"import json, pathlib, sys\npathlib.Path({noted!r}).write_text(json.dumps(sys.argv[1:]))\nsys.exit({status})\n"
    )
    return executable(folder / name, code)


def words(folder: Path, name: str) -> list[str]:
    found: list[str] = json.loads((folder / f"{name}.words").read_text())
    return found


async def test_the_programs_of_browser_are_tried_in_order_with_the_url_as_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "broken", status=1)
    program(tmp_path, "good")
    program(tmp_path, "unused")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROWSER", "no-such-program:broken --new:'unclosed:good --at '[%s]' -x:unused %s")
    assert await sign_in.open_page(URL)
    await until(lambda: (tmp_path / "good.words").exists())
    assert words(tmp_path, "broken") == ["--new", URL]
    assert words(tmp_path, "good") == ["--at", f"[{URL}]", "-x"]
    assert not (tmp_path / "unused.words").exists()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "javascript:alert(1)", "-h", "", "ftp://a.example"])
async def test_only_web_pages_are_opened(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "good")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROWSER", "good")
    assert not await sign_in.open_page(url)
    assert not (tmp_path / "good.words").exists()


@cases(
    "environ, opens",
    ({}, False),
    ({"DISPLAY": ":0"}, True),
    ({"WAYLAND_DISPLAY": "wayland-0"}, True),
    ({"DISPLAY": ":10", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False),
    ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22", "BROWSER": "xdg-open"}, True),
    ({"DISPLAY": ":0", "BROWSER": "no-such-program"}, False),
)
def test_without_a_screen_or_a_program_there_is_no_browser(
    environ: dict[str, str], opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "xdg-open")
    monkeypatch.setattr(sys, "platform", "linux")
    assert sign_in.can_open({"PATH": str(tmp_path), **environ}) is opens


async def test_a_browser_that_stays_open_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = executable(tmp_path / "stays", "import signal\nsignal.alarm(30)\nsignal.pause()\n")
    monkeypatch.setenv("BROWSER", str(path))
    assert await sign_in.open_page("http://a.example", starts_within=0.05)
