"""MCP Apps in a real Chromium, in a host made of the extension's own library: two computers with the same app."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE, PROGRAM, ROOT, Program, until

LIBRARIES = ROOT / ".cache/browser/node_modules"
SERVER = ROOT / "tests/bridge/app_server.py"
KEY = "the-bearer-key-of-this-test"
HOST = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>A host of apps</title><style>
body { font: 16px sans-serif; display: flex; flex-wrap: wrap; gap: 16px; margin: 16px }
section { border: 1px solid #999; border-radius: 8px; overflow: hidden; width: 340px }
h2 { font: 14px monospace; margin: 0; padding: 8px 12px; background: #eee }
iframe { border: 0; width: 100%; height: 160px }
</style><body><script type="module" src="/host.js"></script></body></html>"""
SANDBOX = """<!doctype html><style>html, body, iframe { margin: 0; border: 0; width: 100%; height: 100% }</style>
<script>
const inner = document.createElement("iframe"), host = window.parent;
inner.sandbox = "allow-scripts allow-same-origin";
addEventListener("message", ({source, data}) => {
  if (source === inner.contentWindow) host.postMessage(data, "*");
  else if (data.method !== "ui/notifications/sandbox-resource-ready") inner.contentWindow.postMessage(data, "*");
  else {
    inner.contentDocument.open();
    inner.contentDocument.write(data.params.html);
    inner.contentDocument.close();
  }
});
onload = () => {
  document.body.append(inner);
  host.postMessage({jsonrpc: "2.0", method: "ui/notifications/sandbox-proxy-ready", params: {}}, "*");
};
</script><body></body>"""
POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; frame-src 'self'"


class Pages(BaseHTTPRequestHandler):
    """The host's pages and the sandbox; the latter with the policy that the page of the app asks for, and no more."""

    files: dict[str, tuple[str, str]]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        kind, text = self.files[url.path]
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if asked := parse_qs(url.query).get("csp"):
            domains = " ".join(json.loads(asked[0]).get("connectDomains", ["'none'"]))
            self.send_header("Content-Security-Policy", f"{POLICY}; connect-src {domains}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


Serves = Callable[[dict[str, tuple[str, str]]], str]


@pytest.fixture
def serves() -> Iterator[Serves]:
    servers: list[ThreadingHTTPServer] = []

    def serve(files: dict[str, tuple[str, str]]) -> str:
        handler = type("Handler", (Pages,), {"files": files})
        servers.append(server := ThreadingHTTPServer(("127.0.0.1", 0), handler))
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def host_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The host with its libraries in one file."""
    made = tmp_path_factory.mktemp("host") / "host.js"
    source = Path(__file__).with_name("apps_host.js")
    options = ("--bundle", "--format=esm", "--platform=browser", "--log-level=error", f"--outfile={made}")
    environ = {**os.environ, "NODE_PATH": str(LIBRARIES)}
    subprocess.run([LIBRARIES / ".bin/esbuild", source, *options], env=environ, check=True, timeout=PATIENCE)
    return made.read_text("utf-8")


Starts = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    """Starts `a2c-smcp` in a folder of its own, with its output in the file `output` there."""
    running: list[subprocess.Popen[bytes]] = []

    def start(folder: str, *words: str) -> subprocess.Popen[bytes]:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
        environ |= {"HOME": str(place), "XDG_STATE_HOME": str(place / "state"), "PYTHONUNBUFFERED": "1"}
        with (place / "output").open("wb") as output:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            running.append(subprocess.Popen([PROGRAM, *words], cwd=place, env=environ, **options))
        return running[-1]

    yield start
    for process in reversed(running):
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def counter(owner: str) -> dict[str, Any]:
    """The app's server. Its owner allows two of its tools, and is asked about the others."""
    library = LIBRARIES / "@modelcontextprotocol/ext-apps/dist/src/app-with-deps.js"
    allowed = {tool: {"auto_apply": True} for tool in ("show", "press", "absent")}
    program = {"command": sys.executable, "args": [str(SERVER), owner, str(library)]}
    return {"type": "stdio", "server_parameters": program, "tool_meta": allowed}


@pytest.fixture
def host(tmp_path: Path, starts: Starts, serves: Serves, host_script: str) -> Iterator[str]:
    """The URL of a host that is connected to the bridge of an office with two computers."""
    laptop = Program(tmp_path / "laptop", {"counter": counter("laptop")}, "--no-input")
    try:
        url = until(lambda: laptop.said(r"listening on (\S+)", "output"), "the address")
        key = until(lambda: laptop.said(r"API key: (\S.*)", "output"), "the key")
        office = ("--url", url, "--office", "desk", "--api-key", Path(key).read_text().strip())
        config = tmp_path / "attic.json"
        config.write_text(json.dumps({"servers": {"counter": counter("attic")}}))
        starts("attic", "computer", *office, "--name", "attic", "--config", str(config), "--no-input")
        page = serves({"/": ("html", HOST), "/host.js": ("javascript", host_script)})
        starts("bridge", "bridge", *office, "--port", "0", "--bearer-key", KEY, "--allow-origin", page)
        output = tmp_path / "bridge" / "output"
        bridge = until(lambda: "".join(re.findall(r"listening on (\S+)", output.read_text())), "the bridge")
        words = {"bridge": bridge, "key": KEY, "sandbox": serves({"/": ("html", SANDBOX)})}
        yield f"{page}/?{urlencode(words)}"
    finally:
        laptop.close()


@pytest.mark.covers("bridge-apps")
def test_each_button_of_two_equal_apps_acts_on_its_own_computer(
    chromium: Any, host: str, request: pytest.FixtureRequest
) -> None:
    context = chromium.new_context(viewport={"width": 740, "height": 232})
    context.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    page = context.new_page()
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))

    def shown() -> bool:
        page.goto(host)
        page.wait_for_selector("body[data-tools]")
        return page.locator("section").count() == 2

    until(shown, "the apps of both computers")
    frames = [section.frame_locator("iframe").frame_locator("iframe") for section in page.locator("section").all()]
    apps = {frame.locator("#owner").inner_text(): frame for frame in frames}
    assert apps.keys() == {"attic", "laptop"}
    for owner, app in apps.items():
        expect(app.locator("#count")).to_have_text(f"0 of {owner}")
        expect(app.locator("#said")).to_have_text(f"a note of {owner}")
    for owner, times in (("laptop", 2), ("attic", 1)):
        for number in range(times):
            apps[owner].locator("#press").click()
            expect(apps[owner].locator("#count")).to_have_text(f"{number + 1} of {owner}")
    if request.config.getoption("--screenshots"):
        page.mouse.move(0, 0)
        page.screenshot(path=ROOT / "docs/images/apps.png")
    apps["laptop"].locator("#absent").click()
    expect(apps["laptop"].locator("#said")).to_have_text("only laptop has this")
    apps["attic"].locator("#absent").click()
    expect(apps["attic"].locator("#said")).to_contain_text("attic__absent")
    apps["attic"].locator("#wipe").click()
    expect(apps["attic"].locator("#said")).to_contain_text("approv")
    assert {each.get_attribute("data-permissions") for each in page.locator("section").all()} == {"camera"}
    assert broken == []
    context.close()
