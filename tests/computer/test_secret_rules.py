"""What counts as a secret, and where each class of secrets is hidden (WIRE §5)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.secrets.mask import MASKED, Mask
from a2c_smcp.computer.secrets.rules import Declared, SecretKind, judge, mask_config, secrets_of
from a2c_smcp.mcp_host.sessions.server_info import LARGEST
from a2c_smcp.protocol.structure import ANSWER
from tests.computer.supervised import good, naughty, quick, script
from tests.waiting import until

pytestmark = pytest.mark.covers("secrets-rule", "secrets-masked")

AGENT = Caller("desk", "planner")
PASSPHRASE = "correct horse battery staple 99"
RANDOM = "f3a9c0d1e2b34567f3a9c0d1e2b34567"
PEM = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7VJTU\n-----END PRIVATE KEY-----"
)


LITERALS = {
    SecretKind.evident: [
        *("GITHUB_TOKEN=abcdef", "apiKey=abcdef", "X-Auth=abcdef", "Authorization=Bearer abcdef", "TOKENS=123456"),
        *("SESSION_COOKIE=abcdef", "DB_CREDENTIALS=abcdef", "SECRET=/no/such/path/anywhere"),
        "AUTH=https://me:pw@login.example/realm",
    ],
    SecretKind.ordinary: [
        *("AUTHOR=Jane Doe", "MONKEY=banana", "KEYBOARD=qwertz", "TOKEN_FILE=abcdef", "KEY_PATH=abcdef", "AUTH=true"),
        *("SECRET_DIR=abcdef", "TOKEN_URL=abcdef", "AUTH_HOST=abcdef", "AUTH_PORT=123456", "KEY_ID=abcdef"),
        *("KEY_NAME=abcdef", "MAX_TOKENS=200000", "TOKENS=12345", f"SECRET={os.sep}", "SECRET=~"),
        *("AUTH=https://login.example/realm", "REGION=eu-central-1", "WORKDIR=/srv/data"),
    ],
    SecretKind.suspected: [f"BLOB={RANDOM}", "PIN=482913"],
}


@pytest.mark.parametrize(("kind", "literal"), [(kind, each) for kind, found in LITERALS.items() for each in found])
def test_a_literal_is_judged_by_the_words_of_its_name_and_by_its_value(kind: SecretKind, literal: str) -> None:
    name, _, value = literal.partition("=")
    assert judge(name, value, Declared()) is kind


def test_a_declaration_of_the_owner_wins_over_every_other_rule() -> None:
    said = Declared({"X": True, "api-key": False})
    assert judge("x", "hello", said) is SecretKind.declared
    assert judge("API_KEY", "abcdef", said) is SecretKind.ordinary


def found(**parameters: Any) -> set[str]:
    declared = parameters.pop("secrets", {})
    return secrets_of({"servers": {"s": {"secrets": declared, "server_parameters": parameters}}}).found


@pytest.mark.parametrize(
    "secret",
    [
        *("ghp_0123456789abcdefghij", "sk-proj-0123456789abcdef", "xoxb-0123456789-abcdef", "AKIAIOSFODNN7EXAMPLE"),
        *("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", PEM),
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


@pytest.mark.parametrize(
    "value",
    [
        *("npm_config_registry_url", "pypi-attestations-0.0.28", "sk-learn-contrib-lightning", "ASIA-PACIFIC-REGION-1"),
        *("@scope/server@1.2.3", "xoxo-hugs-and-kisses"),
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_names_that_only_begin_like_a_token_are_none(value: str) -> None:
    assert found(args=[value], env={"PLAIN": value}) == set()


def test_a_password_in_a_url_is_a_secret_and_an_ordinary_variable_is_none() -> None:
    assert "pa55w0rd" in found(env={"DATABASE": "postgres://me:pa55w0rd@db/x"})
    assert found(env={"WORKDIR": "/srv/data", "REGION": "eu-central-1", "PORT": "8080", "URL": "https://x/y"}) == set()
    assert found(env={"WORKDIR": "/srv/data"}, secrets={"WORKDIR": True}) == {"/srv/data"}
    assert found(env={"TOKEN": PEM}, secrets={"TOKEN": False}) == set()


def test_a_suspected_secret_is_hidden_in_the_configuration_and_named() -> None:
    config = {"servers": {"s": {"server_parameters": {"args": ["x", RANDOM, f"https://h/{RANDOM}/y"]}}}}
    literals = secrets_of(config)
    assert (literals.found, literals.suspected) == (set(), {RANDOM})
    assert [(each.name, each.kind) for each in literals.named] == [("args", SecretKind.suspected)]
    assert RANDOM not in repr(mask_config(config))


# Masking


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


def test_a_suspected_secret_is_hidden_in_logs_alone() -> None:
    mask = Mask()
    mask.suspect([RANDOM])
    assert mask.text(RANDOM) == RANDOM
    assert mask.logged(f"<{RANDOM}>") == f"<{MASKED}>"


@pytest.mark.parametrize("written", [PEM.replace("\n", "\r\n"), PEM.replace("\n", "\n    "), PEM.replace("\n", "\\n")])
def test_the_lines_of_a_key_are_masked_however_they_end_and_are_indented(written: str) -> None:
    for masked in (Mask([PEM]).text(f"key: {written}"), Mask([written]).text(PEM)):
        assert "MIIE" not in masked
        assert "AASC" not in masked


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


def test_a_password_that_is_a_word_is_masked_in_the_user_information_of_a_link() -> None:
    mask = Mask()
    mask.add(["production"], "db")
    link = {"type": "resource_link", "uri": "postgres://me:production@h/production", "name": "production"}
    masked = mask.data({"content": [link]}, ANSWER, "db")["content"][0]
    assert masked == {**link, "uri": f"postgres://me:{MASKED}@h/production", "name": MASKED}


# A Computer


async def test_a_tool_keeps_its_folder_and_loses_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"WORKDIR": str(tmp_path), "REGION": "eu-central-1", "API_TOKEN": "t0ken-0123456789", "MARKED": "mar-ked"}
    config = good(env=env, default_tool_meta={"auto_apply": True}, secrets={"MARKED": True})
    monkeypatch.setenv("HTTP_PROXY", "http://me:pr0xy-pass@127.0.0.1:9")
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        answer = repr(await computer.execute_tool(AGENT, "r1", "environment", {}, 10))
        shown = computer.get_config()["servers"]["good"]
        names = [(each.name, str(each.kind)) for each in computer.owner.secrets()["good"]]
    assert [each for each in (str(tmp_path), "eu-central-1") if each not in answer] == []
    assert [each for each in ("t0ken-0123456789", "mar-ked", "pr0xy-pass") if each in answer] == []
    assert names == [("API_TOKEN", "evident"), ("MARKED", "declared")]
    assert set(shown["server_parameters"]["env"].values()) == {MASKED}  # type: ignore[typeddict-item, union-attr]
    assert "secrets" not in shown


@pytest.mark.covers("secrets-masked")
@pytest.mark.parametrize(("before", "token"), [(490, "t0ken-0123456789"), (490, PASSPHRASE), (3970, PASSPHRASE)])
async def test_a_long_reason_shows_no_half_of_a_secret(before: int, token: str) -> None:
    dies = f"import os, sys; sys.stderr.write('x' * {before} + ' ' + os.environ['API_TOKEN']); sys.exit(3)"
    config = {"name": "dies", "command": sys.executable, "args": ["-c", dies], "env": {"API_TOKEN": token}}
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        await until(lambda: "exited with code 3" in computer.status()["dies"].reason)
        reason = computer.status()["dies"].reason
    assert token[:5] not in reason
    assert reason.endswith("x ***" if before == 490 else "[4002 characters, left out]")


@pytest.mark.covers("secrets-masked")
@pytest.mark.parametrize("secret", ["hunter2xyz", "sunflower"])
async def test_the_last_words_of_a_server_that_dies_in_a_call_are_masked_as_its_own(secret: str) -> None:
    """Its tools are gone before the answer is made."""
    config = naughty("dies_in_call", env={"DB_PASSWORD": secret}, default_tool_meta={"auto_apply": True})
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        answer = await computer.execute_tool(AGENT, "r1", "echo", {"text": "x"}, 20)
        (record,) = computer.history
    assert "login failed for admin with ***" in answer["message"]
    assert secret not in repr(answer)
    assert secret not in repr(record)


@pytest.mark.covers("secrets-masked")
async def test_of_a_long_log_neither_its_text_nor_its_logger_shows_half_of_a_secret() -> None:
    config = script("scripted.py", "older", env={"API_KEY": PASSPHRASE}, default_tool_meta={"auto_apply": True})
    said = [
        {"level": "info", "data": "x" * (LARGEST - 15) + f" {PASSPHRASE}"},
        {"level": "info", "data": "second", "logger": "x" * 240 + f" {PASSPHRASE}"},
    ]
    arguments = {
        "answers": [{"result": {"content": []}}],
        "notify": [{"method": "notifications/message", "params": each} for each in said],
    }
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        await computer.execute_tool(AGENT, "r1", "plain", arguments, 20)
        lines = computer.owner.server_logs.of("older")
    assert [line.text[-7:] for line in lines] == ["xxx ***", "second"]
    assert lines[1].logger is None
    assert "correct" not in repr(lines)


@pytest.mark.covers("secrets-masked")
@pytest.mark.parametrize("era", ["older", "modern"])
async def test_an_answer_of_an_unknown_kind_shows_no_half_of_a_secret(era: str) -> None:
    config = script("scripted.py", era, env={"API_KEY": PASSPHRASE}, default_tool_meta={"auto_apply": True})
    asked = {"inputRequests": {"a": {"method": "x" * 45 + PASSPHRASE}}}
    results = [{"resultType": "x" * 45 + PASSPHRASE}, {"resultType": "input_required", **asked}]
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        for number, result in enumerate(results):
            arguments = {"answers": [{"result": result}], "key": str(number)}
            answer = await computer.execute_tool(AGENT, f"r{number}", "plain", arguments, 20)
            assert "correct" not in repr(answer)
