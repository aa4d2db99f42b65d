"""What a Server keeps of sign-ins: used once, and the same for all processes that share the file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from a2c_smcp.server.auth.authorization import Client, CodeRequest, GrantHolder, OAuthError
from a2c_smcp.server.auth.grants import AccessGrants, KeptInFile, SignIn
from tests.peer import PATIENCE
from tests.stage.signing_in import CALLBACK, RawClient

pytestmark = pytest.mark.covers("mcp-sign-in")

_ROUNDS = 100


class Interrupted(KeptInFile):
    """Does something else before the first grant is kept, as another node may."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def swap(self, name: str, before: str | None, after: str | None, seconds: float) -> bool:
        if name.startswith("grant:") and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().swap(name, before, after, seconds)


async def test_a_code_that_is_used_again_before_its_grant_is_kept_leaves_no_grant() -> None:
    async def end(name: str) -> None:
        """Nothing has begun."""

    kept, raw = Interrupted(None), RawClient("", id="raw")
    grants = AccessGrants(SignIn(public_url="https://hub.example"), kept, end)
    request = CodeRequest(raw.id, CALLBACK, raw.challenge, "desk")
    code = await grants.new_code(request, Client(raw.id, "Raw", (CALLBACK,)), GrantHolder("alice"))
    form = {"code": code, "client_id": raw.id, "redirect_uri": CALLBACK, "code_verifier": raw.verifier}

    async def used_again() -> None:
        with pytest.raises(OAuthError):
            await grants.exchange({"code": code}, None)

    kept.meanwhile = used_again
    with pytest.raises(OAuthError):
        await grants.exchange(form, None)
    assert await grants.all() == []


_OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from a2c_smcp.server.auth.grants import KeptInFile

async def write():
    kept = KeptInFile(Path(sys.argv[1]))
    while True:
        await kept.swap("other", await kept.kept("other"), "x" * 60_000, 60)

asyncio.run(write())
"""


async def test_what_is_kept_is_read_again_while_another_process_writes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    interval = sys.getswitchinterval()

    async def read() -> None:
        while True:
            await kept.kept("other")
            await asyncio.sleep(0)

    kept, other = KeptInFile(file), await asyncio.create_subprocess_exec(sys.executable, "-c", _OTHER_PROCESS, file)
    reader = asyncio.create_task(read())
    sys.setswitchinterval(1e-5)  # threads take turns more often
    try:
        async with asyncio.timeout(PATIENCE):
            while await kept.kept("other") is None:  # noqa: ASYNC110, another process writes it
                await asyncio.sleep(0)
        for number in range(_ROUNDS):
            assert await kept.swap(f"link:{number}", None, "1", 60)
            assert await kept.kept(f"link:{number}") == "1"
            assert await kept.swap(f"link:{number}", "1", None, 0)
            assert await kept.kept(f"link:{number}") is None
    finally:
        sys.setswitchinterval(interval)
        reader.cancel()
        other.kill()
        await other.wait()
