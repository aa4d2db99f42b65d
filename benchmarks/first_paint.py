"""How soon a real Chromium shows something of a page: a program of its own, in the Python that drives the browser.

`python -m benchmarks.first_paint URL SECRET LOADS PATH …`, where `SECRET` is that of a session, prints a JSON object:
for each path the seconds from the start of each load until its contents were painted, as the browser measures it.
Each load is in a new window that has kept nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from functools import partial

from playwright import sync_api as playwright

__all__: list[str] = []

PAINTED = """() => new Promise(found => {
    const look = () => document.querySelector("[data-region]") ? found(performance.now()) : requestAnimationFrame(look);
    look();
})"""
MS = 1000


def first_paint(browser: playwright.Browser, url: str, secret: str, path: str) -> float:
    """Seconds until the first contents were there."""
    with browser.new_context() as context:
        context.add_init_script(f"localStorage.setItem('a2c-session:/console', {json.dumps(secret)})")
        page = context.new_page()
        page.goto(url + path, wait_until="commit")
        return float(page.evaluate(PAINTED)) / MS


def main(url: str, secret: str, loads: str, *paths: str) -> None:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        sys.exit("no chromium is on the PATH: `apt install chromium`, or name one in CHROMIUM")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        measure = partial(first_paint, browser, url, secret)
        measure(paths[0])  # the browser's own start is not counted
        found = {path: [measure(path) for _ in range(int(loads))] for path in paths}
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
