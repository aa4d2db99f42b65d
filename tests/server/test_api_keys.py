"""API keys, given plainly or in a file: whom they admit, which mistakes are refused, and how they are read again."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider, KeysFileError, hash_key, key_id, new_key
from a2c_smcp.server.auth.authentication import Principal
from tests.stage.keys import enter, write_keys

pytestmark = pytest.mark.covers("auth-keys")


async def test_each_of_many_keys_admits_its_own_principal_to_everything() -> None:
    provider = DefaultAuthenticationProvider(["one", "two"])
    one, two = await enter(provider, {"token": "one"}), await enter(provider, {"token": "two"})
    assert one.id != two.id
    for principal in (one, two):
        principal.check("agent", "planner", "desk")
        principal.check("computer", "laptop", "anywhere")
        assert provider.valid(principal)


async def test_a_plain_keys_principal_does_not_give_the_key_away() -> None:
    key = new_key()
    principal = await enter(DefaultAuthenticationProvider(key), {"token": key})
    assert (principal.id[:4], len(principal.id)) == ("key-", 12)
    assert principal.id[4:] not in hash_key(key)
    assert not [secret for secret in (key, hash_key(key)) if secret in repr(principal)]


async def test_one_key_as_a_string_is_one_key_and_not_its_letters() -> None:
    with pytest.raises(NotAuthenticated):
        await enter(DefaultAuthenticationProvider("secret"), {"token": "s"})


@pytest.mark.parametrize("key", ["", "ke", "key ", "KEY", "keykey", "kéy", "\ud800", "key\x00", hash_key("key")])
async def test_a_key_that_is_not_known_is_refused(key: str) -> None:
    with pytest.raises(NotAuthenticated) as refusal:
        await enter(DefaultAuthenticationProvider("key"), {"token": key})
    assert refusal.value.code == 401


@pytest.mark.parametrize("key", ["schlüssel", "密钥", "🗝️", "a b"])
async def test_a_key_may_be_any_text(key: str) -> None:
    assert await enter(DefaultAuthenticationProvider(key), {"token": key})


@pytest.mark.covers("auth-fails-closed")
@pytest.mark.parametrize("auth", [None, {}, {"token": ""}, {"token": "x"}, "x"])
async def test_without_any_key_nobody_enters(auth: object) -> None:
    with pytest.raises(NotAuthenticated):
        await enter(DefaultAuthenticationProvider(), auth)


@pytest.mark.parametrize("keys", ["", ["good", ""], [None]])
def test_an_empty_key_is_refused_at_the_start(keys: Any) -> None:
    with pytest.raises(ValueError, match="empty"):
        DefaultAuthenticationProvider(keys)


def test_new_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("a2c_") and len(key) == 47 for key in keys)


# The keys file


async def test_a_keys_file_says_who_holds_a_key_and_what_they_may_do(tmp_path: Path) -> None:
    scope = {"offices": ["desk", "team-*"], "roles": ["agent"], "names": ["planner"]}
    entry = {"principal": "alice", **scope, "expires": "2999-01-01T00:00:00Z"}
    provider = DefaultAuthenticationProvider("free", write_keys(tmp_path, {"k": entry, "b": "bob"}))
    assert await enter(provider, {"token": "k"}) == Principal(
        "alice", frozenset({"desk", "team-*"}), frozenset({"agent"}), frozenset({"planner"}), 32472144000.0
    )
    assert await enter(provider, {"token": "b"}) == Principal("bob")
    assert (await enter(provider, {"token": "free"})).id.startswith("key-")


async def test_an_entry_restricts_a_key_that_is_also_given_plainly(tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider("k", write_keys(tmp_path, {"k": {"principal": "a", "roles": ["agent"]}}))
    assert await enter(provider, {"token": "k"}) == Principal("a", roles=frozenset({"agent"}))


@pytest.mark.parametrize(
    "expires", ["2001-01-01T00:00:00Z", "2001-01-01T00:00:00+08:00", 978307200, 978307200.5, 0, -1]
)
async def test_an_expired_key_is_refused_and_told_so(tmp_path: Path, expires: object) -> None:
    path = write_keys(tmp_path, {"k": {"principal": "alice", "expires": expires}})
    with pytest.raises(NotAuthenticated, match="expired"):
        await enter(DefaultAuthenticationProvider(keys_file=path), {"token": "k"})


async def test_an_expired_key_does_not_hide_a_good_one(tmp_path: Path) -> None:
    path = write_keys(tmp_path, {"old": {"principal": "alice", "expires": 1}, "new": "alice"})
    provider = DefaultAuthenticationProvider(keys_file=path)
    assert await enter(provider, {"token": "old"}, {"x-api-key": "new"}) == Principal("alice")


GOOD = hash_key("k")


def written(folder: Path, entries: object) -> Path:
    """A keys file with this text, or with these entries, hashes and all."""
    path = folder / "keys.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), "utf-8")
    return path


ODD = ["2027-01-01T00:00:00", "2027-01-01", "soon", "", None, True, float("nan"), float("inf"), 10**400]


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
        *[
            ({GOOD: {"principal": "a", "expires": odd}}, "expires: must be a date and time with its zone")
            for odd in ODD
        ],
        (f'{{"{GOOD}": {{"principal": "a"}}, "{GOOD}": {{"principal": "b"}}}}', "stands there twice"),
        (f'{{"{GOOD}": {{"principal": "a", "principal": "b"}}}}', "'principal' stands there twice"),
    ],
)
def test_a_mistake_in_a_keys_file_is_refused_with_its_place(tmp_path: Path, entries: object, words: str) -> None:
    path = written(tmp_path, entries)
    with pytest.raises(KeysFileError) as refusal:
        DefaultAuthenticationProvider(keys_file=path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert words in str(refusal.value)
    assert GOOD not in str(refusal.value)


def test_a_mistake_names_its_entry_by_the_beginning_of_the_hash(tmp_path: Path) -> None:
    path = write_keys(tmp_path, {"fine": "bob", "k": {"principal": "a", "roles": []}})
    with pytest.raises(KeysFileError, match=f"entry {GOOD[:15]}…: roles: "):
        DefaultAuthenticationProvider(keys_file=path)


KEY = new_key()


@pytest.mark.parametrize("text", ['{{"{0}": {{"principal": "a"}}}}', '{{"{0}": {{}}, "{0}": {{}}}}'])
def test_a_plain_key_pasted_into_the_file_is_not_quoted_in_the_complaint(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeysFileError) as refusal:
        DefaultAuthenticationProvider(keys_file=written(tmp_path, text.format(KEY)))
    assert KEY[4:8] not in str(refusal.value)


def test_a_keys_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(KeysFileError, match="cannot be read"):
            DefaultAuthenticationProvider(keys_file=path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeysFileError, match="not a JSON object of keys"):
        DefaultAuthenticationProvider(keys_file=tmp_path / "binary.json")


async def test_a_reload_brings_new_keys_and_ends_those_that_are_gone(tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider("free", write_keys(tmp_path, {"old": "alice", "kept": "bob"}))
    old, kept, free = [await enter(provider, {"token": key}) for key in ("old", "kept", "free")]
    assert all(map(provider.valid, (old, kept, free)))
    write_keys(tmp_path, {"new": "carol", "kept": "bob"})
    provider.reload()
    assert [provider.valid(principal) for principal in (old, kept, free)] == [False, True, True]
    assert await enter(provider, {"token": "new"}) == Principal("carol")
    with pytest.raises(NotAuthenticated):
        await enter(provider, {"token": "old"})


async def test_a_changed_entry_ends_what_was_admitted_under_the_old_one(tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider(keys_file=write_keys(tmp_path, {"k": "alice"}))
    before = await enter(provider, {"token": "k"})
    write_keys(tmp_path, {"k": {"principal": "alice", "offices": ["desk"]}})
    provider.reload()
    assert not provider.valid(before)
    assert provider.valid(await enter(provider, {"token": "k"}))


async def test_a_stolen_key_ends_though_its_owner_has_another_with_the_same_rights(tmp_path: Path) -> None:
    provider = DefaultAuthenticationProvider(keys_file=write_keys(tmp_path, {"stolen": "alice", "fresh": "alice"}))
    thief, owner = await enter(provider, {"token": "stolen"}), await enter(provider, {"token": "fresh"})
    assert thief == owner
    write_keys(tmp_path, {"fresh": "alice"})
    provider.reload()
    assert not provider.valid(thief)
    assert provider.valid(owner)


@pytest.mark.parametrize("broken", ["{", '{"k": {"principal": "alice"}}', None])
async def test_a_reload_of_a_broken_file_keeps_the_old_keys_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    path = write_keys(tmp_path, {"k": "alice"})
    provider = DefaultAuthenticationProvider(keys_file=path)
    path.write_text(broken) if broken else path.unlink()
    provider.reload()
    assert provider.valid(await enter(provider, {"token": "k"}))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert str(path) in caplog.text


CHANGED = {
    "1 key added": {"kept": "bob", "old": "alice", "more": "carol"},
    "2 keys added, 2 removed": {"a": "carol", "b": "dan"},
    "2 keys removed": {},
    "10 keys added": {"kept": "bob", "old": "alice", **{str(number): "carol" for number in range(10)}},
    "1 key removed, 1 changed": {"kept": {"principal": "bob", "offices": ["desk"]}},
    "2 keys changed": {"kept": {"principal": "bob", "expires": 4e9}, "old": "bob"},
    "nothing changed": {"old": "alice", "kept": "bob"},
}


@pytest.mark.parametrize(("words", "entries"), CHANGED.items(), ids=CHANGED)
async def test_a_reload_says_what_it_has_changed_and_names_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, words: str, entries: dict[str, Any]
) -> None:
    path = write_keys(tmp_path, {"kept": "bob", "old": "alice"})
    provider = DefaultAuthenticationProvider("free", keys_file=path)
    write_keys(tmp_path, entries)
    with caplog.at_level(logging.INFO):
        provider.reload()
    assert [record.getMessage() for record in caplog.records] == [f"{path}: read again, {words}"]


async def test_a_key_that_is_withheld_counts_as_removed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_keys(tmp_path, {"kept": "bob", "lost": "alice"})
    provider = DefaultAuthenticationProvider(keys_file=path)
    provider.withhold(key_id(hash_key("lost")))
    with caplog.at_level(logging.INFO):
        provider.reload()
        provider.reload()
    told = [record.getMessage().partition("read again, ")[2] for record in caplog.records]
    assert told == ["1 key removed", "nothing changed"]


async def test_a_reload_without_a_file_changes_nothing() -> None:
    provider = DefaultAuthenticationProvider("k")
    provider.reload()
    assert provider.valid(await enter(provider, {"token": "k"}))
