"""The guide on sealed calls: its commands print what it shows, and its example works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.computer.hosted import hosted
from tests.shown_output import Machine, Step, steps
from tests.stage.guides import Up, example_server

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sealed-calls.md"

pytestmark = pytest.mark.covers("examples")


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.put("../work/restaurant.json", {"mcpServers": {"restaurant": example_server("restaurant")}})
    return machine


def shown(pattern: str) -> list[Step]:
    return [step for step in steps(PAGE) if re.fullmatch(pattern, step.command)]


@pytest.mark.parametrize(("how", "calls"), [("--e2e prefer", 3), ("--sign", 1)])
async def test_calls_are_answered_and_refused_as_shown(machine: Machine, how: str, calls: int) -> None:
    (start,) = shown(f"a2c-smcp up .* {how} --yes")
    up = await Up.start(machine, start.command)
    called = [step for step in shown("a2c-smcp agent call .*") if ("--verify" in step.command) is (how == "--sign")]
    assert len(called) == calls
    for step in called:
        await up.prints(step, code=int("are ready" not in step.prints))


async def test_the_example_calls(shared_hub: Any, office: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE, "exec"), names)
    async with hosted(names["computer"], shared_hub.url, office, tmp_path / "computer"):
        assert await names["call"](shared_hub.url, office) == "3"
