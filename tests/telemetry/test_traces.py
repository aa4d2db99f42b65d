"""One call as one trace through four processes: the caller's program, the Server, a computer and an MCP server."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.programs import Place
from tests.program import forked

PROGRAMS = Path(__file__).parent / "programs"
SERVICES = ("program", "server", "computer", "tools")


class Span(NamedTuple):
    """A span as a file has it."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    is_error: bool
    began: int
    ended: int

    def has(self, **attributes: Any) -> bool:
        return all(self.attributes.get(name.replace("__", ".")) == value for name, value in attributes.items())


KINDS = {1: "internal", 2: "server", 3: "client"}


def spans_in(file: Path) -> list[Span]:
    found = []
    for line in file.read_text("utf-8").splitlines():
        (resource,) = json.loads(line)["resourceSpans"]
        service = next(
            a["value"]["stringValue"] for a in resource["resource"]["attributes"] if a["key"] == "service.name"
        )
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            attributes = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
            times = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            ids = span["traceId"], span["spanId"], span.get("parentSpanId", "")
            kind, is_error = KINDS[span["kind"]], span["status"]["code"] == 2
            found.append(
                Span(service.removeprefix("a2c-smcp "), span["name"], kind, *ids, attributes, is_error, *times)
            )
    return found


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    """The spans of some calls, after all programs have ended."""
    folder = tmp_path_factory.mktemp("traces")
    asyncio.run(some_calls(folder))
    return [span for service in SERVICES for span in spans_in(folder / f"{service}.jsonl")]


