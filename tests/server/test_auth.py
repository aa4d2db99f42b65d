"""Who is let in by which key, what they may then do, and that nothing but a clear yes lets anybody in."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import socketio

from a2c_smcp.errors import NotAuthenticated, NotAuthorised
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider, KeysFileError, hash_key, new_key
from a2c_smcp.server.auth.authentication import (
    ANYBODY,
    MAX_CREDENTIAL,
    AuthenticationProvider,
    Principal,
    admit,
    credentials,
)

SIO = socketio.AsyncServer(async_mode="asgi")
HOLD = 30.0


class Answers(AuthenticationProvider):
    """A provider that says what the test wants."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self._answer = answer

    async def authenticate(self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]) -> Any:
        return await self._answer()


def says(answer: object) -> Answers:
    async def say() -> object:
        return answer

    return Answers(say)


def fails_with(error: BaseException) -> Answers:
    async def fail() -> object:
        raise error

    return Answers(fail)


async def enter(
    provider: AuthenticationProvider, auth: object = None, headers: Mapping[str, str] | None = None, timeout: float = 5
) -> Principal:
    return await admit(provider, SIO, {}, auth, headers or {}, timeout)


def keys_file(folder: Path, entries: object) -> Path:
    path = folder / "keys.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), "utf-8")
    return path


# Where credentials are read


@pytest.mark.covers("auth-credentials")
def test_credentials_are_read_from_four_places_in_order() -> None:
    headers = {"access_token": "d", "x-api-key": "c", "authorization": "Bearer b", "cookie": "e"}
    assert credentials({"token": "a", "other": "x"}, headers) == ["a", "b", "c", "d"]


@pytest.mark.covers("auth-credentials")
def test_the_field_of_the_connect_object_is_configurable() -> None:
    assert credentials({"token": "a", "api_key": "b"}, {}, field="api_key") == ["b"]


@pytest.mark.covers("auth-credentials")
def test_empty_and_repeated_credentials_are_left_out() -> None:
    headers = {"authorization": "Bearer a", "x-api-key": "", "access_token": "a"}
    assert credentials({"token": ""}, headers) == ["a"]


@pytest.mark.covers("auth-credentials")
@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer k", ["k"]),
        ("bearer k", ["k"]),
        ("BEARER   k ", ["k"]),
        ("Bearer", []),
        ("Bearer ", []),
        ("Basic k", []),
        ("k", []),
        ("Bearerk", []),
        ("", []),
    ],
)
def test_only_a_bearer_authorization_counts(header: str, found: list[str]) -> None:
    assert credentials(None, {"authorization": header}) == found


@pytest.mark.covers("auth-credentials")
@pytest.mark.parametrize(
    "auth", [None, "k", ["k"], 1, True, {}, {"token": None}, {"token": 1}, {"token": ["k"]}, {"token": {"token": "k"}}]
)
def test_a_connect_object_that_is_none_presents_nothing(auth: object) -> None:
    assert credentials(auth, {}) == []


@pytest.mark.covers("auth-credentials")
def test_an_oversized_credential_is_not_looked_at() -> None:
    longest = "k" * MAX_CREDENTIAL
    assert credentials({"token": longest + "k"}, {"x-api-key": longest}) == [longest]


@pytest.mark.covers("auth-credentials")
@pytest.mark.parametrize(
    ("auth", "headers"),
    [
        ({"token": "k"}, {}),
        (None, {"authorization": "Bearer k"}),
        (None, {"x-api-key": "k"}),
        (None, {"access_token": "k"}),
        ({"token": "stale"}, {"x-api-key": "k"}),
    ],
)
async def test_a_key_is_found_wherever_it_is_presented(auth: object, headers: dict[str, str]) -> None:
    assert await enter(DefaultAuthenticationProvider("k"), auth, headers)


# API keys


@pytest.mark.covers("auth-keys")
async def test_each_of_many_keys_admits_its_own_principal_to_everything() -> None:
    provider = DefaultAuthenticationProvider(["one", "two"])
    one, two = await enter(provider, {"token": "one"}), await enter(provider, {"token": "two"})
    assert one.id != two.id
    for principal in (one, two):
        principal.check("agent", "planner", "desk")
        principal.check("computer", "laptop", "anywhere")
        assert provider.valid(principal)


