"""That secrets are found in every form they may take, in results, configurations and logs, and nothing else is."""

from __future__ import annotations

import base64
import copy
import io
import json
import logging
import random
import re
import string
import time
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.computer.secrets.logs import MaskFilter, masked_logs
from a2c_smcp.computer.secrets.mask import MASKED, Mask, forms_of, is_word
from a2c_smcp.computer.secrets.rules import mask_config, secrets_of
from a2c_smcp.protocol.structure import ANSWER
from tests.computer.pace import within

pytestmark = pytest.mark.covers("secrets-masked", "secrets-config", "secrets-logs")

SECRET = "pa/ss w+rd?é%"
KEY = "sk-9f8e7d6c5b4a"

secrets = st.text(st.characters(exclude_characters="*", exclude_categories=["Cs"]), min_size=12, max_size=40)
secrets = secrets.filter(lambda text: not is_word(text))
data_bytes = st.binary(max_size=30)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def in_base64(raw: bytes, *, url_safe: bool = False) -> str:
    return (base64.urlsafe_b64encode if url_safe else base64.b64encode)(raw).decode()


# Texts


@pytest.mark.parametrize(
    "written",
    [
        *(SECRET, in_base64(SECRET.encode()), in_base64(SECRET.encode(), url_safe=True)),
        *(quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET), urlencode({"": SECRET})[1:]),
        re.sub("%..", lambda code: code[0].lower(), quote(SECRET, safe="")),
        *(json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1]),
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
    ],
)
def test_a_secret_is_masked_however_it_is_written(written: str) -> None:
    mask = Mask([SECRET])
    for around in ("{}", "before {} after", "x{}y", '"{}"'):
        assert mask.text(around.format(written)).replace("=", "") == around.format(MASKED)


@pytest.mark.parametrize("written", [r"C:\new\"x'y", "line one\nline two\ttab", "日本語のパスワード"])
def test_escapes_of_json_and_python_do_not_hide_a_secret(written: str) -> None:
    mask = Mask([written])
    for text in (json.dumps({"a": written}), json.dumps([written], ensure_ascii=False), repr([written])):
        assert MASKED in mask.text(text)
        assert json.loads(mask.text(json.dumps({"a": written}))) == {"a": MASKED}


@given(secrets, data_bytes, data_bytes, st.booleans())
def test_a_secret_is_found_inside_longer_base64_wherever_it_begins(
    secret: str, before: bytes, after: bytes, url_safe: bool
) -> None:
    text = in_base64(before + secret.encode() + after, url_safe=url_safe)
    masked = Mask([secret]).text(text)
    left, right = masked.split(MASKED)[0], masked.split(MASKED)[-1].rstrip("=")
    assert MASKED in masked
    if masked.count(MASKED) == 1:  # all that is left belongs to what stands around the secret
        assert len(left) * 6 <= len(before) * 8
        assert len(right) * 6 <= len(after) * 8 + 5


@given(st.lists(secrets, min_size=1, max_size=4), st.lists(st.text(max_size=20) | st.integers(0, 3), max_size=8))
def test_no_secret_remains_in_a_text_and_one_without_is_the_same_object(
    hidden: list[str], pieces: list[str | int]
) -> None:
    text = "".join(piece if isinstance(piece, str) else hidden[piece % len(hidden)] for piece in pieces)
    mask = Mask(hidden)
    masked = mask.text(text)
    assert not any(secret in masked for secret in hidden)
    if masked == text:
        assert masked is text
    assert mask.text(masked) == masked


def test_the_version_changes_only_when_a_new_secret_is_masked() -> None:
    versions: list[int] = []

    class Watched(str):
        """Told when it is taken apart, which takes its time, in a thread perhaps."""

        __slots__ = ()

        def encode(self, *options: Any) -> bytes:
            versions.append(mask.version)
            return super().encode(*options)

    mask = Mask()
    before = mask.version
    mask.add([Watched(KEY)])
    assert set(versions) == {before}
    assert mask.version != before


def test_secrets_can_be_added_and_remain() -> None:
    mask = Mask()
    assert mask.text(KEY) == KEY
    mask.add([KEY])
    mask.add(["another-one"])
    assert mask.text(f"{KEY} another-one") == f"{MASKED} {MASKED}"
    assert KEY not in repr(mask)


