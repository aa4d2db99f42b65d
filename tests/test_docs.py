"""The Python examples in the documentation run, and the two READMEs say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from a2c_smcp.protocol.events import EVENTS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code, "utf-8")
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_event_is_in_the_protocol_page() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    names = [name for event in EVENTS for name in (event.name, event.notice, event.older, event.older_notice) if name]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_readmes_are_twins() -> None:
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (r"^## ", r"^```\w*$", r"^- \*\*", r"^\| ", r"^(?:make|pip|a2c-smcp) .*?(?= {2,}|$)"):
        found = [re.findall(pattern, text, re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1], pattern
