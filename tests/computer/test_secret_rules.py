"""What counts as a secret, and where each class of secrets is hidden (WIRE §5)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.secrets import ANSWER, MASKED, Mask, mask_config, secrets_of
from a2c_smcp.computer.secrets.rules import Declared, SecretKind, judge
from tests.computer.supervised import good, quick
from tests.waiting import until

AGENT = Caller("desk", "planner")
RANDOM = "f3a9c0d1e2b34567f3a9c0d1e2b34567"
PEM = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7VJTU\n-----END PRIVATE KEY-----"
)


@pytest.mark.covers("secrets-rule")
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("GITHUB_TOKEN", "abcdef", "evident"),
        ("apiKey", "abcdef", "evident"),
        ("X-Auth", "abcdef", "evident"),
        ("Authorization", "Bearer abcdef", "evident"),
        ("SESSION_COOKIE", "abcdef", "evident"),
        ("DB_CREDENTIALS", "abcdef", "evident"),
        ("AUTHOR", "Jane Doe", "ordinary"),
        ("MONKEY", "banana", "ordinary"),
        ("KEYBOARD", "qwertz", "ordinary"),
        ("TOKEN_FILE", "abcdef", "ordinary"),
        ("KEY_PATH", "abcdef", "ordinary"),
        ("SECRET_DIR", "abcdef", "ordinary"),
        ("TOKEN_URL", "abcdef", "ordinary"),
        ("AUTH_HOST", "abcdef", "ordinary"),
        ("AUTH_PORT", "123456", "ordinary"),
        ("KEY_ID", "abcdef", "ordinary"),
        ("KEY_NAME", "abcdef", "ordinary"),
        ("AUTH", "true", "ordinary"),
        ("MAX_TOKENS", "200000", "ordinary"),
        ("TOKENS", "12345", "ordinary"),
        ("TOKENS", "123456", "evident"),
        ("SECRET", os.sep, "ordinary"),
        ("SECRET", "~", "ordinary"),
        ("SECRET", "/no/such/path/anywhere", "evident"),
        ("AUTH", "https://login.example/realm", "ordinary"),
        ("AUTH", "https://me:pw@login.example/realm", "evident"),
        ("REGION", "eu-central-1", "ordinary"),
        ("WORKDIR", "/srv/data", "ordinary"),
        ("BLOB", RANDOM, "suspected"),
        ("PIN", "482913", "suspected"),
    ],
)
def test_a_literal_is_judged_by_the_words_of_its_name_and_by_its_value(name: str, value: str, kind: str) -> None:
    assert judge(name, value, Declared()) == kind


@pytest.mark.covers("secrets-rule")
def test_a_declaration_of_the_owner_wins_over_every_other_rule() -> None:
    said = Declared({"X": True, "api-key": False})
    assert judge("x", "hello", said) is SecretKind.declared
    assert judge("API_KEY", "abcdef", said) is SecretKind.ordinary


def found(**parameters: Any) -> set[str]:
    declared = parameters.pop("secrets", {})
    return secrets_of({"servers": {"s": {"secrets": declared, "server_parameters": parameters}}}).found


@pytest.mark.covers("secrets-rule")
@pytest.mark.parametrize(
    "secret",
    [
        "ghp_0123456789abcdefghij",
        "sk-proj-0123456789abcdef",
        "xoxb-0123456789-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        PEM,
    ],
)
def test_tokens_and_keys_are_secrets_wherever_they_stand(secret: str) -> None:
    places: list[dict[str, Any]] = [
        {"args": [secret]},
        {"args": ["--verbose", f"name={secret}"]},
        {"env": {"PLAIN": secret}},
        {"headers": {"X-Plain": f"with {secret}"}},
    ]
    for place in places:
        assert secret in found(**place), place
        shown = mask_config({"servers": {"s": {"server_parameters": place}}})
        assert secret not in repr(shown)


@pytest.mark.covers("secrets-rule")
@pytest.mark.parametrize(
    "value",
    [
        "npm_config_registry_url",
        "pypi-attestations-0.0.28",
        "sk-learn-contrib-lightning",
        "ASIA-PACIFIC-REGION-1",
        "@scope/server@1.2.3",
        "xoxo-hugs-and-kisses",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_names_that_only_begin_like_a_token_are_none(value: str) -> None:
    assert found(args=[value], env={"PLAIN": value}) == set()


@pytest.mark.covers("secrets-rule")
def test_a_password_in_a_url_is_a_secret_and_an_ordinary_variable_is_none() -> None:
    assert "pa55w0rd" in found(env={"DATABASE": "postgres://me:pa55w0rd@db/x"})
    assert found(env={"WORKDIR": "/srv/data", "REGION": "eu-central-1", "PORT": "8080", "URL": "https://x/y"}) == set()
    assert found(env={"WORKDIR": "/srv/data"}, secrets={"WORKDIR": True}) == {"/srv/data"}
    assert found(env={"TOKEN": PEM}, secrets={"TOKEN": False}) == set()


@pytest.mark.covers("secrets-rule")
def test_a_suspected_secret_is_hidden_in_the_configuration_and_named() -> None:
    config = {"servers": {"s": {"server_parameters": {"args": ["x", RANDOM, f"https://h/{RANDOM}/y"]}}}}
    literals = secrets_of(config)
    assert (literals.found, literals.suspected) == (set(), {RANDOM})
    assert [(each.name, each.kind) for each in literals.named] == [("args", SecretKind.suspected)]
    assert RANDOM not in repr(mask_config(config))


# Masking


@pytest.mark.covers("secrets-rule", "secrets-masked")
def test_short_secrets_and_plain_words_are_masked_as_whole_words_of_servers_that_have_them() -> None:
    mask = Mask()
    mask.add(["hunter2", "production", "short"], "mine")
    text = "hunter2, hunter22, in production: reproduction, us-production-1, aHVudGVyMg=="
    masked = f"{MASKED}, hunter22, in {MASKED}: reproduction, us-production-1, {MASKED}=="
    assert mask.text(text, "mine") == masked
    assert mask.text(text, "other") is text
    assert mask.text(text) is text
    assert mask.text("short", "mine") == "short"
    assert mask.logged("production") == MASKED


@pytest.mark.covers("secrets-rule", "secrets-masked")
def test_a_suspected_secret_is_hidden_in_logs_alone() -> None:
    mask = Mask()
    mask.suspect([RANDOM])
    assert mask.text(RANDOM) == RANDOM
    assert mask.logged(f"<{RANDOM}>") == f"<{MASKED}>"


@pytest.mark.covers("secrets-masked")
@pytest.mark.parametrize("written", [PEM.replace("\n", "\r\n"), PEM.replace("\n", "\n    "), PEM.replace("\n", "\\n")])
def test_the_lines_of_a_key_are_masked_however_they_end_and_are_indented(written: str) -> None:
    masked = Mask([PEM]).text(f"key: {written}")
    assert "MIIE" not in masked
    assert "AASC" not in masked


@pytest.mark.covers("secrets-masked")
def test_a_key_that_was_given_with_other_line_ends_is_found_as_it_is_written() -> None:
    for given in (PEM.replace("\n", "\r\n"), PEM.replace("\n", "\\n")):
        assert "MIIE" not in Mask([given]).text(PEM)


@pytest.mark.covers("secrets-masked")
def test_text_that_only_looks_like_binary_content_is_searched() -> None:
    key = "k3y-0123456789ab"
    mask = Mask([key])
    blob = {"uri": "file:///a", "blob": key}
    answer = {
        "content": [{"type": "resource_link", "uri": "file:///a", "name": "a", "blob": key, "data": key}],
        "structuredContent": {**blob, "deep": [{"type": "image", "mimeType": "image/png", "data": key}]},
        "_meta": blob,
    }
    assert key not in repr(mask.data(answer, ANSWER))


@pytest.mark.covers("secrets-masked")
def test_a_password_that_is_a_word_is_masked_in_the_user_information_of_a_link() -> None:
    mask = Mask()
    mask.add(["production"], "db")
    link = {"type": "resource_link", "uri": "postgres://me:production@h/production", "name": "production"}
    masked = mask.data({"content": [link]}, ANSWER, "db")["content"][0]
    assert masked == {**link, "uri": f"postgres://me:{MASKED}@h/production", "name": MASKED}


# A Computer


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.mark.covers("secrets-rule", "secrets-masked")
async def test_a_tool_keeps_its_folder_and_loses_its_token(tmp_path: Path) -> None:
    env = {"WORKDIR": str(tmp_path), "REGION": "eu-central-1", "API_TOKEN": "t0ken-0123456789", "MARKED": "mar-ked"}
    config = good(env=env, default_tool_meta={"auto_apply": True}, secrets={"MARKED": True})
    with environment(HTTP_PROXY="http://me:pr0xy-pass@127.0.0.1:9"):
        async with Computer("laptop", policy=quick()) as computer:
            await computer.put_server(config)
            answer = repr(await computer.execute_tool(AGENT, "r1", "environment", {}, 10))
            shown = computer.get_config()["servers"]["good"]
            names = [(each.name, str(each.kind)) for each in computer.secrets()["good"]]
    assert str(tmp_path) in answer
    assert "eu-central-1" in answer
    for secret in ("t0ken-0123456789", "mar-ked", "pr0xy-pass"):
        assert secret not in answer
    assert names == [("API_TOKEN", "evident"), ("MARKED", "declared")]
    assert set(shown["server_parameters"]["env"].values()) == {MASKED}  # type: ignore[typeddict-item, union-attr]
    assert "secrets" not in shown


@pytest.mark.covers("secrets-masked")
async def test_a_reason_that_is_cut_shows_no_half_of_a_secret() -> None:
    token = "t0ken-0123456789-abcdefgh"
    dies = "import os, sys; sys.stderr.write('x' * 490 + ' ' + os.environ['API_TOKEN']); sys.exit(3)"
    config = {"name": "dies", "command": sys.executable, "args": ["-c", dies], "env": {"API_TOKEN": token}}
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        await until(lambda: "exited with code 3" in computer.status()["dies"].reason)
        reason = computer.status()["dies"].reason
    assert token[:5] not in reason
    assert reason.endswith("x …")