ODD: dict[str, tuple[list[str], str, str]] = {
    "fewer than six characters": (["12345", "", "a", "123456"], "12345 a 123456", f"12345 a {MASKED}"),
    "halves of pairs": ([KEY, "\ud800secret-long"], f"\udfff{KEY}\ud800secret-long", f"\udfff{MASKED}"),
    "overlapping": (["abcdefgh1234", "efgh12345678", "cdefgh123456"], "<abcdefgh12345678>", f"<{MASKED}>"),
}


@pytest.mark.parametrize(("hidden", "text", "masked"), ODD.values(), ids=ODD)
def test_odd_secrets_leave_nothing_of_each_other(hidden: list[str], text: str, masked: str) -> None:
    assert Mask(hidden).text(text) == masked


def test_a_megabyte_is_searched_for_fifty_secrets_in_no_time() -> None:
    chance = random.Random(7)
    hidden = ["".join(chance.choices(string.ascii_letters + string.digits + "+/", k=32)) for _ in range(50)]
    text = " ".join("".join(chance.choices(string.ascii_lowercase, k=7)) for _ in range(125_000))
    assert len(text) == 999_999
    mask, took = Mask(hidden), []
    for _ in range(5):
        start = time.process_time()
        assert mask.text(text) is text
        took.append(time.process_time() - start)
    assert min(took) < 0.1  # 10 ms on the machine this was written on


# Results


def test_every_text_of_a_result_is_masked_and_the_rest_is_untouched() -> None:
    result = {
        "content": [{"type": "text", "text": f"key: {KEY}"}, {"type": "text", "text": "nothing"}],
        "structuredContent": {KEY: [KEY, 1, None, True], "deep": {"url": f"https://x/?k={KEY}"}},
        "_meta": {"a": json.dumps({"k": KEY})},
        "isError": False,
    }
    before = copy.deepcopy(result)
    masked = Mask([KEY]).data(result)
    assert result == before
    assert masked == json.loads(json.dumps(before).replace(KEY, MASKED))
    assert masked["content"][1] is result["content"][1]


@given(json_values)
def test_a_value_without_secrets_is_the_same_object(value: Any) -> None:
    assert Mask([KEY, SECRET]).data(value) is value


@given(json_values, secrets)
def test_no_secret_remains_anywhere_in_a_value(value: Any, secret: str) -> None:
    masked = Mask([secret]).data([value, {secret: {"in": f"<{secret}>"}}, secret])
    assert not any(secret in text for text in texts(masked))
    assert len(masked) == 3


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for each in pair for text in texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in texts(each))


def test_keys_that_become_alike_lose_no_entry() -> None:
    masked = Mask(["secret-a", "secret-b"]).data({"secret-a": 1, MASKED: 2, "secret-b": 3})
    assert sorted(masked.values()) == [1, 2, 3]


def test_many_keys_that_become_alike_take_no_time() -> None:
    mask, form = Mask([KEY]), next(form for form in forms_of(KEY) if form.before == form.after == 1)
    value = {f"{a}{form.text}{b}": a for a, b in product(string.ascii_letters, repeat=2)}
    with within(1):
        assert len(mask.data(value)) == len(value)


def test_a_number_that_is_a_secret_is_masked() -> None:
    assert Mask(["48291377"]).data({"pin": 48291377, "other": 482913770}) == {"pin": MASKED, "other": 482913770}
    assert Mask(["48291377"]).data({"pin": 48291377.0, "other": 48291377.5}) == {"pin": MASKED, "other": 48291377.5}


