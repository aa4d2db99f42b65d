"""Trouble that a Server tells on its pages: keys that could not be read again, a store that refuses it."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.program import run_program
from tests.stage.keys import write_keys
from tests.stage.program import ENVIRONMENT, Starts, starts
from tests.valkey import running_valkey
from tests.waiting import until_it_goes

__all__ = ["starts"]

ADMIN = "operator-0123456789"
ONE = "a-key-0123456789abcdef"


async def page(url: str, path: str) -> Any:
    async with httpx2.AsyncClient() as http:
        answer = await http.get(f"{url}{path}")
    return answer.text if path == "/metrics" else answer.json()


@pytest.mark.covers("told-trouble")
@pytest.mark.parametrize("admin", [{}, {"A2C_SERVER_ADMIN_KEY": ADMIN}], ids=["alone", "with operators"])
async def test_keys_that_could_not_be_read_again_are_told_until_they_are(
    starts: Starts, tmp_path: Path, admin: dict[str, str]
) -> None:
    keys = write_keys(tmp_path, {ONE: "one"})
    program = await starts("--keys-file", keys, "--metrics", **admin)
    good = keys.read_text("utf-8")
    keys.write_text(json.dumps({"sha256:secret-of-somebody": {}}), "utf-8")
    program.signal(signal.SIGHUP)
    await program.says("the keys are not reloaded, the earlier ones stay")

    async def tells(*, trouble: bool) -> None:
        health = await page(program.url, "/healthz")
        assert ("keys" in health) == trouble
        assert str(keys) not in health.get("keys", "")
        assert "secret-of-somebody" not in json.dumps(health)
        assert f"a2c_keys_failing {int(trouble)}\n" in await page(program.url, "/metrics")

    await tells(trouble=True)
    keys.write_text(good, "utf-8")
    program.signal(signal.SIGHUP)
    await until_it_goes(lambda: tells(trouble=False))
    await program.stops()


@pytest.mark.covers("told-trouble")
@pytest.mark.parametrize(
    ("given", "told"), [("", "wants a password"), ("old-secret", "refuses the user or the password")]
)
async def test_a_store_that_no_longer_admits_a_node_is_not_told_as_unreachable(
    starts: Starts, given: str, told: str
) -> None:
    with running_valkey(*(("--requirepass", given) if given else ())) as valkey:
        url = valkey.url.replace("//", f"//:{given}@") if given else valkey.url
        program = await starts("--node", "n1", A2C_SERVER_REDIS=url)
        program.url = program.url.split()[0]
        valkey.kill()
        await program.says("it is tried again until it answers")
        valkey.start("--requirepass", "new-secret")
        line = await program.says(told)
        assert "correct --redis or A2C_SERVER_REDIS and start it again" in line
        ready = await page(program.url, "/readyz")
        assert ready == {"status": "degraded", "node": "n1", "reason": f"the shared store {told}"}
        valkey.kill()
        valkey.start()

        async def is_ready() -> None:
            assert await page(program.url, "/readyz") == {"status": "ready", "node": "n1"}

        await until_it_goes(is_ready)
        assert sum(told in line for line in program.err) == 1
        assert "secret" not in program.said
        await program.stops()


@pytest.mark.covers("told-trouble")
async def test_a_node_that_is_refused_at_its_start_says_what_to_do() -> None:
    with running_valkey("--requirepass", "new-secret") as valkey:
        words = ("server", "--port", "0", "--node", "n1", "--redis", valkey.url)
        ended = await asyncio.to_thread(run_program, *words, env=ENVIRONMENT)
    assert ended.returncode != 0
    assert "wants a password" in ended.stderr
    assert "A2C_SERVER_REDIS=" in ended.stderr
