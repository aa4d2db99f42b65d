"""The audit file of a Server: each call and each refusal is one line, which is there before the answer arrives."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from select import select
from typing import Any

import aiohttp
import pytest
import socketio
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.audit.reading import EntryFilter, entries, verify
from a2c_smcp.console.operator.console import OperatorConsole
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, SMCPApp, create_app
from a2c_smcp.server.admin.operations import Who
from a2c_smcp.server.observation.recording import KeylessEntries, in_one_line
from a2c_smcp.server.routing_fields import NO_PARAMS, raw_params, read_tool
from a2c_smcp.server.run import listen, serving
from tests.console.browserless import Visitor
from tests.on_disk import content_of, full_disk
from tests.peer import Peer, Wire
from tests.stage.bound_keys import DEVICE, keys_file, session_at, sit
from tests.stage.calls import Gate, answer_all, both, call_by_hand, running_call
from tests.waiting import until

KEY = "canary-key-0123456789abcdef"
SECRET = "canary-argument-5f1c"
TOOL = "client:tool_call"


class Audited:
    """A Server with an audit file, its agent and its computer."""

    def __init__(self, hub: Any, connect: Any, file: Path, office: str) -> None:
        self.hub, self.connect, self.file, self.office = hub, connect, file, office
        self.agent: Peer
        self.computer: Peer

    async def member(self, role: str, name: str, **more: Any) -> Peer:
        peer: Peer = await self.connect(self.hub, auth={"token": KEY})
        await peer.join(role, name, self.office, **more)
        return peer

    def lines(self, event: str = "call") -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.file.read_text("utf-8").splitlines()]
        return [line for line in found if line["event"] == event and line.get("office", self.office) == self.office]

    async def until(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        async with asyncio.timeout(30):
            while len(found := self.lines(event)) < times:  # noqa: ASYNC110, a file says nothing when it grows
                await asyncio.sleep(0.01)
        return found


@pytest.fixture
async def audited(serve: Any, connect: Any, office: str, path: Path) -> Audited:
    limits = {"resume_grace": 0.5, "max_message": 200_000}
    hub = await serve(auth=DefaultAuthenticationProvider(KEY), audit=path, limits=limits)
    found = Audited(hub, connect, path, office)
    found.agent = await found.member("agent", "planner", instance="canary-instance-of-agent")
    found.computer = await found.member("computer", "laptop", instance="canary-instance-of-laptop")
    return found


async def test_a_refusal_over_http_is_recorded_before_its_answer_can_be_read(tmp_path: Path) -> None:
    app, listener = create_app(Settings(audit=tmp_path / "audit.jsonl")), listen("127.0.0.1", 0)
    loop, were_answered = asyncio.get_running_loop(), list[bool]()
    async with serving(app, listener):
        with socket.create_connection(listener.getsockname()) as client:
            client.setblocking(False)
            app.observation.record(lambda happened: were_answered.append(bool(select([client], [], [], 0)[0])))
            request = "GET /socket.io/?EIO=4&transport=polling&a2c_version=9 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            await loop.sock_sendall(client, request.encode())
            assert b" 400 " in await loop.sock_recv(client, 65536)
    assert were_answered == [False]


def result(text: str = "3", **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False, **more}


OUTCOMES = [
    (result(), "ok", None),
    (result(isError=True), "tool_error", None),
    (result(structuredContent={"isError": True, "error": {"code": 1}}), "ok", None),
    (
        {"error": {"code": 404, "message": "Tool not found", "details": {"outcome": "not_run"}}, "isError": True},
        "not_found",
        404,
    ),
    ({"error": {"code": 403, "message": "Forbidden", "details": {}}, "isError": True}, "denied", 403),
    ({"error": {"code": 10**30, "details": {"outcome": "done"}}, "isError": True}, "error", 10**30),
    ({"error": {"code": 404}, "isError": "no"}, "error", 500),
    (result(_meta={"error": {"code": 1}}, extra='"isError":true'), "ok", None),
    ("not a result", "error", 500),
    (result("\ud83d"), "ok", None),
    (result("x" * 150_000, isError=True), "tool_error", None),
]


@pytest.mark.parametrize(("answer", "outcome", "code"), OUTCOMES)
async def test_a_call_is_one_line_with_the_outcome_of_its_tool(
    audited: Audited, answer: Any, outcome: str, code: int | None
) -> None:
    audited.computer.answers(TOOL, answer)
    await audited.agent.call_tool("laptop", params={"path": SECRET}, _meta={"traceparent": "00-abc-def-01"})
    (line,) = audited.lines()
    assert (line["tool"], line["outcome"], line.get("code")) == ("add", outcome, code)
    assert (line["agent"], line["computer"], line["address"]) == ("planner", "laptop", "127.0.0.1")
    assert line["trace"] == "00-abc-def-01"
    assert line["bytes_in"] > 0 < line["bytes_out"]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_the_arguments_of_every_call_are_hashed_large_ones_too(audited: Audited, size: int) -> None:
    """A Server forgets a large request as soon as it is answered."""
    audited.computer.answers(TOOL, result())
    for path in ("a" * size, "a" * size, "b" * size):
        await audited.agent.call_tool("laptop", params={"path": path})
    first, again, other = (line["arguments"] for line in audited.lines())
    assert first == again != other


async def test_calls_of_one_turn_are_lines_of_their_own(audited: Audited) -> None:
    """Of two tools, with two outcomes, over one route and another."""
    gate = Gate(result())
    audited.computer.answers(TOOL, gate)
    calls = [(tool, f"{tool}-{number}") for number in range(8) for tool in ("add", "sub")]
    asked = [asyncio.create_task(audited.agent.call_tool("laptop", tool=tool, req_id=each)) for tool, each in calls]
    await audited.computer.was_asked(TOOL, len(calls))
    gate.open()
    await asyncio.gather(*asked)
    assert sorted((line["tool"], line["req_id"]) for line in audited.lines()) == sorted(calls)
    assert verify(audited.file)[0] == []


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"computer": "nobody"}, 404),
    ({"computer": "laptop", "timeout": 0}, 400),
    ({"computer": "laptop", "params": 7}, 400),
    ({"computer": "laptop", "agent": "somebody else"}, 403),
    ({"computer": "laptop", "params": {"x": "y" * 300_000}}, 413),
]


@pytest.mark.parametrize(("more", "code"), REFUSED)
async def test_a_call_that_is_refused_is_one_line(audited: Audited, more: dict[str, Any], code: int) -> None:
    call = {"agent": "planner", "req_id": "r1", "tool_name": "add", "params": {}, "timeout": 5, **more}
    await audited.agent.ask(TOOL, call)
    (line,) = audited.lines()
    assert line["code"] == code
    assert line["tool"] == (None if code == 413 else "add")
    assert line["bytes_in"] > len(json.dumps(call, separators=(",", ":")))


async def test_a_sealed_call_has_no_tool(audited: Audited) -> None:
    audited.computer.answers("client:sealed", {"req_id": "r1", "sealed": "AAAA"})
    sealed = {"office_id": audited.office, "timeout": 5, "kid": "a" * 22, "sealed": "AAAA"}
    answer = await audited.agent.request("client:sealed", "laptop", **sealed)
    (line,) = audited.lines()
    assert (line["tool"], line["sealed"]) == (None, True), answer


async def test_duplicates_and_kept_answers_are_the_same_call(audited: Audited) -> None:
    gate = Gate(result())
    audited.computer.answers(TOOL, gate)
    calls = [asyncio.create_task(audited.agent.call_tool("laptop", req_id="r1")) for _ in range(3)]
    await audited.computer.was_asked(TOOL)
    gate.open()
    await asyncio.gather(*calls)
    await audited.agent.call_tool("laptop", req_id="r1")
    assert len(audited.lines()) == 1
    await audited.agent.call_tool("laptop", tool="other", req_id="r1")
    assert [line.get("code") for line in audited.lines()] == [None, 400]


async def test_cancels_and_deadlines_are_recorded_once(audited: Audited) -> None:
    call = await running_call(audited.agent, audited.computer, Gate(), req_id="r1", timeout=60)
    await audited.agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    await call
    (line,) = audited.lines()
    assert line["outcome"] == "cancelled"
    (cancel,) = [line for line in map(json.loads, audited.file.read_text().splitlines()) if line["event"] == "cancel"]
    assert cancel["req_id"] == "r1"
    await audited.agent.call_tool("laptop", req_id="r2", timeout=1)
    assert [each["outcome"] for each in audited.lines()] == ["cancelled", "timeout"]


async def test_a_computer_that_is_lost_in_a_call_and_one_that_comes_back(audited: Audited) -> None:
    call = await running_call(audited.agent, audited.computer, Gate(), req_id="r1")
    await audited.computer.drop()
    back = await audited.connect(audited.hub, auth={"token": KEY})
    back.answers(TOOL, result())
    await back.join("computer", "laptop", audited.office, instance="canary-instance-of-laptop")
    assert not (await call)["isError"]
    (line,) = audited.lines()
    assert line["outcome"] == "ok"
    (taken,) = await audited.until("taken over")
    assert (taken["role"], taken["name"]) == ("computer", "laptop")
    assert len(audited.lines("joined")) == 2
    back.answers(TOOL, Gate())
    call = asyncio.create_task(audited.agent.call_tool("laptop", req_id="r2"))
    await back.was_asked(TOOL, 2)
    await back.drop()
    assert (await call)["error"]["code"] == 404
    assert [each["outcome"] for each in audited.lines()] == ["ok", "not_found"]
    (left,) = await audited.until("left")
    assert left["lost"] is True


async def test_each_refusal_is_one_line_and_nothing_secret_is_in_the_file(audited: Audited) -> None:
    with pytest.raises(socketio.exceptions.ConnectionError):
        await audited.connect(audited.hub, auth={"token": "canary-wrong-key-0123456789"})
    assert [line["code"] for line in audited.lines("refused")] == [401]
    answer = await audited.agent.ask(
        "server:join_office", {"role": "computer", "name": "x", "office_id": audited.office}
    )
    assert answer[0] is False
    (line,) = audited.lines("request refused")
    assert (line["request"], line["code"]) == ("server:join_office", 403)
    audited.computer.answers("client:get_config", {"servers": {}, "canary": 1})
    await audited.agent.request("client:get_config", "laptop")
    (read,) = audited.lines("config read")
    assert (read["outcome"], "ms" in read, "seconds" in read) == ("ok", True, False)
    audited.computer.answers(TOOL, result("canary-result"))
    await audited.agent.call_tool("laptop", params={"path": SECRET})
    assert "canary" not in audited.file.read_text("utf-8")
    assert verify(audited.file)[0] == []


@pytest.mark.covers("keyless-refusals")
async def test_who_has_no_key_gets_few_lines_and_a_sum_whatever_it_tries(
    serve: Any, connect: Any, office: str, path: Path
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(KEY), audit=path)
    audited = Audited(hub, connect, path, office)
    audited.agent = await audited.member("agent", "planner")
    async with aiohttp.ClientSession() as session:
        for number in range(150):
            version = f"9.{number % 2}"
            where = f"{hub.url}/socket.io/?EIO=4&transport=polling&a2c_version={version}"
            async with session.get(where, headers={"X-Forwarded-For": f"10.0.0.{number}"}) as response:
                assert response.status == 400
    for _ in range(30):  # it has a key: each of its lines stays
        assert (await audited.agent.ask_to_join("computer", "x", office))[0] is False
    few = len(audited.lines("refused"))
    assert 0 < few <= 20
    assert len(audited.lines("request refused")) == 30
    await hub.app.close()
    *_, last = audited.lines("refused")
    assert (last["times"], last["addresses"], last["code"]) == (150 - few, 1, 4008)
    assert verify(path)[0] == []


@pytest.mark.covers("keyless-refusals")
async def test_a_sum_is_written_when_its_time_is_over_and_counting_begins_again() -> None:
    written: list[Any] = []
    keyless = KeylessEntries(written.extend, period=0.05)
    for _ in range(2):
        written.clear()
        admitted = [keyless.admits({"event": "refused", "code": 401, "address": str(n)}) for n in range(50)]
        await until(lambda: written)
        assert written == [{"event": "refused", "code": 401, "times": 30, "addresses": 30}]
        assert admitted == [True] * 20 + [False] * 30


FORGED = '{"n":99,"time":"2026-11-18T06:35:36.246Z","event":"call","tool":"forged","hash":"' + "0" * 32 + '"}'
HOSTILE = [
    '{"a":[\n' + FORGED + "\n]}",
    '{"a":[\r\n' + FORGED + "\r\n]}",
    '{"a":\t"\\ud800",\n"b":[\n' + FORGED + "\n]}",
    '{"a":"\\ud800"}',
    '{"a":"\\u2028\u2028\u0085\x7f"}',
    '{"a":1' + "0" * 5000 + "}",
    '{"a":1e999}',
    '{"a":NaN}',
    '{"a":-}',
    '{"a":1,"a":[' + "\n" * 1000 + "]}",
    '{"a":' + "[" * 250 + "]" * 250 + "}",
    '{"a":' + "[" * 900 + "\n" + "]" * 900 + "}",
    '{"a":' + "[" * 5000 + "]" * 5000 + "}",
    '{"a":' + "[\n" * 100_000 + "]" * 100_000 + "}",
]


Records = Callable[..., Awaitable[tuple[Path, list[dict[str, Any]]]]]


@pytest.fixture
def records(serve: Any, connect_wire: Callable[..., Awaitable[Wire]], office: str, path: Path) -> Records:
    """The audit file after calls with payloads that are written by hand, and its lines of calls."""

    async def record(*payloads: str, **settings: Any) -> tuple[Path, list[dict[str, Any]]]:
        agent, computer = await both(connect_wire, await serve(audit=path, **settings), office)
        answering = asyncio.create_task(answer_all(computer))
        for number, payload in enumerate(payloads):
            about = f'"agent":"planner","computer":"laptop","timeout":5,"req_id":"r{number}"'
            await agent.ask(f'42/smcp,{number}["client:tool_call",{{{about},{payload}}}]', number)
        answering.cancel()
        return path, list(entries(path, EntryFilter({"event": "call"})))

    return record


@pytest.mark.parametrize("with_arguments", [False, True], ids=["hashed", "as they are"])
async def test_no_arguments_forge_lose_or_break_a_line(records: Records, *, with_arguments: bool) -> None:
    payloads = [f'"tool_name":"add","params":{params}' for params in HOSTILE]
    path, lines = await records(*payloads, audit_arguments=with_arguments)
    ids = [f"r{number}" for number in range(len(HOSTILE))]
    assert [line.get("req_id", req_id) for line, req_id in zip(lines, ids, strict=True)] == ids
    assert {line["code"] for line in lines if "req_id" not in line} <= {400}
    assert path.read_bytes().count(b"\n") == len(list(entries(path, EntryFilter())))
    assert verify(path)[0] == []


HIDING = [
    '"x":"\\ud800"',
    '"\\ud800":1',
    '"_meta":{"traceparent":"00-abc-def-01","x":"\\ud800"}',
    '"_meta":{"traceparent":5,"x":"\\ud800"}',
    '"x":"\\ud83d"' + ',"y":' + "[" * 200 + "]" * 200,
    '"x":"' + "y" * 200_000 + '\\ud800"',
]


async def test_nothing_beside_a_tool_hides_its_name_neither_in_its_line_nor_in_later_ones(records: Records) -> None:
    beside = [fields for hiding in HIDING for fields in (hiding, '"x":1')]
    _, lines = await records(*(f'"params":{{}},{fields},"tool_name":"delete"' for fields in beside))
    assert [(line["tool"], line["outcome"]) for line in lines] == [("delete", "ok")] * 2 * len(HIDING)
    assert [line["req_id"] for line in lines if "trace" in line] == ["r4"]


REAL = r'{"a" : "\ud800"}'
FALSE = r'{"a" : "\ue800"}'
DECOYS = [
    f'"x":{FALSE}',
    rf'"a\ud800":[{FALSE}], "params":{FALSE}',
    r'"x{":"\"}", "":' + FALSE + ',"y":{"params":' + FALSE + "}",
    f'"x":1e400,"y":{"9" * 40},"é\u2028":{FALSE}',
    r'"p\u0061rams": ' + FALSE,
]


@pytest.mark.parametrize("decoy", DECOYS)
async def test_nothing_beside_the_arguments_stands_in_for_them(records: Records, decoy: str) -> None:
    _, lines = await records(f'{decoy} ,\t"params" : {REAL} , "tool_name":"add"', audit_arguments=True)
    assert [line["arguments"] for line in lines] == [{"a": "\ud800"}]


def test_large_arguments_that_nothing_tells_from_others_are_not_recorded() -> None:
    beside = '"y":"' + "y" * 200_000 + '"'
    body = f'{{"tool_name":"add","x":{FALSE},{beside},"params":{REAL}}}'.encode()
    assert (bytes(raw_params(body)), read_tool(body).params) == (body, NO_PARAMS)
    alone = f'{{"tool_name":"add",{beside},"params":{REAL}}}'.encode()
    assert bytes(raw_params(alone)) == bytes(read_tool(alone).params) == REAL.encode()
    assert raw_params(b'{"x":"\\ud800"}') == b""


ODD = st.recursive(
    st.sampled_from(["0", "-0.5e3", "1e999", "true", "null", r'"\ud800"', r'"\n\u2028"', "9" * 40, f'"{"x" * 50}"'])
    | st.text(st.characters(exclude_categories=["Cs"])).map(json.dumps),
    lambda inner: st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]"),
    max_leaves=6,
)
SPACES = st.text(alphabet=" \t\r\n", max_size=4)


@given(parts=st.lists(st.tuples(SPACES, ODD, SPACES), max_size=4))
def test_json_in_one_line_is_the_same_json(parts: list[tuple[str, str, str]]) -> None:
    text = "[" + ",".join(map("".join, parts)) + "]"
    compact = in_one_line(text.encode())
    assert compact is not None or "1e999" in text
    if compact is not None:
        assert b"\n" not in bytes(compact)
        assert json.loads(bytes(compact)) == json.loads(text)


async def test_a_call_names_the_device_of_the_computer_that_answered(
    path: Path, serve: Any, office: str, tmp_path: Path
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(keys_file=keys_file(tmp_path)), audit=path)
    async with session_at(hub.url) as agent, session_at(hub.url) as computer:
        await sit(office, agent, computer)
        answering = asyncio.create_task(answer_all(computer.wire))
        await agent.wire.ask(call_by_hand(7, "r1"), 7)
        answering.cancel()
        await agent.wire.ask(call_by_hand(8, "r2", timeout=1), 8)
    first, second = entries(path, EntryFilter({"event": "call"}))
    assert first["device"] == first["computer_device"] == DEVICE.fingerprint
    assert (second["outcome"], "computer_device" in second) == ("timeout", False)


ADMIN = "canary-admin-key-0123456789"


@pytest.fixture
def app(path: Path) -> SMCPApp:
    """A Server that an operator may sign in to. The test closes it."""
    return create_app(Settings(admin_key=ADMIN, audit=path))


@pytest.fixture
def console(app: SMCPApp) -> OperatorConsole:
    assert app.operations
    assert app.admin_access
    return OperatorConsole(app.operations, app.admin_access)


async def test_signing_in_to_the_operators_console_and_out_is_recorded(
    app: SMCPApp, console: OperatorConsole, path: Path
) -> None:
    visitor = Visitor(console)
    await visitor.post("/console/sign-in", {"key": "canary-wrong"})
    await visitor.act("/console/sign-in", key=ADMIN)
    await visitor.act("/console/sign-out")
    await Visitor(console).open(console.link(""), "/console")
    await app.close()
    found = [line.get("action", line["event"]) for line in entries(path, EntryFilter())]
    in_order = ["refused", "console sign-in", "console sign-out", "console sign-in"]
    assert found == ["audit opened", *in_order, "audit closed"]
    assert b"canary" not in content_of(path)


@pytest.mark.parametrize(
    ("language", "told"),
    [("en", "That is no admin key of this Server"), ("zh-CN", "这不是此 Server 的管理密钥")],
)
async def test_a_wrong_admin_key_on_the_form_is_told_to_its_visitor_and_to_the_operator(
    app: SMCPApp, console: OperatorConsole, path: Path, language: str, told: str
) -> None:
    visitor = Visitor(console)
    answered = await visitor.post("/console/sign-in", {"key": "canary-wrong"})
    page = await visitor.get(json.loads(answered.body)["goes_to"], **{"accept-language": language})
    assert (page.status, told in page.body, "API key is not accepted" in page.body) == (401, True, False)
    await app.close()
    (refused,) = entries(path, EntryFilter({"event": "refused"}))
    assert refused["reason"] == "this is no admin key of this Server; a client's API key is not accepted here"


async def test_trouble_of_the_audit_file_is_in_the_metrics(app: SMCPApp, path: Path) -> None:
    assert app.operations
    with full_disk(len(content_of(path))):
        for _ in range(3):
            app.operations.report("x" * 600_000, Who(None))
        assert app.metrics.value("a2c_audit_failing") == 1
        assert app.metrics.value("a2c_audit_lost_total") == 1
    await app.close()
    assert app.metrics.value("a2c_audit_failing") == 0
