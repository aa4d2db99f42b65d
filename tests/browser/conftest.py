"""A real Chromium, and a real computer whose console it looks at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api as playwright  # `make test-browser` installs it

from a2c_smcp.agent.client import SMCPAgentClient
from a2c_smcp.loops import BackgroundLoop
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".cache/browser/node_modules/axe-core/axe.min.js"
SERVER = Path(__file__).with_name("mcp_server.py")
PROGRAM = Path(sys.executable).with_name("a2c-smcp")
PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""


def until(found: Callable[[], Any], what: str) -> Any:
    """What `found` returns as soon as that is something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if (value := found()) not in (None, False, ""):
            return value
        time.sleep(0.02)
    raise AssertionError(f"this did not come: {what}")


class Program:
    """`a2c-smcp up --console`, and an agent in its office."""

    def __init__(
        self, folder: Path, servers: dict[str, Any], *options: str, agent: str = "planner", **variables: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a2c.json").write_text(json.dumps({"servers": servers}))
        self.folder, self.errors = folder, folder / "errors"
        env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), **variables}
        env = {name: value for name, value in env.items() if not name.startswith("A2C_")}
        command = [PROGRAM, "up", "--port", "0", "--name", "laptop", "--console", "--no-browser", *options]
        with self.errors.open("wb") as errors, (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
            )
        self.agents: list[SMCPAgentClient] = []
        self.agent_name = agent
        self.calls = ThreadPoolExecutor(16)

    def said(self, pattern: str, file: str = "errors") -> str:
        """The newest text that fits in what the program has said."""
        assert self.process.poll() is None, self.errors.read_text()
        found = re.findall(pattern, (self.folder / file).read_text())
        return found[-1] if found else ""

    def link(self) -> str:
        return str(until(lambda: self.said(r"console, [^:]*: (http\S+)"), "the link"))

    def agent(self) -> SMCPAgentClient:
        if not self.agents:
            url = until(lambda: self.said(r"listening on (\S+)", "output"), "the address")
            key = Path(until(lambda: self.said(r"API key: (\S.*)", "output"), "the key")).read_text().strip()
            agent = SMCPAgentClient(self.agent_name, url=url, office="desk", api_key=key)
            self.calls.submit(agent.connect).result(PATIENCE)
            self.agents.append(agent)
        return self.agents[0]

    def call(self, tool: str, timeout: int = 60, **arguments: Any) -> Future[Any]:
        """A call that runs while the test goes on."""
        return self.call_for(None, tool, arguments, timeout)

    def call_for(
        self, client: dict[str, str] | None, tool: str, arguments: dict[str, Any], timeout: int = 60
    ) -> Future[Any]:
        """A call for an MCP client that has named itself so."""
        agent = self.agent()
        return self.calls.submit(agent.emit_tool_call, "laptop", tool, arguments, timeout, client=client)

    def close(self) -> None:
        for agent in self.agents:
            self.calls.submit(agent.disconnect).result(PATIENCE)
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
        self.calls.shutdown(wait=False, cancel_futures=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="Renew the pictures of the consoles in docs/images.")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "no chromium is on the PATH: `apt install chromium`, or name one in CHROMIUM"
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def guarded() -> Iterator[dict[str, Any]]:
    """How to reach an MCP server that wants a sign-in, with a provider of its own."""
    loop, provider = BackgroundLoop("provider"), AuthorizationServer()
    serving = served(provider.app)
    loop.submit(serving.__aenter__()).result(PATIENCE)
    running = GuardedServer(provider).running()
    server = loop.submit(running.__aenter__()).result(PATIENCE)
    yield {"url": server.mcp_url, "auth": {"issuer": provider.issuer}}
    loop.submit(running.__aexit__(None, None, None)).result(PATIENCE)
    loop.submit(serving.__aexit__(None, None, None)).result(PATIENCE)


def of_kind(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "stdio", "server_parameters": {"command": sys.executable, "args": [str(SERVER), kind]}, **more}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, guarded: dict[str, Any]) -> Iterator[Program]:
    servers = {
        "files": of_kind("files", tool_meta={"read_file": {"auto_apply": True}}),
        "evil": of_kind("evil"),
        "cloud": {"type": "streamable", "server_parameters": guarded},
    }
    running = Program(tmp_path_factory.mktemp("console"), servers, "--no-input")
    yield running
    running.close()


@pytest.fixture
def context(chromium: Any, program: Program) -> Iterator[Any]:
    """A browser with a session of its own, which notes scripts that were blocked and dialogs."""
    context = chromium.new_context(locale="en-GB", viewport={"width": 1200, "height": 900})
    opened = open_session(context, program)
    opened.close()
    yield context
    context.close()


@pytest.fixture
def page(context: Any, program: Program) -> Iterator[Any]:
    """The first page. Nothing on any page may break its policy."""
    page = context.new_page()
    broken = watched(page)
    page.goto(origin(program))
    yield page
    assert broken == []


def origin(program: Program) -> str:
    return program.link().partition("/open")[0]


def open_session(context: Any, program: Program) -> Any:
    """Opens the console with a link. One that was used is replaced as a person does it: by a click on the page."""
    page = context.new_page()
    link = program.link()
    if link in _used:
        page.goto(origin(program))
        deadline = time.monotonic() + PATIENCE
        while program.link() in _used and time.monotonic() < deadline:
            page.goto(origin(program))
            page.get_by_role("button", name=re.compile("new link|新链接")).click()
            page.wait_for_url("**/?asked=1")
            time.sleep(0.1)
        link = program.link()
    _used.add(link)
    page.goto(link)
    page.locator("#connection[data-state=live]").wait_for()
    return page


_used: set[str] = set()


def watched(page: Any) -> list[str]:
    """What Chromium says of breaches of the Content Security Policy, on all pages that are opened in this tab."""
    broken: list[str] = []

    def note(message: Any) -> None:
        if "Content Security Policy" in message.text:
            broken.append(message.text)

    page.on("console", note)
    page.on("dialog", lambda dialog: pytest.fail("a script of others ran"))
    page.add_init_script(
        "window.blocked = [];"
        "document.addEventListener('securitypolicyviolation', (e) => {"
        " window.blocked.push(e.blockedURI);"
        " console.error(`Content Security Policy: ${e.violatedDirective} ${e.blockedURI}`) })"
    )
    return broken


def axe(page: Any) -> list[str]:
    """What axe-core finds on a page as it is."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document)")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]
