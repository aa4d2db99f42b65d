"""What becomes of a token: it expires, is refreshed, revoked, kept, read by another process, and given back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import keyring
import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.sign_in.registration import SignInRecord
from tests.computer.servers.paper_keyring import PaperKeyring
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.conftest import Scene, call, state_of, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sign-in", "9-sign-in-results")

SUM = {"a": 1, "b": 2}


def refreshes(provider: AuthorizationServer) -> int:
    return sum(form["grant_type"] == "refresh_token" for form in provider.seen("token"))


def is_over(provider: AuthorizationServer) -> bool:
    return all(grant.expires < time.time() for grant in provider.access.values())


def is_refused(result: dict[str, Any], code: int) -> bool:
    meta, hint = result["_meta"], result["_meta"]["auth_hint"]
    action = {4006: "user_authorization_required", 4007: "token_refresh_required"}[code]
    found = meta["error_code"], meta["mcp_server"], hint["action"], hint["message"]
    return bool(result["isError"]) and found == (code, "files", action, text_of(result))


async def test_a_token_is_refreshed_before_it_expires(scene: Scene) -> None:
    scene.provider.lifetime = 2
    computer = await scene.meet()
    scene.server.refused.clear()
    await until(lambda: is_over(scene.provider))
    scene.provider.lifetime = 3600
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert refreshes(scene.provider) >= 1
    assert scene.server.refused == [], "no request went out with a token that was over"
    assert len(scene.opened) == 1


async def test_a_token_that_ended_early_is_refreshed_once_for_many_calls(scene: Scene) -> None:
    """Refresh tokens are good for one use: a second use would end the whole sign-in."""
    computer = await scene.meet()
    scene.provider.expire()
    results = await asyncio.gather(*(call(computer, "add", **SUM) for _ in range(20)))
    assert {text_of(result) for result in results} == {"3"}
    assert refreshes(scene.provider) == 1
    assert scene.provider.problems == []


async def test_a_token_is_refreshed_after_a_restart_at_the_right_address(scene: Scene) -> None:
    scene.provider.lifetime = 3
    await (await scene.meet()).stop()
    await until(lambda: is_over(scene.provider))
    scene.provider.lifetime = 3600
    scene.server.requests.clear()
    await scene.ready(open_url=None)
    assert refreshes(scene.provider) == 1
    assert len(scene.provider.seen("metadata")) == 1
    assert None not in scene.server.tokens


async def test_a_revoked_refresh_token_ends_in_a_sign_in(scene: Scene) -> None:
    computer = await scene.signed_in()
    tools = [tool["name"] for tool in computer.get_tools()]
    scene.provider.revoke_all()
    assert is_refused(await call(computer, "add", **SUM), 4007)
    assert state_of(computer) == "auth_required"
    assert "a2c-smcp login files" in computer.status()["files"].reason
    assert [tool["name"] for tool in computer.get_tools()] == tools, "they are known from before"
    assert is_refused(await call(computer, "add", **SUM), 4007)
    assert refreshes(scene.provider) == 1, "it is not tried again and again"
    await computer.sign_in("files", open_url=scene.browser)
    assert text_of(await call(computer, "add", **SUM)) == "3"


async def test_a_provider_that_is_away_for_a_while_costs_no_sign_in(scene: Scene) -> None:
    computer = await scene.meet()
    scene.provider.token_status = 503
    scene.provider.expire()
    result = await call(computer, "add", **SUM)
    assert result["isError"]
    assert "error_code" not in result.get("_meta", {})
    assert state_of(computer) != "auth_required"
    scene.provider.token_status = None
    await until(lambda: state_of(computer) == "ready")
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert len(scene.opened) == 1


async def test_calls_to_a_server_that_was_never_signed_in_to_say_so(scene: Scene) -> None:
    computer = await scene.signed_in()
    await computer.sign_out("files")
    await until(lambda: state_of(computer) == "auth_required")
    result = await call(computer, "add", **SUM)
    assert is_refused(result, 4006)
    assert "code" not in result, "a flat error of this code would be no result for 0.4 agents"


# Scopes


async def test_a_call_that_needs_more_is_refused_and_the_next_sign_in_asks_for_that(scene: Scene) -> None:
    computer = await scene.meet()
    assert is_refused(await call(computer, "write", text="x"), 4007)
    await computer.sign_in("files")
    assert text_of(await call(computer, "write", text="x")) == "written: x"
    assert [asked["scope"] for asked in scene.provider.seen("authorize")] == ["basic", "basic files:write"]


async def test_a_server_that_refuses_one_call_goes_on(scene: Scene) -> None:
    computer = await scene.signed_in()
    assert is_refused(await call(computer, "write", text="x"), 4007)
    assert state_of(computer) == "ready"
    assert text_of(await call(computer, "add", **SUM)) == "3"


async def test_the_older_transport_knows_a_missing_scope_too(scene: Scene) -> None:
    computer = await scene.signed_in(scene.server.sse_url)
    assert is_refused(await call(computer, "write", text="x"), 4007)
    assert text_of(await call(computer, "add", **SUM)) == "3"


# Where tokens go


async def test_two_servers_with_one_provider_have_tokens_of_their_own(scene: Scene, tmp_path: Path) -> None:
    async with GuardedServer(scene.provider).running() as one, GuardedServer(scene.provider).running() as two:
        computer = Computer("mine", state_folder=tmp_path, open_url=scene.browser, approve=lambda _: True)
        auth = {"issuer": scene.provider.issuer}
        computer.add_server({"name": "one", "url": one.mcp_url, "auth": auth})
        computer.add_server({"name": "two", "url": two.mcp_url, "auth": auth})
        async with computer:
            await computer.start()
            await computer.sign_in("one")
            await computer.sign_in("two")
            assert [status.state for status in computer.status().values()] == ["ready", "ready"]
            await call(computer, "one__add", **SUM)
            await call(computer, "two__add", **SUM)
        assert one.tokens & two.tokens == {None}
        assert {grant.resource for grant in scene.provider.access.values()} == {one.mcp_url, two.mcp_url}


CHANGES = {
    "url": ("/mcp/", {}),
    "issuer": ("/mcp", {"issuer": "https://other.example"}),
    "client_id": ("/mcp", {"client_id": "other"}),
}


@pytest.mark.parametrize(("path", "auth"), CHANGES.values(), ids=CHANGES)
async def test_a_token_is_not_sent_after_a_change_of_what_it_is_for(scene: Scene, path: str, auth: Any) -> None:
    computer = await scene.signed_in(starts=False)
    scene.server.requests.clear()
    await computer.put_server({"name": "files", "url": scene.server.url + path, "auth": auth})
    await computer.start()
    assert state_of(computer) == "auth_required"
    assert scene.server.tokens == {None}


async def test_a_configured_credential_is_left_alone(scene: Scene) -> None:
    assert state_of(await scene.meet(headers={"authorization": "Bearer mine-alone"})) == "auth_required"
    assert scene.server.tokens == {"mine-alone"}
    assert scene.opened == []


def kept(folder: Path) -> dict[str, list[Path]]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name not in ("pins", "freezes")]
    return {suffix: [path for path in files if path.suffix == suffix] for suffix in {path.suffix for path in files}}


async def test_others_on_this_machine_cannot_read_tokens(scene: Scene, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await scene.meet()
    finally:
        os.umask(before)
    folder = tmp_path / "state" / "sign-in"
    paths = [folder, *folder.iterdir()]
    assert {path: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == dict.fromkeys(paths, 0)
    files = kept(folder)
    assert set(files) == {".json", ".tokens", ".lock"}
    assert not any(secret in files[".json"][0].read_text() for secret in scene.provider.secrets())


async def test_tokens_that_others_could_have_written_are_not_used(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    computer = await scene.meet()
    await computer.stop()
    tokens = kept(tmp_path)[".tokens"][0]
    tokens.chmod(0o666)
    scene.server.requests.clear()
    later = await scene.meet(open_url=None)
    assert state_of(later) == "auth_required"
    assert scene.server.tokens == {None}
    assert "can be changed by others" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", "not json", '{"binding": 1}'])
async def test_a_damaged_file_counts_as_no_sign_in(scene: Scene, tmp_path: Path, content: str) -> None:
    await scene.meet()
    for files in kept(tmp_path / "state").values():
        for path in files:
            path.write_text(content)
    assert state_of(await scene.meet(open_url=None)) == "auth_required"


async def test_where_nothing_can_be_kept_the_sign_in_lasts_as_long_as_the_program(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    computer = await scene.meet(state_folder=tmp_path / "file" / "x")
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert "you are signed in until this program ends" in caplog.text


async def test_a_keyring_keeps_tokens_instead_of_a_file(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAPER_KEYRING", str(tmp_path / "keyring.json"))
    before = keyring.get_keyring()
    keyring.set_keyring(PaperKeyring())
    try:
        computer = await scene.meet()
        assert ".tokens" not in kept(tmp_path / "state")
        [record] = json.loads((tmp_path / "keyring.json").read_text()).values()
        assert SignInRecord.model_validate_json(record).tokens.access_token in scene.server.tokens
        await scene.ready(open_url=None)
        await computer.sign_out("files")
        assert json.loads((tmp_path / "keyring.json").read_text()) == {}
    finally:
        keyring.set_keyring(before)


# Two processes, and the end


async def test_a_running_computer_notices_a_sign_in_and_a_sign_out_of_another_process(scene: Scene) -> None:
    running = await scene.meet(open_url=None)
    assert state_of(running) == "auth_required"
    other = await scene.meet(open_url=None, starts=False)
    await other.sign_in("files", open_url=scene.browser)
    await until(lambda: state_of(running) == "ready")
    assert text_of(await call(running, "add", **SUM)) == "3"
    assert await other.sign_out("files") is True
    await until(lambda: state_of(running) == "auth_required")
    assert is_refused(await call(running, "add", **SUM), 4006)


async def test_two_processes_never_use_a_refresh_token_twice(scene: Scene) -> None:
    one = await scene.meet()
    two = await scene.meet(open_url=None)
    for _ in range(3):
        scene.provider.expire()
        results = await asyncio.gather(*(call(each, "add", **SUM) for each in (one, two)))
        assert {text_of(result) for result in results} == {"3"}
    assert scene.provider.problems == []
    assert len(scene.opened) == 1


async def test_signing_out_revokes_and_forgets(scene: Scene, tmp_path: Path) -> None:
    computer = await scene.meet()
    assert await computer.sign_out("files") is True
    assert all(grant.is_revoked for grant in scene.provider.refresh.values())
    assert set(kept(tmp_path / "state")) <= {".lock"}
    await until(lambda: state_of(computer) == "auth_required")
    await computer.start("files")
    assert state_of(computer) == "auth_required"
    assert len(scene.opened) == 1
    await computer.sign_in("files")
    assert state_of(computer) == "ready"


async def test_signing_out_where_the_provider_cannot_revoke(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.provider.metadata["revocation_endpoint"] = None
    computer = await scene.meet()
    assert await computer.sign_out("files") is False
    scene.provider.metadata["revocation_endpoint"] = "http://127.0.0.1:9/revoke"
    await computer.sign_in("files")
    with caplog.at_level(logging.WARNING):
        assert await computer.sign_out("files") is False
    assert "could not be revoked" in caplog.text