async def some_calls(folder: Path) -> None:
    place = Place(folder)
    tools = {
        "command": sys.executable,
        "args": [str(PROGRAMS / "tools_server.py"), str(folder / "tools.jsonl")],
        "tool_meta": {"book": {"auto_apply": False}},
        "default_tool_meta": {"auto_apply": True},
    }
    config = place.write({"tools": tools})
    try:
        server = await place.start("server", "--port", "0", A2C_TRACE_FILE=str(folder / "server.jsonl"))
        url = (await server.says("listening on ")).removeprefix("listening on ")
        words = ("--name", "laptop", "--url", url, "--config", str(config), "--approve-by", "client")
        computer = await place.start("computer", *words, A2C_TRACE_FILE=str(folder / "computer.jsonl"))
        await computer.says("joined ")
        await computer.says("ready")
        program = await asyncio.create_subprocess_exec(
            *forked(PROGRAMS / "agent_program.py", url, folder / "program.jsonl"),
            stdout=-1,
            env=place.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        out, _ = await program.communicate()
        assert out.decode().splitlines() == [
            "add 3",
            "fail Error executing tool fail",
            "book Monday: 4",
            "missing 404",
            "count 20000",
        ]
        for each in (computer, server):
            each.signal(signal.SIGTERM)
            assert await each.ends() == 0
    finally:
        await place.end()


def trace_of(spans: list[Span], name: str) -> list[Span]:
    """All spans of the trace that the caller's program began under this name, in the order in which they began."""
    (root,) = [span for span in spans if span.name == name]
    assert (root.service, root.parent) == ("program", "")
    return sorted((span for span in spans if span.trace == root.trace), key=lambda span: span.began)


def tree_of(spans: list[Span]) -> list[str]:
    """The spans as `service: name`, indented below their parents."""

    def below(parent: str, depth: int) -> list[str]:
        lines = []
        for span in spans:
            if span.parent == parent:
                lines += ["  " * depth + f"{span.service}: {span.name} ({span.kind})", *below(span.id, depth + 1)]
        return lines

    return below("", 0)


@pytest.mark.covers("traces")
def test_a_call_is_one_trace_below_the_span_of_the_callers_program(spans: list[Span]) -> None:
    found = trace_of(spans, "work with add")
    assert tree_of(found) == [
        "program: work with add (internal)",
        "  program: execute_tool add (client)",
        "    server: client:tool_call (server)",
        "    computer: execute_tool add (server)",
        "      computer: tools/call add (client)",
        "        tools: tools/call add (server)",
        "          tools: inside the tool (internal)",
    ]
    assert not any(span.is_error for span in found)
    for span in found:
        parent = next((each for each in found if each.id == span.parent), span)
        assert parent.began <= span.began
        if parent.service == span.service:
            assert span.ended <= parent.ended


@pytest.mark.covers("traces")
def test_spans_have_the_attributes_of_the_conventions(spans: list[Span]) -> None:
    _, agent, server, computer, request, tool, _ = trace_of(spans, "work with add")
    req_id = agent.attributes["a2c.req_id"]
    tool_call = {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "add"}
    assert agent.has(**tool_call, gen_ai__tool__call__id=req_id, a2c__computer="laptop", rpc__method="client:tool_call")
    assert server.has(a2c__req_id=req_id, a2c__office="desk", a2c__computer="laptop", a2c__outcome="ok")
    assert computer.has(**tool_call, a2c__req_id=req_id, a2c__office="desk", a2c__agent="planner")
    assert request.has(**tool_call, mcp__method__name="tools/call", network__transport="pipe")
    assert request.attributes["mcp.protocol.version"] == tool.attributes["mcp.protocol.version"]
    assert request.attributes["jsonrpc.request.id"] == tool.attributes["jsonrpc.request.id"]


@pytest.mark.covers("traces")
def test_an_approval_and_a_question_are_spans_of_their_own(spans: list[Span]) -> None:
    found = trace_of(spans, "work with book")
    shown = tree_of(found)
    inside = [line.strip() for line in shown]
    assert inside[:4] == [
        "program: work with book (internal)",
        "program: execute_tool book (client)",
        "server: client:tool_call (server)",
        "computer: execute_tool book (server)",
    ]
    (approval,) = [span for span in found if span.name == "a2c.approval"]
    (question,) = [span for span in found if span.name == "a2c.question"]
    (call,) = [span for span in found if span.service == "computer" and span.kind == "server" and "book" in span.name]
    assert approval.parent == call.id
    assert approval.ended <= question.began
    assert question.has(a2c__answer="accept", a2c__mcp_server="tools")
    by_id = {span.id: span for span in found}
    assert question.parent in by_id
    answers = [span for span in found if span.name == "client:answer_question"]
    assert {span.service for span in answers} <= {"program", "server"}


@pytest.mark.covers("traces")
@pytest.mark.parametrize(("tool", "error_type"), [("fail", "tool_error"), ("missing", "ToolNotFound")])
def test_a_failure_is_marked_without_its_text(spans: list[Span], tool: str, error_type: str) -> None:
    found = trace_of(spans, f"work with {tool}")
    failed = {
        (span.service, span.attributes.get("error.type")) for span in found if span.is_error and span.service != "tools"
    }
    assert ("program", error_type) in failed
    assert ("computer", error_type) in failed


@pytest.mark.covers("traces")
def test_a_large_request_which_the_server_forgets_has_its_span(spans: list[Span]) -> None:
    (server,) = [span for span in trace_of(spans, "work with count") if span.service == "server"]
    assert server.has(gen_ai__tool__name="count", a2c__outcome="ok")


@pytest.mark.covers("traces")
def test_other_requests_are_part_of_the_callers_trace_too(spans: list[Span]) -> None:
    found = [(span.service, span.name) for span in trace_of(spans, "work with a list")]
    assert ("program", "client:get_tools") in found
    assert ("server", "client:get_tools") in found


def test_a_file_of_spans_is_private_to_its_owner(tmp_path: Path) -> None:
    from a2c_smcp.telemetry.exporting import _file_writer

    _file_writer(tmp_path / "spans.jsonl")(b"{}\n")
    assert (tmp_path / "spans.jsonl").stat().st_mode & 0o777 == 0o600


_LATE = """
import sys, time
from pathlib import Path
from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.observation import HandshakeRefused
from a2c_smcp.telemetry.exporting import export_traces

app = create_app(Settings())
assert not app.observation.is_watched, "without a provider, calls are not told of"
export_traces("server", Path(sys.argv[1]))
app.observation.report(HandshakeRefused("127.0.0.1", NotAuthenticated()))
assert app.observation.is_watched
"""


@pytest.mark.covers("traces")
def test_a_provider_that_is_set_after_the_server_was_made_is_used_from_the_next_client_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LATE, str(tmp_path / "spans.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
