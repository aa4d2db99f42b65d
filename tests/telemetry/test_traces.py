"""One call as one trace through four processes: the caller's program, the Server, a computer and an MCP server."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import forked
from tests.stage.place import Place
from tests.stage.spans import PROGRAMS, Span, spans_in, trace_of

pytestmark = pytest.mark.covers("traces")

PASSWORD = "hunter2xyz"
SERVICES = ("program", "server", "computer", "tools")


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
        "env": {"DB_URL": f"postgres://admin:{PASSWORD}@db/x"},
    }
    config = place.write({"tools": tools})
    try:
        server = await place.start("server", "--port", "0", A2C_TRACE_FILE=str(folder / "server.jsonl"))
        url = await server.listens()
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
            "postgres://***@db/x no rows",
        ]
        for each in (computer, server):
            each.signal(signal.SIGTERM)
            assert await each.ends() == 0
    finally:
        await place.end()


def tree_of(spans: list[Span]) -> list[str]:
    """The spans as `service: name`, indented below their parents."""

    def below(parent: str, depth: int) -> list[str]:
        lines = []
        for span in spans:
            if span.parent == parent:
                lines += ["  " * depth + f"{span.service}: {span.name} ({span.kind})", *below(span.id, depth + 1)]
        return lines

    return below("", 0)


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


@pytest.mark.parametrize(("tool", "error_type"), [("fail", "tool_error"), ("missing", "ToolNotFound")])
def test_a_failure_is_marked_without_its_text(spans: list[Span], tool: str, error_type: str) -> None:
    found = trace_of(spans, f"work with {tool}")
    failed = {
        (span.service, span.attributes.get("error.type")) for span in found if span.is_error and span.service != "tools"
    }
    assert ("program", error_type) in failed
    assert ("computer", error_type) in failed


def test_a_large_request_which_the_server_forgets_has_its_span(spans: list[Span]) -> None:
    (server,) = [span for span in trace_of(spans, "work with count") if span.service == "server"]
    assert server.has(gen_ai__tool__name="count", a2c__outcome="ok")


def test_other_requests_are_part_of_the_callers_trace_too(spans: list[Span]) -> None:
    found = [(span.service, span.name) for span in trace_of(spans, "work with a list")]
    assert ("program", "client:get_tools") in found
    assert ("server", "client:get_tools") in found


@pytest.mark.covers("traces", "secrets-masked")
def test_the_password_in_the_uri_of_a_resource_is_in_no_span_of_ours(spans: list[Span]) -> None:
    (read,) = [span for span in spans if span.service == "computer" and span.name == "resources/read"]
    assert read.has(mcp__method__name="resources/read", network__transport="pipe")
    assert PASSWORD not in repr([span for span in spans if span.service != "tools"])


def test_a_file_of_spans_is_private_to_its_owner(tmp_path: Path) -> None:
    from a2c_smcp.telemetry.exporting import _file_writer

    _file_writer(tmp_path / "spans.jsonl")(b"{}\n")
    assert (tmp_path / "spans.jsonl").stat().st_mode & 0o777 == 0o600


_LATE = """
import sys, time
from pathlib import Path
from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.observation.happened import HandshakeRefused
from a2c_smcp.telemetry.exporting import export_traces

app = create_app(Settings())
assert not app.observation.is_watched, "without a provider, calls are not told of"
export_traces("server", Path(sys.argv[1]))
app.observation.report(HandshakeRefused("127.0.0.1", NotAuthenticated()))
assert app.observation.is_watched
"""


def test_a_provider_that_is_set_after_the_server_was_made_is_used_from_the_next_client_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LATE, str(tmp_path / "spans.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
