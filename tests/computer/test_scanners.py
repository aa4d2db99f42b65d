"""Scanners: what they refuse does not pass, what they replace is replaced, and whatever fails refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import parse_configuration, read_all
from a2c_smcp.computer.configuration.watch import RefusedChanges, digest_of_configuration
from a2c_smcp.computer.consent.programs import parse_scanner
from a2c_smcp.errors import ConfigError
from tests.computer.hosted import hosted, pids_with, ready
from tests.computer.shifting import AGENT, Shifting, tool
from tests.computer.supervised import linux_only, text_of
from tests.peer import Peer
from tests.program import start_program
from tests.stage.computer_program import surroundings
from tests.waiting import until

pytestmark = pytest.mark.covers("scanners")

EXAMPLE = Path(__file__).parents[2] / "examples" / "redact_emails.py"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "scanners.md"
SECRET = "correct-horse-battery-staple"
Scan = Callable[[dict[str, Any]], Any]


class Echo:
    """A computer with a tool that returns what it gets, and what it has got."""

    def __init__(self, *scanners: Any, **options: Any) -> None:
        self.ran: list[str] = []
        self.computer = Computer("laptop", scanners=scanners, **options)
        self.computer.tool(self.echo, name="echo", auto_apply=True)

    def echo(self, text: str) -> str:
        self.ran.append(text)
        return f"got {text}"

    async def __aenter__(self) -> Echo:
        await self.computer.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.computer.__aexit__(None, None, None)

    async def call(self, text: str = "hello", timeout: float = 30, req_id: str = "r1") -> dict[str, Any]:
        return await self.computer.execute_tool(AGENT, req_id, "echo", {"text": text}, timeout)

    async def refusal(self, **call: Any) -> tuple[str, tuple[int, str, list[str]]]:
        """How a call is refused: the message; the code, the outcome, and what the tool has run with."""
        async with self:
            refused = await self.call(**call)
        assert "hello" not in json.dumps(refused)
        return refused["message"], (refused["code"], refused["details"]["outcome"], self.ran)


NOT_RUN, HIDDEN = (403, "not_run", []), (403, "unknown", ["hello"])


def on(when: str, answer: Any) -> Scan:
    """A scanner that gives this answer at this time, and lets pass at the other."""
    return lambda call: answer if call["when"] == when else {}


def content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


# Refusing and replacing


async def test_a_scanner_sees_the_call_and_then_the_result() -> None:
    seen: list[dict[str, Any]] = []
    async with Echo(seen.append) as echo:
        assert text_of(await echo.call()) == "got hello"
    before, after = seen
    who = {"computer": "laptop", "office": "desk", "agent": "planner", "client": ""}
    call = {**who, "server": "python", "tool": "echo", "name": "echo", "arguments": {"text": "hello"}}
    result = after.pop("result")
    assert (before, after) == ({"when": "before", **call}, {"when": "after", **call})
    assert result["content"] == [{"type": "text", "text": "got hello"}]


async def test_a_refusal_before_runs_nothing_and_says_its_word(caplog: pytest.LogCaptureFixture) -> None:
    echo = Echo(on("before", {"refuse": "too secret"}))
    message, refused = await echo.refusal()
    assert refused == NOT_RUN
    for said in (message, echo.computer.history[-1]["error"] or "", caplog.text):
        assert "too secret" in said
    assert "hello" not in caplog.text


async def test_a_refusal_after_hides_the_result_and_does_not_say_that_nothing_ran() -> None:
    message, refused = await Echo(on("after", {"refuse": "no\n\x1b[2Jway" + "x" * 1000})).refusal()
    assert refused == HIDDEN
    assert r"no\n\u001b[2Jway" in message
    assert len(message) < 600


async def test_arguments_and_results_are_replaced_in_the_order_of_the_scanners() -> None:
    def add(letter: str) -> Scan:
        def scan(call: dict[str, Any]) -> dict[str, Any]:
            if call["when"] == "before":
                return {"arguments": {"text": call["arguments"]["text"] + letter}}
            return {"result": content(text_of(call["result"]) + letter.upper())}

        return scan

    async with Echo(add("a"), add("b")) as echo:
        assert text_of(await echo.call("x")) == "got xabAB"
        assert echo.computer.history[-1]["parameters"] == {"text": "xab"}


@pytest.mark.parametrize(("given", "replaced"), [(1, True), (True, 1), (0, -0.0), (2, 2.0)], ids=repr)
async def test_a_scanner_may_change_nothing_but_the_type_of_an_argument(given: Any, replaced: Any) -> None:
    ran: list[str] = []
    computer = Computer("laptop", scanners=[on("before", {"arguments": {"value": replaced}})])
    computer.tool(lambda value: ran.append(repr(value)), name="keep", auto_apply=True)
    async with computer:
        await computer.execute_tool(AGENT, "r1", "keep", {"value": given}, 30)
    assert ran == [repr(replaced)]


async def test_replaced_arguments_must_fit_and_a_replaced_result_is_masked() -> None:
    assert (await Echo(on("before", {"arguments": {"text": 5}})).refusal())[1] == NOT_RUN
    echo = Echo(on("after", {"result": content(f"it is {SECRET}")}))
    echo.computer.mask.add([SECRET])
    async with echo:
        assert text_of(await echo.call()) == "it is ***"


async def test_a_scanner_sees_no_secret_of_a_result_and_cannot_change_what_it_is_shown() -> None:
    seen: list[str] = []

    def scan(call: dict[str, Any]) -> None:
        if call["when"] == "before":
            call["arguments"]["text"] = "changed"
        else:
            seen.append(text_of(call["result"]))
            call["result"]["content"] = []

    echo = Echo(scan)
    echo.computer.mask.add([SECRET])
    async with echo:
        assert text_of(await echo.call(SECRET)) == "got ***"
    assert (seen, echo.ran) == (["got ***"], [SECRET])


async def test_a_duplicate_is_neither_scanned_nor_run_again() -> None:
    seen: list[str] = []
    async with Echo(lambda call: seen.append(call["when"])) as echo:
        assert await echo.call() == await echo.call()
    assert (seen, len(echo.ran)) == (["before", "after"], 1)


async def test_the_error_of_an_mcp_server_is_scanned_too(tmp_path: Path) -> None:
    def scan(call: dict[str, Any]) -> dict[str, Any]:
        is_named = "ann@example.org" in json.dumps(call.get("result", {}))
        return {"result": content("an error")} if is_named else {}

    async with Shifting(tmp_path, default_tool_meta={"auto_apply": True}, scanners=[scan]) as shifting:
        assert "ann" not in json.dumps(await shifting.call(error="no such user: ann@example.org"))
        assert "another error" in json.dumps(await shifting.call(error="another error"))


async def test_a_call_that_goes_on_after_a_question_is_the_same_call_though_its_arguments_are_replaced(
    tmp_path: Path,
) -> None:
    answers: list[Any] = []

    def scan(call: dict[str, Any]) -> dict[str, Any]:
        answers.append(call.get("answers"))
        return {"arguments": {**call["arguments"], "text": "[gone]"}} if call["when"] == "before" else {}

    async with Shifting(tmp_path, default_tool_meta={"auto_apply": True}, scanners=[scan]) as shifting:
        params, run = {"ask": True, "text": "ann"}, shifting.computer.execute_tool
        asked = await run(AGENT, "r1", "read", params, 30, options=CallOptions(questions="result"))
        (name,) = asked["inputRequests"]
        reply = {name: {"action": "accept", "content": {"ok": "yes"}}}
        options = CallOptions(questions="result", input_responses=reply, request_state=asked["requestState"])
        done = await run(AGENT, "r2", "read", params, 30, options=options)
        assert text_of(done) == 'read {"ask": true, "text": "[gone]"}'
        assert reply in answers


# Failing closed


def _raises(call: dict[str, Any]) -> None:
    raise RuntimeError(f"about {call['name']}")


async def _raises_late(call: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    raise ValueError


@pytest.mark.parametrize(
    "answer",
    [
        *(True, "ok", [], {"refuse": True}, {"refused": "typing error"}, {"refuse": "x", "arguments": {}}),
        *({"arguments": []}, {"arguments": {"text": "a"}, "result": {}}, {"result": {"content": []}}),
        *({"arguments": {"text": {1, 2}}}, {"arguments": {"text": float("nan")}}),
    ],
    ids=repr,
)
async def test_whatever_is_no_answer_before_refuses(answer: Any) -> None:
    assert (await Echo(on("before", answer)).refusal())[1] == NOT_RUN


@pytest.mark.parametrize("answer", [True, {"arguments": {}}, {"result": {}}, {"result": {"content": "x"}}], ids=repr)
async def test_whatever_is_no_answer_after_refuses(answer: Any) -> None:
    assert (await Echo(on("after", answer)).refusal())[1] == HIDDEN


@pytest.mark.parametrize("scan", [_raises, _raises_late])
async def test_an_error_refuses_and_is_for_the_log_only(scan: Any, caplog: pytest.LogCaptureFixture) -> None:
    message, refused = await Echo(scan).refusal()
    assert refused == NOT_RUN
    assert "Error" not in message
    assert "Error" in caplog.text


async def test_a_function_that_hangs_is_refused_at_its_deadline_and_delays_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = threading.Event()

    def hang(call: dict[str, Any]) -> None:
        if call["arguments"]["text"] == "hang":
            go.wait(60)

    monkeypatch.setitem(sys.modules, "hanging", SimpleNamespace(hang=hang))
    echo = Echo({"function": "hanging:hang", "deadline": 0.3})
    try:
        async with echo:
            hanging = asyncio.create_task(echo.call("hang", req_id="r0"))
            assert text_of(await echo.call("fine")) == "got fine"
            refused = await hanging
            assert (refused["code"], echo.ran) == (403, ["fine"])
    finally:
        go.set()


async def test_the_deadline_of_the_call_ends_a_scan_with_408() -> None:
    assert (await Echo(lambda call: asyncio.sleep(30)).refusal(timeout=0.3))[1] == (408, "not_run", [])


# Commands


def command(folder: Path, body: str, **more: Any) -> dict[str, Any]:
    """A scanner that is a Python program: `call` is what it is asked."""
    file = folder / "scan.py"
    file.write_text(f"import json, os, sys, time\ncall = json.load(sys.stdin)\n{body}\n", "utf-8")
    return {"name": "program", "command": sys.executable, "args": ["-S", str(file)], **more}


PASSES = "print(json.dumps({}))"
BEFORE = "print(json.dumps({} if call['when'] == 'after' else %s))"


async def test_a_command_reads_json_and_writes_its_answer(tmp_path: Path) -> None:
    upper = BEFORE % "{'arguments': {'text': call['arguments']['text'].upper()}}"
    for body, expected in ((PASSES, "got hello"), (upper, "got HELLO")):
        async with Echo(command(tmp_path, body)) as echo:
            assert text_of(await echo.call()) == expected
    message, refused = await Echo(command(tmp_path, BEFORE % "{'refuse': 'no ' + call['tool']}")).refusal()
    assert refused == NOT_RUN
    assert "no echo" in message


@pytest.mark.parametrize(
    "body",
    [
        *("", "print('yes')", "print('null')", f"{PASSES}; sys.exit(1)", f"{PASSES}; os.kill(os.getpid(), 9)"),
        *("print('{' * 100000)", "sys.stderr.write('why ' * 100000); sys.exit(3)"),
    ],
    ids=["silent", "not JSON", "null", "exit code", "killed", "deep", "loud"],
)
async def test_a_command_that_fails_refuses(tmp_path: Path, body: str, caplog: pytest.LogCaptureFixture) -> None:
    assert (await Echo(command(tmp_path, body)).refusal())[1] == NOT_RUN
    assert len(caplog.text) < 10_000
    assert "program" in caplog.text


@linux_only
async def test_a_command_is_killed_with_its_children_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"scan-{tmp_path.name}"
    monkeypatch.setenv("LC_MARKER", marker)
    sleeps = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    call = asyncio.create_task(Echo(command(tmp_path, sleeps, deadline=2)).refusal())
    await until(lambda: len(pids_with(marker)) >= 2)
    assert (await call)[1] == NOT_RUN
    await until(lambda: not pids_with(marker))


async def test_a_cancelled_call_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"scan-{tmp_path.name}"
    monkeypatch.setenv("LC_MARKER", marker)
    async with Echo(command(tmp_path, "time.sleep(600)", deadline=60)) as echo:
        call = asyncio.create_task(echo.call())
        await until(lambda: pids_with(marker))
        echo.computer.calls.cancel(AGENT, "r1")
        assert (await call)["code"] == 499
        await until(lambda: not pids_with(marker))


async def test_a_command_has_none_of_our_secrets_and_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2C_API_KEY", SECRET)
    body = BEFORE % "{'arguments': {'text': json.dumps(dict(os.environ)) + sys.argv[1]}}"
    config = command(tmp_path, body)
    async with Echo({**config, "args": [*config["args"], "$(id); `id`"]}) as echo:
        await echo.call()
    assert SECRET not in echo.ran[0]
    assert echo.ran[0].endswith("$(id); `id`")


async def test_a_large_result_passes_through_a_command(tmp_path: Path) -> None:
    async with Echo(
        command(tmp_path, "print(json.dumps({'result': call['result']} if call['when'] == 'after' else {}))")
    ) as echo:
        assert len(text_of(await echo.call("x" * 3_000_000))) == 3_000_004


# As it is written


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("redact:scan", {"function": "redact:scan"}),
        ("my.package.redact:scan", {"function": "my.package.redact:scan"}),
        ("examples/redact.py:scan", {"function": "examples/redact.py:scan"}),
        ("python3 redact.py --strict 'a b'", {"command": "python3", "args": ["redact.py", "--strict", "a b"]}),
        ({"command": "clamscan", "when": ["after"], "deadline": 60}, {"when": ["after"], "deadline": 60}),
    ],
)
def test_a_scanner_is_written_in_a_few_ways(written: Any, expected: dict[str, Any]) -> None:
    assert parse_scanner(written).model_dump().items() >= expected.items()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        *((5, "must be an object"), ("say 'hello", "quotation mark"), ("", "command")),
        *((wrong, "either a function or a command") for wrong in ({}, {"function": "a:b", "command": "c"})),
        *(
            ({"function": "no function"}, "module:function"),
            ({"function": "a:b", "args": ["x"]}, "belong to a command"),
        ),
        *(({"command": "c", "when": []}, "when: must not be empty"), ({"command": "c", "when": ["during"]}, "when")),
        *(({"command": "c", "deadline": seconds}, "deadline") for seconds in (0, 9999)),
        ({"command": "c", "wen": ["after"]}, "wen: there is no such field"),
    ],
)
def test_a_scanner_that_is_written_wrong_is_an_error(written: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_scanner(written)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("no_such_module:scan", "ModuleNotFoundError"),
        ("json:no_such_function", "AttributeError"),
        ("json:__name__", "not a function"),
        ("missing.py:scan", "FileNotFoundError"),
        ("no-such-command --x", "is not on PATH"),
    ],
)
def test_a_scanner_that_is_not_there_is_an_error_at_once(written: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Computer("laptop", scanners=[written])


def test_a_configuration_file_lists_scanners() -> None:
    found = parse_configuration('{"mcpServers": {}, "scanners": [{"function": "json:loads", "when": ["before"]}]}')
    assert [each.function for each in found.scanners] == ["json:loads"]
    assert found.unknown == ()
    with pytest.raises(ConfigError, match=r"scanners\.0: .*either"):
        parse_configuration('{"scanners": [{}]}')


@pytest.mark.covers("config-consent")
async def test_a_scanner_that_its_owner_has_declined_is_not_imported_by_the_next_start(tmp_path: Path) -> None:
    marker, file = tmp_path / "was-run", tmp_path / "servers.json"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w').close()\ndef scan(call):\n    return {{}}\n", "utf-8")
    file.write_text(json.dumps({"mcpServers": {}, "scanners": [{"function": f"{evil}:scan"}]}), "utf-8")
    environ = {**surroundings(tmp_path), "COLUMNS": "300"}
    RefusedChanges([file], digest_of_configuration, tmp_path / "a2c-smcp").note(read_all([file]), ["scanners: changed"])
    process = await start_program("computer", "--config", str(file), "--no-input", env=environ)
    said = b"".join(await process.communicate()).decode()
    assert process.returncode == 1
    assert "its owner has not agreed to: scanners: changed" in said
    assert not marker.exists()


# The example


@pytest.mark.covers("examples")
@pytest.mark.parametrize(
    "written", [f"{EXAMPLE}:scan", shlex.join([sys.executable, "-S", str(EXAMPLE)])], ids=["function", "command"]
)
async def test_the_example_redacts_e_mail_addresses(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path, written: str
) -> None:
    shifting = Shifting(tmp_path, default_tool_meta={"auto_apply": True}, scanners=[written])
    shifting.write(tool(inputSchema={"type": "object"}))
    async with hosted(shifting.computer, shared_hub.url, office, tmp_path / "state"):
        await ready(shifting.computer, "files")
        refused = await agent.call_tool("laptop", "read", params={"to": "ann@example.org"}, timeout=30)
        assert refused["code"] == 403
        assert "e-mail addresses stay here" in refused["message"]
        result = await agent.call_tool("laptop", "read", params={"to": "ann at example.org"}, timeout=30)
        assert text_of(result) == 'read {"to": "ann at example.org"}'
    echo = Echo(written)
    echo.computer.tool(lambda: "Ann <ann@example.org>, bob@mail.example.org.", name="contacts", auto_apply=True)
    async with echo:
        result = await echo.computer.execute_tool(AGENT, "r", "contacts", {}, 30)
    assert text_of(result) == "Ann <[e-mail]>, [e-mail]."
    assert "example.org" not in json.dumps(result)


async def test_what_a_scanner_replaces_is_logged_without_its_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Echo(on("after", {"result": content("other")})) as echo:
        await echo.call("sensitive")
    assert "replaced the result of 'echo'" in caplog.text
    assert "sensitive" not in caplog.text


@pytest.mark.covers("examples")
@pytest.mark.parametrize("source", ["example", "guide"])
@pytest.mark.parametrize("before", ["", "first line\n", "\t", '"', "\\"])
@pytest.mark.parametrize("address", ["ann@example.org", "ann@bücher.example", "änn@example.org"])
def test_no_text_around_an_address_spoils_the_example(source: str, before: str, address: str) -> None:
    code = EXAMPLE.read_text("utf-8") if source == "example" else GUIDE.read_text("utf-8")
    names: dict[str, Any] = {"__name__": "scanner"}
    exec(code if source == "example" else code.split("```python\n")[1].split("```")[0], names)
    assert "refuse" in names["scan"]({"when": "before", "arguments": {"to": [f"{before}{address}"]}})
    result = {"content": [{"type": "text", "text": f"{before}{address}"}], "structuredContent": {"to": address}}
    redacted = {"content": [{"type": "text", "text": f"{before}[e-mail]"}], "structuredContent": {"to": "[e-mail]"}}
    assert names["scan"]({"when": "after", "result": result}) == {"result": redacted}