@pytest.mark.covers("auth-keys")
async def test_a_plain_keys_principal_does_not_give_the_key_away() -> None:
    key = new_key()
    principal = await enter(DefaultAuthenticationProvider(key), {"token": key})
    assert principal.id.startswith("key-")
    assert len(principal.id) == 12
    assert principal.id[4:] not in hash_key(key)
    assert key not in repr(principal)
    assert hash_key(key) not in repr(principal)


@pytest.mark.covers("auth-keys")
async def test_one_key_as_a_string_is_one_key_and_not_its_letters() -> None:
    with pytest.raises(NotAuthenticated):
        await enter(DefaultAuthenticationProvider("secret"), {"token": "s"})


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize("key", ["", "ke", "key ", "KEY", "keykey", "kéy", "\ud800", "key\x00", hash_key("key")])
async def test_a_key_that_is_not_known_is_refused(key: str) -> None:
    with pytest.raises(NotAuthenticated) as refusal:
        await enter(DefaultAuthenticationProvider("key"), {"token": key})
    assert refusal.value.code == 401


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize("key", ["schlüssel", "密钥", "🗝️", "a b"])
async def test_a_key_may_be_any_text(key: str) -> None:
    assert await enter(DefaultAuthenticationProvider(key), {"token": key})


@pytest.mark.covers("auth-keys", "auth-fails-closed")
@pytest.mark.parametrize("auth", [None, {}, {"token": ""}, {"token": "x"}, "x"])
async def test_without_any_key_nobody_enters(auth: object) -> None:
    with pytest.raises(NotAuthenticated):
        await enter(DefaultAuthenticationProvider(), auth)


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize("keys", ["", ["good", ""], [None]])
def test_an_empty_key_is_refused_at_the_start(keys: Any) -> None:
    with pytest.raises(ValueError, match="empty"):
        DefaultAuthenticationProvider(keys)


@pytest.mark.covers("auth-keys")
def test_new_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("a2c_") and len(key) == 47 for key in keys)


# The keys file


@pytest.mark.covers("auth-keys")
async def test_a_keys_file_says_who_holds_a_key_and_what_they_may_do(tmp_path: Path) -> None:
    entry = {
        "principal": "alice",
        "offices": ["desk", "team-*"],
        "roles": ["agent"],
        "names": ["planner"],
        "expires": "2999-01-01T00:00:00Z",
    }
    provider = DefaultAuthenticationProvider(
        "free", keys_file(tmp_path, {hash_key("k"): entry, hash_key("b"): {"principal": "bob"}})
    )
    assert await enter(provider, {"token": "k"}) == Principal(
        "alice", frozenset({"desk", "team-*"}), frozenset({"agent"}), frozenset({"planner"}), 32472144000.0
    )
    assert await enter(provider, {"token": "b"}) == Principal("bob")
    assert (await enter(provider, {"token": "free"})).id.startswith("key-")


@pytest.mark.covers("auth-keys")
async def test_an_entry_restricts_a_key_that_is_also_given_plainly(tmp_path: Path) -> None:
    path = keys_file(tmp_path, {hash_key("k"): {"principal": "alice", "roles": ["agent"]}})
    assert await enter(DefaultAuthenticationProvider("k", path), {"token": "k"}) == Principal(
        "alice", roles=frozenset({"agent"})
    )


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize(
    "expires", ["2001-01-01T00:00:00Z", "2001-01-01T00:00:00+08:00", 978307200, 978307200.5, 0, -1]
)
async def test_an_expired_key_is_refused_and_told_so(tmp_path: Path, expires: object) -> None:
    path = keys_file(tmp_path, {hash_key("k"): {"principal": "alice", "expires": expires}})
    with pytest.raises(NotAuthenticated, match="expired"):
        await enter(DefaultAuthenticationProvider(keys_file=path), {"token": "k"})


@pytest.mark.covers("auth-keys")
async def test_an_expired_key_does_not_hide_a_good_one(tmp_path: Path) -> None:
    entries = {hash_key("old"): {"principal": "alice", "expires": 1}, hash_key("new"): {"principal": "alice"}}
    provider = DefaultAuthenticationProvider(keys_file=keys_file(tmp_path, entries))
    assert await enter(provider, {"token": "old"}, {"x-api-key": "new"}) == Principal("alice")


