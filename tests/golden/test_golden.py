"""What can be seen from outside is what the golden files say. If a change is meant: `python -m tests.golden`."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from tests.golden.scenario import observed
from tests.golden.tables import tables

HERE = Path(__file__).parent


def compare(files: dict[str, str]) -> None:
    found = []
    for name, text in files.items():
        golden = (HERE / name).read_text("utf-8")
        found += unified_diff(golden.splitlines(), text.splitlines(), name, "now", lineterm="")
    assert not found, "\n".join(found)


async def test_messages_metrics_audit_and_spans_are_the_same(tmp_path: Path) -> None:
    compare(await observed(tmp_path))


def test_commands_and_errors_are_the_same() -> None:
    compare(tables())