def test_binary_content_is_not_searched_but_the_text_beside_it_is() -> None:
    blob = in_base64(KEY.encode())
    content = [
        {"type": "image", "data": blob, "mimeType": "image/png", "_meta": {"k": KEY}},
        {"type": "audio", "data": blob, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": f"file:///{KEY}", "blob": blob}},
        {"type": "text", "data": blob, "mimeType": "text/plain"},
        {"type": "image", "data": f"{KEY}!", "mimeType": "image/png"},
    ]
    masked = Mask([KEY]).data({"content": content}, ANSWER)["content"]
    assert masked[1] is content[1]
    assert masked == [
        {**content[0], "_meta": {"k": MASKED}},
        content[1],
        {"type": "resource", "resource": {"uri": f"file:///{MASKED}", "blob": blob}},
        {**content[3], "data": MASKED},
        {**content[4], "data": f"{MASKED}!"},
    ]


# Configurations


def server(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [], "servers": {"s": {"name": "s", "type": "stdio", "server_parameters": parameters}}}


def masked(**parameters: Any) -> dict[str, Any]:
    return mask_config(server(**parameters))["servers"]["s"]["server_parameters"]  # type: ignore[no-any-return]


def test_literals_of_env_and_headers_are_masked_and_placeholders_stay() -> None:
    env = {"A": "literal", "B": "${input:b}", "C": "pre-${input:c}-post", "D": "", "PATH": "/usr/bin"}
    assert masked(env=env) == {
        "env": {"A": MASKED, "B": "${input:b}", "C": f"{MASKED}${{input:c}}{MASKED}", "D": "", "PATH": MASKED}
    }
    headers = {"Authorization": "Bearer ${input:token}", "X-Key": KEY, "X-Number": 7, "Accept": "application/json"}
    names = ("X-Key", "X-Number", "Accept")
    assert masked(headers=headers)["headers"] == {**headers, **dict.fromkeys(names, MASKED)}
    assert masked(env=None, headers=None) == {"env": None, "headers": None}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.org/mcp", "https://example.org/mcp"),
        ("https://me:secret1@example.org:8080/mcp", "https://***@example.org:8080/mcp"),
        ("https://token12@example.org", "https://***@example.org"),
        ("https://h/p?api_key=abcdef&x=${input:x}&y=#top", "https://h/p?api_key=***&x=${input:x}&y=#top"),
        ("https://h/?abcdef", "https://h/?***"),
        ("https://${input:u}:${input:p}@${input:host}/", "https://${input:u}:${input:p}@${input:host}/"),
        ("https://me:${input:p}@h/?a=b${input:c}", "https://***${input:p}@h/?a=***${input:c}"),
        ("https://h/@scope/${input:odd/id?x=1}", "https://h/@scope/${input:odd/id?x=1}"),
    ],
)
def test_user_information_and_query_values_of_urls_are_masked(url: str, shown: str) -> None:
    assert masked(url=url)["url"] == shown
    assert masked(args=["--url", url])["args"] == ["--url", shown]


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--token", "abc", "x"], ["--token", "***", "x"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["-apiKey", "abc"], ["-apiKey", "***"]),
        (["GITHUB_TOKEN=abc"], ["GITHUB_TOKEN=***"]),
        (["-e", "ANYTHING=abc", "image"], ["-e", "ANYTHING=***", "image"]),
        (["--header", "X-Any: abc def"], ["--header", "X-Any: ***"]),
        (["Authorization: Bearer abc"], ["Authorization: ***"]),
        (["Authorization:Bearer ${input:t}"], ["Authorization:Bearer ${input:t}"]),
        (["--password", "${input:p}"], ["--password", "${input:p}"]),
        (["--password=a${input:p}"], ["--password=***${input:p}"]),
        (["--token", "--verbose", "x"], ["--token", "--verbose", "x"]),
        (["--clientSecret", "-starts-with-dash!"], ["--clientSecret", "***"]),
        (["-c", "TOKEN=abc run --pass 'a b' && ls"], ["-c", "TOKEN=***"]),
        (["-c", "run --pass 'a b' && ls"], ["-c", "run --pass *** && ls"]),
        (["-c", "curl -H 'Auth-Key: a b' x"], ["-c", "curl -H 'Auth-Key: *** x"]),
        (["--config", '{"apiKey": "abc", "n": 1, "l": [{"pwd": "x"}]}'],
         ["--config", '{"apiKey": "***", "n": 1, "l": [{"pwd": "***"}]}']),
        (["postgresql://me:pw@db/x?sslmode=require"], ["postgresql://***@db/x?sslmode=***"]),
        (["@scope/server@1.2", "/home/me", "--port", "80", "--max-tokens", "9", "--key-file", "f", "{broken", ""],
         ["@scope/server@1.2", "/home/me", "--port", "80", "--max-tokens", "9", "--key-file", "f", "{broken", ""]),
    ],
)  # fmt: skip
def test_arguments_after_a_name_like_a_secret_are_masked(args: list[str], shown: list[str]) -> None:
    assert masked(args=args)["args"] == shown