GOOD = hash_key("k")


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("", "not a JSON object of keys"),
        ("{", "not a JSON object of keys"),
        ("[" * 100_000, "nested too deeply"),
        ([], "must be an object"),
        ("null", "must be an object"),
        ({"k": {"principal": "alice"}}, "entry 1: its name must be sha256: and 64 hexadecimal digits"),
        ({GOOD: {"principal": "a"}, GOOD.upper(): {"principal": "b"}}, "entry 2: its name must be sha256:"),
        ({GOOD[:-1]: {"principal": "alice"}}, "entry 1: its name"),
        ({GOOD + "\n": {"principal": "alice"}}, "entry 1: its name"),
        ({GOOD.removeprefix("sha256:"): {"principal": "alice"}}, "entry 1: its name"),
        ({GOOD: "alice"}, 'must be an object, such as {"principal": "alice"}'),
        ({GOOD: None}, "must be an object"),
        ({GOOD: {}}, "principal: missing"),
        ({GOOD: {"principal": ""}}, "principal: must have 1 to 128 characters"),
        ({GOOD: {"principal": 1}}, "principal: must be a string"),
        ({GOOD: {"principal": "a\nb"}}, "principal: must not hold control"),
        ({GOOD: {"principal": "a", "ofices": ["desk"]}}, "'ofices': no such field, the fields are principal, offices"),
        ({GOOD: {"principal": "a", "offices": "desk"}}, 'offices: must be a list such as ["desk", "team-*"]'),
        ({GOOD: {"principal": "a", "offices": []}}, "offices: must be a list"),
        ({GOOD: {"principal": "a", "offices": None}}, "offices: must be a list"),
        ({GOOD: {"principal": "a", "offices": ["desk", 1]}}, "offices: each one must be a string"),
        ({GOOD: {"principal": "a", "names": [""]}}, "names: each one must have 1 to 128 characters"),
        ({GOOD: {"principal": "a", "roles": ["admin"]}}, 'roles: each one must be "agent" or "computer"'),
        ({GOOD: {"principal": "a", "roles": [["agent"]]}}, "roles: each one must be"),
        (
            {GOOD: {"principal": "a", "expires": "2027-01-01T00:00:00"}},
            "expires: must be a date and time with its zone",
        ),
        ({GOOD: {"principal": "a", "expires": "2027-01-01"}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": "soon"}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": ""}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": None}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": True}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": float("nan")}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": float("inf")}}, "expires: must be"),
        ({GOOD: {"principal": "a", "expires": 10**400}}, "expires: must be"),
        (f'{{"{GOOD}": {{"principal": "a"}}, "{GOOD}": {{"principal": "b"}}}}', "stands there twice"),
        (f'{{"{GOOD}": {{"principal": "a", "principal": "b"}}}}', "'principal' stands there twice"),
    ],
)
def test_a_keys_file_with_a_mistake_is_refused_with_the_place_and_the_remedy(
    tmp_path: Path, entries: object, words: str
) -> None:
    path = keys_file(tmp_path, entries)
    with pytest.raises(KeysFileError) as refusal:
        DefaultAuthenticationProvider(keys_file=path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert words in str(refusal.value)
    assert GOOD not in str(refusal.value)


@pytest.mark.covers("auth-keys")
def test_a_mistake_names_its_entry_by_the_beginning_of_the_hash(tmp_path: Path) -> None:
    path = keys_file(tmp_path, {hash_key("fine"): {"principal": "bob"}, GOOD: {"principal": "a", "roles": []}})
    with pytest.raises(KeysFileError, match=f"entry {GOOD[:15]}…: roles: "):
        DefaultAuthenticationProvider(keys_file=path)


@pytest.mark.covers("auth-keys")
def test_a_plain_key_pasted_into_the_file_is_not_quoted_in_the_complaint(tmp_path: Path) -> None:
    key = new_key()
    for text in (f'{{"{key}": {{"principal": "a"}}}}', f'{{"{key}": {{}}, "{key}": {{}}}}'):
        with pytest.raises(KeysFileError) as refusal:
            DefaultAuthenticationProvider(keys_file=keys_file(tmp_path, text))
        assert key[4:8] not in str(refusal.value)


@pytest.mark.covers("auth-keys")
def test_a_keys_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(KeysFileError, match="cannot be read"):
            DefaultAuthenticationProvider(keys_file=path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeysFileError, match="not a JSON object of keys"):
        DefaultAuthenticationProvider(keys_file=tmp_path / "binary.json")


@pytest.mark.covers("auth-keys")
async def test_a_reload_brings_new_keys_and_ends_those_that_are_gone(tmp_path: Path) -> None:
    path = keys_file(tmp_path, {hash_key("old"): {"principal": "alice"}, hash_key("kept"): {"principal": "bob"}})
    provider = DefaultAuthenticationProvider("free", path)
    old, kept, free = [await enter(provider, {"token": key}) for key in ("old", "kept", "free")]
    assert all(map(provider.valid, (old, kept, free)))
    keys_file(tmp_path, {hash_key("new"): {"principal": "carol"}, hash_key("kept"): {"principal": "bob"}})
    provider.reload()
    assert [provider.valid(principal) for principal in (old, kept, free)] == [False, True, True]
    assert await enter(provider, {"token": "new"}) == Principal("carol")
    with pytest.raises(NotAuthenticated):
        await enter(provider, {"token": "old"})


@pytest.mark.covers("auth-keys")
async def test_a_changed_entry_ends_what_was_admitted_under_the_old_one(tmp_path: Path) -> None:
    path = keys_file(tmp_path, {GOOD: {"principal": "alice"}})
    provider = DefaultAuthenticationProvider(keys_file=path)
    before = await enter(provider, {"token": "k"})
    keys_file(tmp_path, {GOOD: {"principal": "alice", "offices": ["desk"]}})
    provider.reload()
    assert not provider.valid(before)
    assert provider.valid(await enter(provider, {"token": "k"}))


@pytest.mark.covers("auth-keys")
async def test_a_stolen_key_ends_though_its_owner_has_another_with_the_same_rights(tmp_path: Path) -> None:
    path = keys_file(tmp_path, {hash_key("stolen"): {"principal": "alice"}, hash_key("fresh"): {"principal": "alice"}})
    provider = DefaultAuthenticationProvider(keys_file=path)
    thief, owner = await enter(provider, {"token": "stolen"}), await enter(provider, {"token": "fresh"})
    assert thief == owner
    keys_file(tmp_path, {hash_key("fresh"): {"principal": "alice"}})
    provider.reload()
    assert not provider.valid(thief)
    assert provider.valid(owner)


@pytest.mark.covers("auth-keys")
@pytest.mark.parametrize("broken", ["{", '{"k": {"principal": "alice"}}', None])
async def test_a_reload_of_a_broken_file_keeps_the_old_keys_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    path = keys_file(tmp_path, {GOOD: {"principal": "alice"}})
    provider = DefaultAuthenticationProvider(keys_file=path)
    path.write_text(broken) if broken else path.unlink()
    provider.reload()
    assert provider.valid(await enter(provider, {"token": "k"}))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert str(path) in caplog.text


@pytest.mark.covers("auth-keys")
async def test_a_reload_without_a_file_changes_nothing() -> None:
    provider = DefaultAuthenticationProvider("k")
    provider.reload()
    assert provider.valid(await enter(provider, {"token": "k"}))


# What a principal may do

ALICE = Principal("alice", frozenset({"desk", "team-*"}), frozenset({"agent"}), frozenset({"planner", "plan-[0-9]"}))


@pytest.mark.covers("auth-scope")
def test_anybody_may_do_anything() -> None:
    ANYBODY.check("agent", "planner", "desk")
    ANYBODY.check("computer", "laptop", "desk")


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize(
    ("role", "name", "office_id", "field"),
    [
        ("computer", "planner", "desk", "role"),
        ("agent", "writer", "desk", "name"),
        ("agent", "planner", "attic", "office_id"),
        ("agent", "planner", "team", "office_id"),
        ("agent", "planner", "DESK", "office_id"),
        ("agent", "planner", "desk2", "office_id"),
        ("agent", "planner", "my-team-1", "office_id"),
        ("agent", "Planner", "desk", "name"),
        ("agent", "*", "desk", "name"),
    ],
)
def test_a_refusal_names_the_role_name_or_office_outside_the_scope(
    role: Any, name: str, office_id: str, field: str
) -> None:
    with pytest.raises(NotAuthorised) as refusal:
        ALICE.check(role, name, office_id)
    assert refusal.value.code == 403
    assert refusal.value.details == {"field": field}
    assert repr({"role": role, "name": name, "office_id": office_id}[field]) in refusal.value.message


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize(("name", "office_id"), [("planner", "desk"), ("plan-7", "team-"), ("planner", "team-a/b c")])
def test_patterns_admit_what_they_match(name: str, office_id: str) -> None:
    ALICE.check("agent", name, office_id)


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize("none", ["offices", "roles", "names"])
def test_an_empty_set_allows_nothing(none: str) -> None:
    with pytest.raises(NotAuthorised):
        Principal("alice", **{none: frozenset()}).check("agent", "planner", "desk")  # type: ignore[arg-type]


# Failing closed


@pytest.mark.covers("auth-fails-closed")
async def test_true_admits_anybody_and_a_principal_admits_them() -> None:
    alice = Principal("alice", expires=time.time() + HOLD)
    assert await enter(says(True)) is ANYBODY
    assert await enter(says(alice)) is alice


@pytest.mark.covers("auth-fails-closed")
@pytest.mark.parametrize("answer", [False, None, 0, 1, 1.0, "yes", "", "alice", {"id": "alice"}, [], Principal])
async def test_any_other_answer_is_a_no(answer: object) -> None:
    with pytest.raises(NotAuthenticated):
        await enter(says(answer))


@pytest.mark.covers("auth-fails-closed")
@pytest.mark.parametrize("expires", [0, -1.0, float("nan"), float("-inf"), 1e9, "2999-01-01"])
async def test_a_principal_whose_time_is_over_or_unclear_is_refused(expires: Any) -> None:
    with pytest.raises(NotAuthenticated):
        await enter(says(Principal("alice", expires=expires)))


class Panic(BaseException):
    """As native extensions raise it."""


@pytest.mark.covers("auth-fails-closed")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("hunter2"),
        TimeoutError("hunter2"),
        NotAuthorised("hunter2"),
        ExceptionGroup("hunter2", [ValueError("hunter2")]),
        Panic("hunter2"),
        SystemExit("hunter2"),
        KeyboardInterrupt("hunter2"),
        GeneratorExit("hunter2"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_is_a_no_logged_with_its_traceback_but_not_its_words(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    with pytest.raises(NotAuthenticated) as refusal:
        await enter(fails_with(error), {"token": "hunter2"}, {"x-api-key": "hunter2"})
    assert "Traceback" in caplog.text
    assert f"in fail\n    raise error\n{type(error).__name__}" in caplog.text
    assert "hunter2" not in caplog.text + str(refusal.value)
    assert refusal.value.__suppress_context__


@pytest.mark.covers("auth-fails-closed")
async def test_a_provider_may_say_itself_why_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotAuthenticated, match="ask the front desk"):
        await enter(fails_with(NotAuthenticated("ask the front desk")))
    assert not caplog.records


@pytest.mark.covers("auth-fails-closed")
async def test_a_provider_that_is_not_async_refuses() -> None:
    class Sync(AuthenticationProvider):
        def authenticate(self, *_: object) -> Any:
            return True

    with pytest.raises(NotAuthenticated):
        await enter(Sync())


@pytest.mark.covers("auth-fails-closed")
async def test_no_answer_in_time_is_a_no() -> None:
    started = time.monotonic()
    with pytest.raises(NotAuthenticated):
        await enter(Answers(asyncio.Event().wait), timeout=0.02)
    assert time.monotonic() - started < HOLD


@pytest.mark.covers("auth-fails-closed")
async def test_a_yes_that_comes_after_the_deadline_is_a_no() -> None:
    async def stubborn() -> bool:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return True
        raise AssertionError

    async def blocking() -> bool:
        time.sleep(0.03)  # noqa: ASYNC251 - the loop itself is held up, as by a slow hash
        return True

    for late in (stubborn, blocking):
        with pytest.raises(NotAuthenticated):
            await enter(Answers(late), timeout=0.02)


@pytest.mark.covers("auth-fails-closed")
async def test_a_cancelled_handshake_stays_cancelled() -> None:
    asked = asyncio.Event()

    async def ask() -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    handshake = asyncio.ensure_future(enter(Answers(ask), timeout=HOLD))
    await asyncio.wait_for(asked.wait(), HOLD)
    handshake.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handshake


@pytest.mark.covers("auth-fails-closed")
def test_by_default_clients_of_a_custom_provider_stay_after_a_reload() -> None:
    provider = says(True)
    provider.reload()
    assert provider.valid(ANYBODY)
