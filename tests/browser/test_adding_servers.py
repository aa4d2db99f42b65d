"""MCP servers that an owner adds, updates and removes in a real Chromium, from an index on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Program, axe, of_kind, open_session, origin, watched
from tests.stage.registries import Registries, registries

expect.set_options(timeout=15000)
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def index() -> Iterator[Registries]:
    with registries() as served:
        served.pypi("clock-server", "1.0.0")
        yield served


@pytest.fixture(scope="module")
def adding(tmp_path_factory: pytest.TempPathFactory, index: Registries) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("adding")
    variables = {**index.environ, "XDG_DATA_HOME": str(folder / "data")}
    running = Program(folder, {"files": of_kind("files")}, "--no-input", **variables)
    yield running
    running.close()


@pytest.fixture
def page(chromium: Any, adding: Program) -> Iterator[Any]:
    context = chromium.new_context(locale="en-GB", viewport={"width": WIDTHS[0], "height": 900})
    page = open_session(context, adding)
    broken = watched(page)
    yield page
    assert broken == []
    context.close()


def fits(page: Any, folder: Path, name: str) -> None:
    """Nothing is wider than the window, and axe finds nothing; a picture is there to be looked at."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
    assert axe(page) == []
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})


def entries(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((program.folder / "a2c.json").read_text())["servers"]
    return found


def fill(page: Any, name: str, start: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Started by").fill(start)
    page.get_by_role("button", name="Look it up").click()


def test_a_server_is_added_updated_and_removed_with_clicks(
    page: Any, adding: Program, index: Registries, tmp_path: Path
) -> None:
    page.goto(f"{origin(adding)}/servers")
    fits(page, tmp_path, "servers")
    page.get_by_role("link", name="Add an MCP server").click()
    page.get_by_text("What it may do").click()
    expect(page.get_by_label("Network")).to_have_value("none")
    fits(page, tmp_path, "form")
    fill(page, "clock", "uvx clock-server --zone UTC")
    expect(page.locator("main").get_by_text("Install it, and add it to a2c.json?")).to_be_visible()
    for fact in ("clock-server 1.0.0, from PyPI", "Ann (as the package says)", "none (443 would allow HTTPS)"):
        expect(page.locator("main").get_by_text(fact)).to_be_visible()
    fits(page, tmp_path, "asked")
    assert "clock" not in entries(adding)
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("main").get_by_text("added clock to")).to_be_visible()
    fits(page, tmp_path, "added")
    assert entries(adding)["clock"]["args"][1:] == ["--zone", "UTC"]
    page.get_by_role("link", name="All servers").click()
    expect(page.locator("[data-key=server-clock] .state")).to_have_text("ready")
    fits(page, tmp_path, "cards")
    index.pypi("clock-server", "2.0.0", tools=("words", "late"), by="Bob")
    page.get_by_role("button", name="Update clock").click()
    expect(page.locator("main").get_by_text("Ann (as the package says) → Bob (as the package says)")).to_be_visible()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("main").get_by_text("Its tools change. Use it?")).to_be_visible()
    fits(page, tmp_path, "changed")
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("main").get_by_text("updated clock to clock-server 2.0.0")).to_be_visible()
    page.get_by_role("link", name="All servers").click()
    page.get_by_role("button", name="Remove clock").click()
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.locator("main").get_by_text("Nothing was removed")).to_be_visible()
    assert "clock" in entries(adding)
    page.get_by_role("link", name="All servers").click()
    page.get_by_role("button", name="Remove clock").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("main").get_by_text("removed clock from")).to_be_visible()
    assert [*entries(adding)] == ["files"]
    page.get_by_role("link", name="All servers").click()
    expect(page.locator("[data-key=server-clock]")).to_have_count(0)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("uvx mcp-server-tyme", "Did you mean 'mcp-server-time'?"),
        ("docker run x", "docker is not npx or uvx"),
        ("https://user:secret@h/mcp", "has a user or a password"),
    ],
)
def test_what_was_typed_wrong_can_be_corrected(
    page: Any, adding: Program, tmp_path: Path, start: str, said: str
) -> None:
    page.goto(f"{origin(adding)}/change")
    fill(page, "clock", start)
    expect(page.locator(".note.bad")).to_contain_text(said)
    expect(page.get_by_label("Name", exact=True)).to_have_value("clock")
    expect(page.get_by_label("Started by")).to_have_value(start)
    assert "secret" not in page.content()
    fits(page, tmp_path, "wrong")
    assert [*entries(adding)] == ["files"]


def test_the_page_is_in_chinese_too(page: Any, adding: Program, tmp_path: Path) -> None:
    page.goto(f"{origin(adding)}/change")
    page.locator(".settings summary").click()
    page.get_by_label("Language").select_option("zh")
    page.get_by_role("button", name="Save").click()
    page.get_by_label("名称", exact=True).fill("clock")
    page.get_by_label("启动方式").fill("uvx clock-server")
    page.get_by_role("button", name="查询").click()
    expect(page.locator("main").get_by_text("安装并添加到 a2c.json 吗？")).to_be_visible()
    fits(page, tmp_path, "chinese")
    page.get_by_role("button", name="否", exact=True).click()
    expect(page.locator(".note.bad")).to_be_visible()
