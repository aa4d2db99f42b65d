"""Admin keys with a name and a role: what a viewer may not do, and how keys end, are kept, and are attacked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from socketio.exceptions import ConnectionError as ConnectionRefused

from a2c_smcp.audit.reading import EntryFilter, entries
from a2c_smcp.console.operator.calls import start_command
from a2c_smcp.console.operator.console import OperatorConsole
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.admin import operations
from a2c_smcp.server.admin.api import AdminAPI
from a2c_smcp.server.admin.node_view import KeyRow, KeyUses
from a2c_smcp.server.auth.api_keys import KeysFileError, OperatorKeys, change_keys, hash_key, key_id, read_entries
from a2c_smcp.server.auth.authentication import CredentialUses
from a2c_smcp.server.freezes import Freeze
from a2c_smcp.server.http_requests import CONSOLE_PATH
from tests.cluster import serving_node
from tests.conftest import Hub
from tests.console.browserless import Visitor
from tests.on_disk import content_of
from tests.stage.crew import Crew
from tests.stage.keys import write_keys
from tests.stage.place import Place
from tests.stage.web import Http, fetch
from tests.valkey import Valkey
from tests.waiting import until, until_it_goes

pytestmark = [pytest.mark.covers("operators"), pytest.mark.one_process]

SHARED, ALICE = "shared-admin-0123456789", "alice-key-0123456789"
ANN, BOSS = "ann-canary-0123456789", "boss-canary-0123456789"
ANNS = key_id(hash_key(ANN))
HOSTILE = "<img src=x onerror=alert(1)>"
PATIENCE = 60.0
FORMS = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]+)"')


def admin_keys(folder: Path, role_of_boss: str = "operator", **more: Any) -> Path:
    """The file of the admin keys of ann, a viewer, and of boss, an operator."""
    path = folder / "admin-keys.json"
    viewer = {"principal": "ann", "roles": ["viewer"], **more}
    keys = {hash_key(ANN): viewer, hash_key(BOSS): {"principal": "boss", "roles": [role_of_boss]}}
    path.write_text(json.dumps(keys), "utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return admin_keys(tmp_path)


@pytest.fixture
async def hub(serve: Callable[..., Any], tmp_path: Path, keys_file: Path) -> Hub:
    auth = DefaultAuthenticationProvider(keys_file=write_keys(tmp_path, {ALICE: "alice"}))
    hub: Hub = await serve(auth=auth, admin_key=SHARED, admin_keys_file=keys_file, audit=tmp_path / "audit.jsonl")
    app = hub.app
    app.mount(OperatorConsole(app.operations, app.admin_access), CONSOLE_PATH, has_cors=False)
    return hub


async def ask(url: str, method: str, path: str, key: str, **options: Any) -> tuple[int, Any]:
    answer = await fetch(f"{url}/admin/api/{path}", method, headers={"Authorization": f"Bearer {key}"}, **options)
    return answer.status, answer.json


async def keys_by_name(url: str, key: str = BOSS) -> dict[str, Any]:
    status, answer = await ask(url, "GET", "keys", key)
    assert status == 200, answer
    return {row["principal"]: row for row in answer["keys"]}


async def signed_in(url: str, key: str) -> dict[str, str]:
    """The header of a new session of the console."""
    answer = await fetch(f"{url}/console/sign-in", "POST", data={"key": key}, headers={"Origin": url})
    return {"x-a2c-session": answer.json["secret"]}


@asynccontextmanager
async def streaming(http: Http, url: str, **headers: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """A stream that has begun. Yields a function that waits for its end, and returns the rest of it."""
    async with http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(PATIENCE)) as stream:
        assert stream.status == 200
        await stream.content.readline()
        yield stream.read


# What a viewer may not do


async def test_a_viewer_sees_all_and_is_refused_at_every_request_that_changes_something(
    hub: Hub, keys_file: Path, tmp_path: Path
) -> None:
    before = content_of(keys_file), content_of(tmp_path / "keys.json")
    routes = AdminAPI(hub.app.operations, hub.app.admin_access)._routes
    changing = [(method, path.replace("*", ANNS)) for method, path in routes if method != "GET"]
    assert len(changing) >= 7
    for method, path in [*changing, ("PUT", "keys"), ("POST", "no-such-thing"), ("DELETE", "offices/desk")]:
        status, refusal = await ask(hub.url, method, path, ANN, json={"principal": "eve", "roles": ["operator"]})
        assert (status, refusal["code"]) == (403, 403), path
        assert "'ann' is a viewer" in refusal["message"]
    for method, path in routes:
        if method == "GET":
            assert (await ask(hub.url, method, path.replace("*", "desk"), ANN))[0] != 403
    assert (content_of(keys_file), content_of(tmp_path / "keys.json")) == before
    refused = [*entries(tmp_path / "audit.jsonl", EntryFilter({"event": "refused"}))]
    assert {line["code"] for line in refused} == {403}
    assert b"canary" not in content_of(tmp_path / "audit.jsonl")


async def test_a_viewer_finds_no_button_on_any_page_and_forms_by_hand_are_refused(hub: Hub) -> None:
    visitor = Visitor(OperatorConsole(hub.app.operations, hub.app.admin_access))
    pages, actions = visitor.app._app._pages, visitor.app._app._actions  # type: ignore[attr-defined]
    await visitor.act(f"{CONSOLE_PATH}/sign-in", key=ANN)
    await hub.app.hub.freezes.freeze(Freeze("desk"))
    for path in pages:
        page = (await visitor.get(f"{CONSOLE_PATH}{path}")).body
        assert {*FORMS.findall(page)} == {"/console/preferences", "/console/sign-out"}, path
        assert '<a href="/console/account" class="account">ann, viewer</a>' in page
    for path in {*actions} - {"/preferences", "/sign-out"}:
        answer = await visitor.act(f"{CONSOLE_PATH}{path}", id=ANNS, principal="eve", role="operator", office="desk")
        assert (answer.status, "'ann' is a viewer" in answer.body) == (403, True), path
    assert "eve" not in await keys_by_name(hub.url)
    account = (await visitor.get(f"{CONSOLE_PATH}/account")).body
    assert [text for text in ("ann", "viewer: sees all, and changes nothing", ANNS) if text not in account] == []


async def test_each_change_and_each_sign_in_is_audited_with_the_name_of_the_operator(hub: Hub, tmp_path: Path) -> None:
    for key in (SHARED, BOSS):
        await ask(hub.url, "POST", "keys", key, json={"principal": "bob"})
    await signed_in(hub.url, ANN)
    lines = entries(tmp_path / "audit.jsonl", EntryFilter({"event": "operator"}))
    done = [(line["principal"], line["action"], line["via"]) for line in lines]
    assert done == [
        *(("admin", "create key", "api"), ("boss", "create key", "api")),
        ("ann", "console sign-in", "console"),
    ]


async def test_no_client_is_admitted_by_an_admin_key(hub: Hub, connect: Callable[..., Any]) -> None:
    for key in (ANN, BOSS, SHARED):
        with pytest.raises(ConnectionRefused, match="failed to connect"):
            await connect(hub, auth={"token": key})


@pytest.mark.parametrize("name", ["key", "token", "admin_key", "access_token", "api_key"])
async def test_a_key_in_a_url_opens_nothing(hub: Hub, name: str) -> None:
    for path in ("/admin/api/keys", "/admin/api/events", "/console/keys", "/console/open"):
        answer = await fetch(f"{hub.url}{path}?{name}={BOSS}")
        assert answer.status == 401 or "key-" not in answer.text
        assert BOSS not in answer.text


# How keys end


async def test_a_revoked_key_ends_its_streams_and_sessions_on_all_nodes_at_once(
    http: Http, keys_file: Path, valkey: Valkey, prefix: str
) -> None:
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ("north", "south"):
            node = serving_node(valkey.url, prefix, name, admin_keys_file=keys_file)
            nodes.append(await stack.enter_async_context(node))
            app = nodes[-1].app
            app.mount(OperatorConsole(app.operations, app.admin_access), CONSOLE_PATH, has_cors=False)
        north, south = (node.url for node in nodes)
        session, other = await signed_in(north, ANN), await signed_in(north, BOSS)
        bearer = {"Authorization": f"Bearer {ANN}"}
        async with (
            streaming(http, f"{south}/console/live", **session) as page,
            streaming(http, f"{south}/admin/api/events", **bearer) as events,
        ):
            await until_it_goes(lambda: _has_connections(north, "ann", 2))
            status, changed = await ask(north, "DELETE", f"keys/{ANNS}", BOSS)
            assert (status, changed["differing"], changed["missing"]) == (200, [], [])
            assert (await page()).endswith(b"event: ended\ndata: {}\n\n")
            await events()
        for url in (north, south):
            assert (await fetch(f"{url}/console/", headers=session)).status == 401
            assert (await fetch(f"{url}/console/", headers=other)).status == 200
            assert (await ask(url, "GET", "offices", ANN))[0] == 401


async def _has_connections(url: str, name: str, count: int) -> None:
    assert (await keys_by_name(url))[name]["connections"] == count


async def test_workers_share_sessions_of_admin_keys_and_none_outlasts_its_key(place: Place) -> None:
    keys = admin_keys(place.folder)
    options = ("--admin-keys-file", str(keys), "--console", "--audit", "audit.jsonl", "--log-level", "debug")
    crew = await Crew.start(place, *options)
    session = await signed_in(crew.url, ANN)

    async def statuses() -> set[int]:
        return {(await fetch(f"{crew.url}/console/", headers=session)).status for _ in range(12)}

    assert await statuses() == {200}
    environ = {"A2C_URL": crew.url, "COLUMNS": "200"}
    refused = await place.run("key", "revoke", ANNS, **environ, A2C_ADMIN_KEY=ANN)
    refused.refused(1, "'ann' is a viewer")
    made = await place.run("key", "add", "--principal", "eve", "--role", "viewer", **environ, A2C_ADMIN_KEY=BOSS)
    listed = (await place.run("key", "ls", **environ, A2C_ADMIN_KEY=made.out.strip())).out
    assert [*re.findall(r"(ann|boss|eve) +– +(\w+)", listed)] == [
        *(("ann", "viewer"), ("boss", "operator"), ("eve", "viewer")),
    ]
    assert (await place.run("key", "revoke", ANNS, **environ, A2C_ADMIN_KEY=BOSS)).code == 0
    assert await statuses() == {401}
    await crew.program.stops()
    told = "\n".join([*crew.program.out, *crew.program.err])
    for file in place.folder.glob("audit*.jsonl"):
        told += content_of(file).decode()
    assert [key for key in (ANN, BOSS, made.out.strip()) if key in told] == []


async def test_an_expired_key_ends_its_streams_and_opens_nothing_more(hub: Hub, http: Http) -> None:
    session = await signed_in(hub.url, ANN)
    async with (
        streaming(http, f"{hub.url}/admin/api/events", Authorization=f"Bearer {ANN}") as events,
        streaming(http, f"{hub.url}/console/live", **session) as page,
    ):
        ends = time.time() + 0.5
        status, changed = await ask(hub.url, "POST", f"keys/{ANNS}/expire", BOSS, json={"expires": ends})
        assert (status, changed["row"]["expires"]) == (200, pytest.approx(ends, abs=0.01))
        await events()
        assert (await page()).endswith(b"event: ended\ndata: {}\n\n")
    assert time.time() >= changed["row"]["expires"]
    status, refusal = await ask(hub.url, "GET", "offices", ANN)
    assert (status, "has expired" in refusal["message"]) == (401, True)
    assert (await fetch(f"{hub.url}/console/", headers=session)).status == 401
    assert (await ask(hub.url, "GET", "offices", BOSS))[0] == 200


async def test_a_key_whose_role_was_changed_by_hand_ends_its_session(hub: Hub, keys_file: Path) -> None:
    session = await signed_in(hub.url, BOSS)
    admin_keys(keys_file.parent, role_of_boss="viewer")
    hub.app.hub.reload()
    assert (await fetch(f"{hub.url}/console/", headers=session)).status == 401
    assert (await ask(hub.url, "POST", "keys", BOSS, json={"principal": "bob"}))[0] == 403


# The file


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ("", 0o600),
        ('{"sha256:', 0o600),
        ("[]", 0o600),
        (json.dumps({hash_key(ANN): {"principal": "ann"}}), 0o600),
        (json.dumps({hash_key(ANN): {"principal": "ann", "roles": ["viewer", "operator"]}}), 0o600),
        (json.dumps({hash_key(ANN): {"principal": "ann", "roles": ["viewer"], "offices": ["desk"]}}), 0o600),
        (json.dumps({hash_key(ANN): {"principal": "ann", "roles": ["agent"]}}), 0o600),
        (json.dumps({hash_key(ANN): {"principal": "ann\u202e", "roles": ["viewer"]}}), 0o600),
        (json.dumps({ANN: {"principal": "ann", "roles": ["viewer"]}}), 0o600),
        (json.dumps({hash_key(ANN): {"principal": "ann", "roles": ["operator"]}}), 0o620),
        (json.dumps({hash_key(ANN): {"principal": "ann", "roles": ["operator"]}}), 0o602),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_at_start_and_changes_nothing_later(
    place: Place, hub: Hub, keys_file: Path, content: str, mode: int
) -> None:
    draft = keys_file.with_name("draft")
    draft.write_text(content, "utf-8")
    draft.chmod(mode)
    refused = await place.run("server", "--port", "0", "--admin-keys-file", str(draft))
    assert ANN not in refused.refused(2, "draft")
    draft.replace(keys_file)
    hub.app.hub.reload()
    assert (await ask(hub.url, "GET", "offices", BOSS))[0] == 200, "the earlier keys stay"
    assert (await ask(hub.url, "POST", "keys", ANN, json={}))[0] == 403
    assert "keys" in (await fetch(f"{hub.url}/healthz")).json


async def test_a_missing_file_is_refused_at_start_and_the_two_kinds_of_keys_have_files_of_their_own(
    place: Place, keys_file: Path
) -> None:
    (await place.run("server", "--admin-keys-file", "none.json")).refused(2, "none.json")
    (await place.run("server", "--keys-file", str(keys_file))).refused(2, "--admin-keys-file")
    wrong = await place.run("key", "--principal", "bob", "--add-to", str(keys_file))
    wrong.refused(2, "a file of their own")
    await place.run("key", "--principal", "ann", "--role", "viewer", "--office", "desk")
    assert len(read_entries(keys_file)) == 2


async def test_programs_that_add_keys_at_once_lose_none(hub: Hub, place: Place, keys_file: Path) -> None:
    by_file = [
        place.run("key", "--principal", f"file-{number}", "--role", "viewer", "--add-to", str(keys_file))
        for number in range(4)
    ]
    by_server = [
        ask(hub.url, "POST", "keys", BOSS, json={"principal": f"server-{number}", "roles": ["viewer"]})
        for number in range(4)
    ]
    await asyncio.gather(*by_file, *by_server)
    hub.app.hub.reload()
    names = {f"{where}-{number}" for where in ("file", "server") for number in range(4)}
    assert names <= {*await keys_by_name(hub.url)}
    assert os.stat(keys_file).st_mode & 0o777 == 0o600  # noqa: PTH116


def test_a_change_that_would_mix_the_kinds_of_keys_is_not_written(keys_file: Path) -> None:
    before = content_of(keys_file)
    with pytest.raises(KeysFileError, match="file of their own"):
        change_keys(keys_file, lambda known: known | {hash_key("x"): {"principal": "bob"}})
    assert content_of(keys_file) == before
    assert OperatorKeys(None, keys_file).holder_of(ANN)


@pytest.mark.parametrize("name", ["a\nb", "\u202eann", "x" * 1_000_000, "", "a\0b"])
async def test_a_name_that_cannot_be_shown_is_refused(hub: Hub, name: str) -> None:
    status, refusal = await ask(hub.url, "POST", "keys", BOSS, json={"principal": name, "roles": ["viewer"]})
    assert (status, "principal" in refusal["message"], len(refusal["message"]) < 2000) == (400, True, True)


async def test_markup_in_the_name_of_an_operator_is_text_on_every_page(hub: Hub) -> None:
    _, made = await ask(hub.url, "POST", "keys", BOSS, json={"principal": HOSTILE, "roles": ["operator"]})
    visitor = Visitor(OperatorConsole(hub.app.operations, hub.app.admin_access))
    await visitor.act(f"{CONSOLE_PATH}/sign-in", key=made["key"])
    for path in visitor.app._app._pages:  # type: ignore[attr-defined]
        page = (await visitor.get(f"{CONSOLE_PATH}{path}")).body
        assert HOSTILE not in page
        assert "&lt;img src=x" in page


# Uses of keys


async def test_the_last_use_of_a_key_is_known_and_what_is_not_known_is_said(
    hub: Hub, connect: Callable[..., Any]
) -> None:
    began = time.time()
    rows = await keys_by_name(hub.url)
    assert (rows["alice"]["last_use"], rows["ann"]["last_use"]) == (None, None)
    assert rows["alice"]["uses_since"] <= began
    assert rows["boss"]["last_use"] >= began
    peer = await connect(hub, auth={"token": ALICE})
    row = (await keys_by_name(hub.url))["alice"]
    assert (row["connections"], row["last_use"] >= began) == (1, True)
    await peer.close()
    await until_it_goes(lambda: _has_connections(hub.url, "alice", 0))
    assert (await keys_by_name(hub.url))["alice"]["last_use"] >= row["last_use"]


async def test_uses_outlast_the_node_that_has_seen_them(
    keys_file: Path, tmp_path: Path, valkey: Valkey, prefix: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_USES_EVERY", 0.05)
    monkeypatch.setattr(operations, "_USES_SOON", 0.05)
    auth = DefaultAuthenticationProvider(keys_file=write_keys(tmp_path, {ALICE: "alice"}))
    first = serving_node(valkey.url, prefix, "first", auth=auth, admin_keys_file=keys_file)
    async with serving_node(valkey.url, prefix, "second", auth=auth, admin_keys_file=keys_file) as second:
        async with first as node:
            peer = await connect(node, auth={"token": ALICE})
            used = (await keys_by_name(second.url))["alice"]["last_use"]
            await peer.close()
            learned = second.app.hub.uses.last
            await until(lambda: second.app.hub.uses.last.get(key_id(hash_key(ALICE)), 0) >= used)
        row = (await keys_by_name(second.url))["alice"]
        assert (row["connections"], row["last_use"] >= used, len(learned) > 0) == (0, True, True)
        earliest = row["uses_since"]
    async with serving_node(valkey.url, prefix, "third", auth=auth, admin_keys_file=keys_file) as third:

        async def known() -> None:
            row = (await keys_by_name(third.url))["alice"]
            assert (row["uses_since"], (row["last_use"] or 0) >= used) == (earliest, True)

        await until_it_goes(known)


def test_uses_are_bounded_and_say_from_when_on_they_are_complete() -> None:
    uses = CredentialUses(since=5.0)
    for number in range(10_001):
        uses.note(f"key-{number}")
    assert (len(uses.last), "key-0" in uses.last, uses.since > 5) == (10_000, False, True)
    since = uses.since
    uses.learn(CredentialUses(since=1.0, last={"key-1": time.time() + 1, "older": 2.0}))
    assert (len(uses.last), "older" in uses.last, uses.since) == (10_000, False, 2.0 if since < 2 else uses.since)
    assert [*uses.last][-1] == "key-1"
    both = KeyUses(1.0, {"a": 1}, {"a": 5.0, "b": 1.0})
    both.add(KeyUses(3.0, {"a": 2}, {"a": 4.0, "c": 2.0}))
    assert both == KeyUses(3.0, {"a": 3}, {"a": 5.0, "b": 1.0, "c": 2.0})


# The console


@pytest.mark.parametrize(
    ("scope", "line"),
    [
        ({"roles": ["computer"], "offices": ["a b"]}, "a2c-smcp computer --url https://hub.example --office 'a b'"),
        ({"roles": ["agent"]}, "a2c-smcp agent tools --url https://hub.example"),
        ({"names": ["lap*", "$(id)"]}, "a2c-smcp computer --url https://hub.example --name '$(id)'"),
    ],
)
def test_the_command_for_the_holder_of_a_key_has_no_key_in_it(scope: dict[str, Any], line: str) -> None:
    row = KeyRow("key-1", "x", *(scope.get(name) for name in ("offices", "roles", "names")), None, None, False, False)
    assert start_command(row, "https://hub.example").splitlines() == [
        "read -rs A2C_API_KEY && export A2C_API_KEY",
        line,
    ]


async def test_a_new_key_comes_with_a_command_for_the_url_that_the_browser_knows(hub: Hub) -> None:
    visitor = Visitor(OperatorConsole(hub.app.operations, hub.app.admin_access))
    await visitor.act(f"{CONSOLE_PATH}/sign-in", key=BOSS)
    made = await visitor.act(f"{CONSOLE_PATH}/keys/create", principal="ann", role="viewer", days="7")
    address = json.loads(made.body)["goes_to"]
    page = (await visitor.get(address, referer="https://hub.example/console/keys")).body
    assert "a2c-smcp office ls --url https://hub.example\n# https://hub.example/console/" in page
    assert page.count("data-copy=") == 2
    row = (await keys_by_name(hub.url))["ann"]
    assert row["roles"] == ["viewer"]
    listed = (await visitor.get(f"{CONSOLE_PATH}/keys")).body
    assert "soon" in listed
    assert "Connections of ann that end at once: 0." in listed


async def test_a_program_at_the_root_is_told_what_this_is(hub: Hub, serve: Callable[..., Any]) -> None:
    about = (await fetch(hub.url)).json
    places = {"socket.io": "/socket.io/", "health": "/healthz", "ready": "/readyz", "console": "/console/"}
    assert about == {"server": "a2c-smcp", **places}
    assert "console" not in (await fetch((await serve()).url)).json