def test_defaults_of_passwords_and_secrets_of_commands_are_masked() -> None:
    command = {"id": "d", "type": "command", "description": "", "args": {"key": "v", "n": "w"}}
    config = {
        "inputs": [
            {"id": "a", "type": "promptString", "description": "", "default": "hidden", "password": True},
            {"id": "b", "type": "promptString", "description": "", "default": "shown", "password": False},
            {"id": "c", "type": "pickString", "description": "", "options": ["x"], "default": "x"},
            {**command, "command": "op --token abc"},
            {"id": "e", "type": "promptString", "description": "", "default": None, "password": True},
        ],
        "servers": {},
    }
    before = copy.deepcopy(config)
    a, b, c, _, e = config["inputs"]
    shown = {**command, "command": "op --token ***", "args": {"key": MASKED, "n": "w"}}
    assert mask_config(config)["inputs"] == [{**a, "default": MASKED}, b, c, shown, e]
    assert config == before


def test_public_fields_stay_and_unknown_fields_are_judged_by_their_names() -> None:
    known = {
        "name": "token",
        "type": "streamable",
        "disabled": False,
        "forbidden_tools": ["get_token"],
        "tool_meta": {"login": {"ret_object_mapper": {"token": "structuredContent.token"}, "alias": "password"}},
        "default_tool_meta": {"tags": ["secret"]},
        "vrl": '.token = "x"',
        "server_parameters": {"url": "https://h/", "timeout": "PT30S"},
    }
    config = {"servers": {"token": {**known, "oauth": {"client_secret": "abc", "client_id": "me", "on": True}}}}
    shown = mask_config(config)["servers"]["token"]
    assert shown == {**known, "oauth": {"client_secret": MASKED, "client_id": "me", "on": True}}


@pytest.mark.parametrize(
    "config", [{}, {"servers": None, "inputs": None}, {"servers": {"s": None}, "inputs": [None, 1]}]
)
def test_a_configuration_of_another_shape_is_not_changed(config: dict[str, Any]) -> None:
    assert mask_config(config) == config
    assert secrets_of(config).found == set()


def test_a_value_masked_in_a_configuration_is_a_secret_everywhere() -> None:
    basic = in_base64(b"me:basic-password")
    config = server(
        command="npx",
        args=["--token", "flag-secret", "KEY=pair-secret", "https://me:url%20secret@h/?key=query-secret",
              "plain-argument",
              "Authorization: Bearer bearer-secret", "-c", "run --pwd 'shell secret'", '{"apiKey": "json-secret"}'],
        env={"A_TOKEN": "env-secret", "DB": "postgres://postgres:db-secret@h/x", "LC_ALL": "de_DE.UTF-8",
             "J": '{"key": "in-json"}'},
        headers={"Authorization": f"Basic {basic}", "Cookie": "sid=cookie-secret; a=b", "Accept": "application/json"},
    )  # fmt: skip
    config["inputs"] = [
        {"id": "p", "type": "promptString", "description": "", "default": "default-secret", "password": True}
    ]
    mask = Mask(secrets_of(config).found)
    hidden = [
        "flag-secret", "pair-secret", "url%20secret", "url secret", "query-secret", "bearer-secret", "shell secret",
        "json-secret", "env-secret", "db-secret", "in-json", basic, "basic-password", "cookie-secret", "default-secret",
    ]  # fmt: skip
    assert [mask.text(each) for each in hidden] == [MASKED] * len(hidden)
    for shown in ("plain-argument", "application/json", "de_DE.UTF-8", "postgres", "Bearer", "npx"):
        assert mask.text(shown) == shown
    assert mask.data(mask_config(config)) == mask_config(config)


@pytest.mark.parametrize(
    "text", ["token=" * 200, "${input:a}" * 200 + "@", "https://" + "${input:a}" * 200, "Bearer " * 300]
)
def test_no_text_takes_long(text: str) -> None:
    with within(1):
        mask_config(server(args=[text, f"sh -c '{text}'"], url=text, env={"A": text}))


