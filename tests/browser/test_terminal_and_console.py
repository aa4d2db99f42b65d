"""One request at a real terminal and in a real browser: both show it, and the first answer counts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from a2c_smcp.agent.client import SMCPAgentClient
from a2c_smcp.loops import BackgroundLoop
from tests.browser.conftest import PATIENCE, PROGRAM, of_kind, watched
from tests.computer.pseudo_terminal import on_a_terminal


class OnScreen:
    """`a2c-smcp up --console` on a pseudo-terminal, whose screen another thread follows, and an agent."""

    def __init__(self, folder: Path) -> None:
        (folder / "a2c.json").write_text(json.dumps({"servers": {"files": of_kind("files")}}))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("A2C_", "COLUMNS", "LINES"))}
        env |= {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "TERM": "xterm-256color"}
        command = (str(PROGRAM), "up", "--port", "0", "--name", "laptop", "--console", "--no-browser")
        self._loop, self._calls = BackgroundLoop("terminal"), ThreadPoolExecutor(2)
        self._running = on_a_terminal(*command, env=env, lines=60, columns=250, cwd=folder)
        self._program = self._loop.submit(self._running.__aenter__()).result(PATIENCE)
        self.agent: SMCPAgentClient | None = None

    def shows(self, pattern: str) -> str:
        """Waits for this on the screen. Returns the first group."""
        text = self._loop.submit(self._program.shows(lambda screen: re.search(pattern, screen.text))).result(PATIENCE)
        found = re.search(pattern, text)
        assert found
        return found[1] if found.groups() else found[0]

    def types(self, line: str) -> None:
        self._program.types(line)
        self.shows(rf"laptop> {line}")
        self._program.types("\r")

    def call(self, path: str) -> Future[Any]:
        if self.agent is None:
            url, key = self.shows(r"listening on (http\S+)"), self.shows(r"API key: (\S+)")
            self.agent = SMCPAgentClient("planner", url=url, office="desk", api_key=key)
            self._calls.submit(self.agent.connect).result(PATIENCE)
        return self._calls.submit(
            self.agent.emit_tool_call, "laptop", "write_file", {"path": path, "content": "x"}, timeout=60
        )

    def close(self) -> None:
        if self.agent:
            self._calls.submit(self.agent.disconnect).result(PATIENCE)
        self._loop.submit(self._running.__aexit__(None, None, None)).result(PATIENCE)
        self._calls.shutdown(wait=False)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[OnScreen]:
    screen = OnScreen(tmp_path)
    yield screen
    screen.close()


def test_both_show_the_same_request_and_whoever_answers_first_answers(chromium: Any, screen: OnScreen) -> None:
    context = chromium.new_context(locale="en-GB")
    page = context.new_page()
    broken = watched(page)
    page.goto(screen.shows(r"within ten minutes: (http\S+)"))
    page.locator("#connection[data-state=live]").wait_for()
    screen.shows(r"files +ready")

    first = screen.call("/by-terminal")
    card = page.locator(".request", has_text="/by-terminal")
    expect(card).to_contain_text("#1")
    screen.shows(r"#1 planner in desk wants write_file of files")
    screen.types("y")
    assert "characters written" in first.result(PATIENCE).content[0]["text"]
    expect(card).to_have_count(0)

    second = screen.call("/by-browser")
    card = page.locator(".request", has_text="/by-browser")
    screen.shows(r"#2 planner in desk wants write_file of files")
    card.get_by_role("button", name="Deny").click()
    assert "the owner said no" in str(second.exception(PATIENCE))
    screen.shows(r"#2 is answered in the console")
    screen.types("y 2")
    screen.shows(r"no request 2 waits for an answer")
    assert broken == []
    context.close()
