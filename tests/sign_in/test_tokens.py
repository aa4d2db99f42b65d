"""What becomes of a token: it expires, is refreshed, revoked, kept, read by another process, and given back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keyring
import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.sign_in.record import SignInRecord
from tests.computer.servers.paper_keyring import PaperKeyring
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.conftest import Browser, call, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sign-in", "9-sign-in-results")

Meet = Callable[..., Any]
SUM = {"a": 1, "b": 2}


def state_of(computer: Computer, name: str = "files") -> str:
    return computer.status()[name].state


def refreshes(provider: AuthorizationServer) -> int:
    return sum(form["grant_type"] == "refresh_token" for form in provider.seen("token"))


def is_over(provider: AuthorizationServer) -> bool:
    return all(grant.expires < time.time() for grant in provider.access.values())


def is_refused(result: dict[str, Any], code: int) -> bool:
    meta = result["_meta"]
    action = {4006: "user_authorization_required", 4007: "token_refresh_required"}[code]
    return bool(result["isError"]) and (
        meta["error_code"],
        meta["mcp_server"],
        meta["auth_hint"]["action"],
        meta["auth_hint"]["message"],
    ) == (code, "files", action, text_of(result))


async def test_a_token_is_refreshed_before_it_expires(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.lifetime = 2
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.refused.clear()
    await until(lambda: is_over(guarded.provider))
    guarded.provider.lifetime = 3600
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert refreshes(guarded.provider) >= 1
    assert guarded.refused == [], "no request went out with a token that was over"
    assert len(browser.opened) == 1


async def test_a_token_that_ended_early_is_refreshed_once_for_many_calls(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    """Refresh tokens are good for one use: a second use would end the whole sign-in."""
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.provider.expire()
    results = await asyncio.gather(*(call(computer, "add", **SUM) for _ in range(20)))
    assert {text_of(result) for result in results} == {"3"}
    assert refreshes(guarded.provider) == 1
    assert guarded.provider.problems == []


async def test_a_token_is_refreshed_after_a_restart_at_the_right_address(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path
) -> None:
    computer = Computer("mine", state_folder=tmp_path / "state", open_url=browser)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    guarded.provider.lifetime = 1
    async with computer:
        await computer.start()
    await until(lambda: is_over(guarded.provider))
    guarded.provider.lifetime = 3600
    guarded.requests.clear()
    later = await meet(guarded.mcp_url)
    assert state_of(later) == "ready"
    assert refreshes(guarded.provider) == 1
    assert len(guarded.provider.seen("metadata")) == 1
    assert None not in guarded.tokens


async def test_a_revoked_refresh_token_ends_in_a_sign_in(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    computer = await meet(guarded.mcp_url)
    await computer.sign_in("files", open_url=browser)
    tools = [tool["name"] for tool in computer.get_tools()]
    guarded.provider.revoke_all()
    assert is_refused(await call(computer, "add", **SUM), 4007)
    assert state_of(computer) == "auth_required"
    assert "a2c-smcp login files" in computer.status()["files"].reason
    assert [tool["name"] for tool in computer.get_tools()] == tools, "they are known from before"
    assert is_refused(await call(computer, "add", **SUM), 4007)
    assert refreshes(guarded.provider) == 1, "it is not tried again and again"
    await computer.sign_in("files", open_url=browser)
    assert text_of(await call(computer, "add", **SUM)) == "3"


async def test_a_call_waits_for_the_person_if_the_sign_in_has_ended(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.provider.revoke_all()
    results = await asyncio.gather(*(call(computer, "add", **SUM) for _ in range(5)))
    assert {text_of(result) for result in results} == {"3"}
    assert len(browser.opened) == 2


async def test_nobody_is_asked_again_and_again(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    """A server that accepts each token for a moment opens a few browsers only."""
    computer = await meet(guarded.mcp_url, open_url=browser)
    results = []
    for _ in range(5):
        guarded.provider.revoke_all()
        results.append(await call(computer, "add", **SUM))
    assert len(browser.opened) == 3
    assert is_refused(results[-1], 4007)


async def test_a_provider_that_is_away_for_a_while_costs_no_sign_in(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.provider.token_status = 503
    guarded.provider.expire()
    result = await call(computer, "add", **SUM)
    assert result["isError"]
    assert "error_code" not in result.get("_meta", {})
    assert state_of(computer) != "auth_required"
    guarded.provider.token_status = None
    await until(lambda: state_of(computer) == "ready")
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert len(browser.opened) == 1


async def test_calls_to_a_server_that_was_never_signed_in_to_say_so(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url)
    await computer.sign_in("files", open_url=browser)
    await computer.sign_out("files")
    await until(lambda: state_of(computer) == "auth_required")
    result = await call(computer, "add", **SUM)
    assert is_refused(result, 4006)
    assert "code" not in result, "a flat error of this code would be no result for 0.4 agents"


# Scopes


async def test_a_call_that_needs_more_waits_for_the_person_and_is_sent_once_more(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert text_of(await call(computer, "write", text="x")) == "written: x"
    assert [asked["scope"] for asked in guarded.provider.seen("authorize")] == ["basic", "basic files:write"]
    assert text_of(await call(computer, "write", text="y")) == "written: y"
    assert len(browser.opened) == 2


async def test_a_call_that_needs_more_is_refused_where_nobody_is_there_and_the_server_stays(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url)
    await computer.sign_in("files", open_url=browser)
    assert is_refused(await call(computer, "write", text="x"), 4007)
    assert state_of(computer) == "ready"
    assert text_of(await call(computer, "add", **SUM)) == "3"


async def test_the_older_transport_knows_a_missing_scope_too(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.sse_url)
    await computer.sign_in("files", open_url=browser)
    assert is_refused(await call(computer, "write", text="x"), 4007)
    assert text_of(await call(computer, "add", **SUM)) == "3"


async def test_nobody_is_asked_twice_for_the_same_scope(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.needed["add"] = "basic never"
    guarded.needed["write"] = "other"
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.provider.scopes = None
    for _ in range(3):
        assert is_refused(await call(computer, "add", **SUM), 4007)
    assert len(browser.opened) == 2


async def test_nobody_is_asked_again_for_a_scope_that_was_refused(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    """An agent that calls again and again must not open page after page."""
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.provider.person = "refuses"
    for _ in range(3):
        assert is_refused(await call(computer, "write", text="x"), 4007)
    assert len(browser.opened) == 2
    guarded.provider.person = "agrees"
    await computer.sign_in("files")
    assert text_of(await call(computer, "write", text="x")) == "written: x", "the owner may sign in for more"


async def test_a_person_who_takes_too_long_costs_the_call_and_nothing_else(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    guarded.provider.person = "leaves"
    result = await call(computer, "write", text="x", timeout=1)
    assert result["code"] == 408
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert state_of(computer) == "ready"


# Where tokens go


async def test_two_servers_with_one_provider_have_tokens_of_their_own(
    provider: AuthorizationServer, browser: Browser, tmp_path: Path
) -> None:
    async with GuardedServer(provider).running() as one, GuardedServer(provider).running() as two:
        computer = Computer("mine", state_folder=tmp_path, open_url=browser, approve=lambda _: True)
        computer.add_server({"name": "one", "url": one.mcp_url})
        computer.add_server({"name": "two", "url": two.mcp_url})
        async with computer:
            await computer.start()
            assert {name: status.state for name, status in computer.status().items()} == {
                "one": "ready",
                "two": "ready",
            }
            await call(computer, "one__add", **SUM)
            await call(computer, "two__add", **SUM)
        assert one.tokens & two.tokens == {None}
        assert {grant.resource for grant in provider.access.values()} == {one.mcp_url, two.mcp_url}


@pytest.mark.parametrize("change", ["url", "issuer", "client_id"])
async def test_a_token_is_not_sent_after_a_change_of_what_it_is_for(
    guarded: GuardedServer, browser: Browser, tmp_path: Path, change: str
) -> None:
    changed = {
        "url": {"name": "files", "url": f"{guarded.url}/mcp/"},
        "issuer": {"name": "files", "url": guarded.mcp_url, "auth": {"issuer": "https://other.example"}},
        "client_id": {"name": "files", "url": guarded.mcp_url, "auth": {"client_id": "other"}},
    }[change]
    computer = Computer("mine", state_folder=tmp_path)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    async with computer:
        await computer.sign_in("files", open_url=browser)
        guarded.requests.clear()
        await computer.put_server(changed)
        await computer.start()
        assert state_of(computer) == "auth_required"
        assert guarded.tokens == {None}


async def test_a_configured_credential_is_left_alone(guarded: GuardedServer, browser: Browser, tmp_path: Path) -> None:
    computer = Computer("mine", state_folder=tmp_path, open_url=browser)
    computer.add_server({"name": "files", "url": guarded.mcp_url, "headers": {"authorization": "Bearer mine-alone"}})
    async with computer:
        await computer.start()
        assert state_of(computer) == "auth_required"
        assert guarded.tokens == {"mine-alone"}
        assert browser.opened == []


def kept(folder: Path) -> dict[str, list[Path]]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "pins"]
    return {suffix: [path for path in files if path.suffix == suffix] for suffix in {path.suffix for path in files}}


async def test_others_on_this_machine_cannot_read_tokens(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        await meet(guarded.mcp_url, open_url=browser)
    finally:
        os.umask(before)
    folder = tmp_path / "state" / "sign-in"
    paths = [folder, *folder.iterdir()]
    assert {path: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == dict.fromkeys(paths, 0)
    files = kept(folder)
    assert set(files) == {".json", ".tokens", ".lock"}
    assert not any(secret in files[".json"][0].read_text() for secret in guarded.provider.secrets())


async def test_tokens_that_others_could_have_written_are_not_used(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    await computer.stop()
    tokens = kept(tmp_path)[".tokens"][0]
    tokens.chmod(0o666)
    guarded.requests.clear()
    later = await meet(guarded.mcp_url)
    assert state_of(later) == "auth_required"
    assert guarded.tokens == {None}
    assert "can be changed by others" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", "not json", '{"binding": 1}'])
async def test_a_damaged_file_counts_as_no_sign_in(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path, content: str
) -> None:
    await meet(guarded.mcp_url, open_url=browser)
    for files in kept(tmp_path / "state").values():
        for path in files:
            path.write_text(content)
    assert state_of(await meet(guarded.mcp_url)) == "auth_required"


async def test_where_nothing_can_be_kept_the_sign_in_lasts_as_long_as_the_program(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    computer = await meet(guarded.mcp_url, open_url=browser, state_folder=tmp_path / "file" / "x")
    assert text_of(await call(computer, "add", **SUM)) == "3"
    assert "you are signed in until this program ends" in caplog.text


async def test_a_keyring_keeps_tokens_instead_of_a_file(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAPER_KEYRING", str(tmp_path / "keyring.json"))
    before = keyring.get_keyring()
    keyring.set_keyring(PaperKeyring())
    try:
        computer = await meet(guarded.mcp_url, open_url=browser)
        assert ".tokens" not in kept(tmp_path / "state")
        [record] = json.loads((tmp_path / "keyring.json").read_text()).values()
        assert SignInRecord.model_validate_json(record).tokens.access_token in guarded.tokens
        assert state_of(await meet(guarded.mcp_url)) == "ready"
        await computer.sign_out("files")
        assert json.loads((tmp_path / "keyring.json").read_text()) == {}
    finally:
        keyring.set_keyring(before)


# Two processes, and the end


async def test_a_running_computer_notices_a_sign_in_and_a_sign_out_of_another_process(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path
) -> None:
    running = await meet(guarded.mcp_url)
    assert state_of(running) == "auth_required"
    other = Computer("other", state_folder=tmp_path / "state")
    other.add_server({"name": "files", "url": guarded.mcp_url})
    async with other:
        await other.sign_in("files", open_url=browser)
        await until(lambda: state_of(running) == "ready")
        assert text_of(await call(running, "add", **SUM)) == "3"
        assert await other.sign_out("files") is True
        await until(lambda: state_of(running) == "auth_required")
    assert is_refused(await call(running, "add", **SUM), 4006)


async def test_after_a_sign_out_of_another_process_nobody_is_asked_to_sign_in_again(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path
) -> None:
    running = await meet(guarded.mcp_url, open_url=browser)
    await until(lambda: state_of(running) == "ready")
    other = Computer("other", state_folder=tmp_path / "state")
    other.add_server({"name": "files", "url": guarded.mcp_url})
    async with other:
        assert await other.sign_out("files") is True
    await until(lambda: state_of(running) == "auth_required")
    assert is_refused(await call(running, "add", **SUM), 4006)
    assert len(browser.opened) == 1


async def test_two_processes_never_use_a_refresh_token_twice(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    one = await meet(guarded.mcp_url, open_url=browser)
    two = await meet(guarded.mcp_url)
    for _ in range(3):
        guarded.provider.expire()
        results = await asyncio.gather(*(call(each, "add", **SUM) for each in (one, two)))
        assert {text_of(result) for result in results} == {"3"}
    assert guarded.provider.problems == []
    assert len(browser.opened) == 1


async def test_signing_out_revokes_and_forgets(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert await computer.sign_out("files") is True
    assert all(grant.is_revoked for grant in guarded.provider.refresh.values())
    assert set(kept(tmp_path / "state")) <= {".lock"}
    await until(lambda: state_of(computer) == "auth_required")
    await computer.start("files")
    assert state_of(computer) == "auth_required", "nobody is asked to come back at once"
    assert len(browser.opened) == 1
    await computer.sign_in("files")
    assert state_of(computer) == "ready"


async def test_signing_out_where_the_provider_cannot_revoke(
    guarded: GuardedServer, browser: Browser, meet: Meet, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.provider.metadata["revocation_endpoint"] = None
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert await computer.sign_out("files") is False
    guarded.provider.metadata["revocation_endpoint"] = "http://127.0.0.1:9/revoke"
    await computer.sign_in("files")
    with caplog.at_level(logging.WARNING):
        assert await computer.sign_out("files") is False
    assert "could not be revoked" in caplog.text