# Logs


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    logger, stream = logging.Logger("a2c-test-of-masks", logging.DEBUG), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.addFilter(MaskFilter(Mask([KEY, SECRET])))
    logger.addHandler(handler)
    return logger, stream


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL])
def test_records_of_every_level_are_masked(level: int, log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.log(level, "message %s", KEY)
    logger.log(level, f"in the text {KEY}")  # noqa: G004
    logger.log(level, "%(a)s and %(b)r", {"a": [SECRET], "b": {"k": KEY}})
    logger.log(level, "fine %d", 3)
    name = logging.getLevelName(level)
    said = (f"message {MASKED}", f"in the text {MASKED}", f"['{MASKED}'] and {{'k': '{MASKED}'}}", "fine 3")
    assert stream.getvalue().splitlines() == [f"{name} {each}" for each in said]


def test_tracebacks_and_stacks_are_masked(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    try:
        try:
            raise KeyError(KEY)
        except KeyError as inner:
            raise ValueError(f"url https://x?{quote(SECRET)}") from inner
    except ValueError:
        logger.exception("failed", stack_info=True)
    text = stream.getvalue()
    assert all(each in text for each in ("Traceback", "ValueError: url https://x?***", f"KeyError: '{MASKED}'"))
    assert KEY not in text


def test_a_record_whose_arguments_do_not_fit_gives_nothing_away(
    log: tuple[logging.Logger, io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    logger, stream = log
    logger.info("one %s two %s " + KEY, SECRET)  # noqa: G003
    assert stream.getvalue() == f"INFO one %s two %s {MASKED} (the log arguments do not match the format string)\n"
    assert capsys.readouterr().err == ""


def test_records_without_secrets_are_not_touched_and_extras_are_masked() -> None:
    mask = MaskFilter(Mask([KEY]))
    error = ValueError("plain")
    record = logging.makeLogRecord({"msg": "a %s", "args": ("b",), "exc_info": (ValueError, error, None), "seen": 1})
    before = dict(vars(record))
    assert mask.filter(record)
    assert vars(record) == before
    loop: list[Any] = [KEY]
    loop.append(loop)
    record = logging.makeLogRecord({"msg": "a", "url": f"https://x?{KEY}", "nested": loop, "args": {"unused": KEY}})
    assert mask.filter(record)
    assert KEY not in repr(vars(record))


@pytest.fixture
def everything() -> Iterator[list[str]]:
    """What reaches the handlers of the root logger, whole."""
    lines: list[str] = []
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit = lambda record: lines.append(repr(vars(record)))  # type: ignore[method-assign]
    root.addHandler(handler)
    yield lines
    root.removeHandler(handler)


def test_loggers_are_covered_whenever_they_were_made_and_uncovered_after(everything: list[str]) -> None:
    factory, older = logging.getLogRecordFactory(), logging.getLogger("mcp.older")
    with masked_logs(Mask([KEY])):
        newer = logging.getLogger(f"mcp.newer.{random.random()}")
        for logger in (older, newer):
            logger.error("a %s", KEY, extra={"seen": KEY})
        assert all(MASKED in line and KEY not in line for line in everything)
        assert len(everything) == 2
    assert logging.getLogRecordFactory() is factory
    assert (older.filters, newer.filters) == ([], [])


def test_log_records_of_other_programs_are_not_changed(everything: list[str]) -> None:
    with masked_logs(Mask([KEY])):
        logging.getLogger("somebody.else").error("a %s", KEY)
    assert KEY in everything[0]


def test_computers_and_hosts_that_come_and_go_in_any_order_leave_the_factory_as_it_was(everything: list[str]) -> None:
    factory = logging.getLogRecordFactory()
    first, second = masked_logs(Mask([KEY])), masked_logs(Mask([SECRET]))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    logging.getLogger("mcp.some").error("%s %s", KEY, SECRET)
    assert KEY in everything[-1]
    assert SECRET not in everything[-1]
    covering = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *record, **more: covering(*record, **more))
    second.__exit__(None, None, None)
    logging.getLogger("mcp.some").error("%s", SECRET)
    assert SECRET in everything[-1]
    logging.setLogRecordFactory(covering)
    with masked_logs(Mask()):
        pass
    assert logging.getLogRecordFactory() is factory


def test_levels_and_names_of_loggers_stay_though_they_are_literals() -> None:
    record = logging.makeLogRecord({"name": "asyncio", "levelname": "WARNING", "msg": "WARNING"})
    MaskFilter(Mask(["asyncio", "WARNING"])).filter(record)
    assert (record.name, record.levelname, record.getMessage()) == ("asyncio", "WARNING", MASKED)
