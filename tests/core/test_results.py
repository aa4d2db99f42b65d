"""Tool results to and from the wire, and the answers to failed requests."""

from typing import Any

import pytest

from a2c_smcp import errors
from a2c_smcp.protocol.events import lookup
from a2c_smcp.protocol.results import CallToolResult, computer_error_ack, error_ack, failed_call

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "data": "AA==", "mimeType": "image/png"}


@pytest.mark.parametrize(
    "wire",
    [
        {"content": [], "isError": False},
        {"content": [TEXT, IMAGE], "isError": True},
        {"content": [TEXT], "isError": False, "structuredContent": {"n": 2**70}, "_meta": {"a2c_x": "y"}},
        {"content": [], "isError": False, "structuredContent": {}},
        {"content": [], "isError": False, "newer": {"than": "us"}, "error": {"code": 499}},
    ],
)
def test_a_result_comes_back_from_the_wire_as_it_was(wire: dict[str, Any]) -> None:
    assert CallToolResult.from_wire(wire).to_wire() == wire


def test_a_result_is_spelled_as_mcp_spells_it() -> None:
    result = CallToolResult([TEXT], is_error=True, structured_content={"a": 1}, meta={"k": "v"})
    assert result.to_wire() == {"content": [TEXT], "isError": True, "structuredContent": {"a": 1}, "_meta": {"k": "v"}}


def test_meta_is_accepted_for_underscore_meta_and_written_as_mcp_does() -> None:
    result = CallToolResult.from_wire({"content": [], "meta": {"k": "v"}})
    assert result.meta == {"k": "v"}
    assert result.to_wire()["_meta"] == {"k": "v"}
    assert "meta" not in result.to_wire()


def test_underscore_meta_wins_over_meta() -> None:
    assert CallToolResult.from_wire({"_meta": {"a": 1}, "meta": {"b": 2}}).meta == {"a": 1}


@pytest.mark.parametrize("wire", [{}, {"content": None}, {"content": "text"}, {"isError": None, "_meta": None}])
def test_fields_that_a_result_leaves_out_are_empty(wire: dict[str, Any]) -> None:
    assert CallToolResult.from_wire(wire) == CallToolResult()


def test_reading_leaves_the_answer_as_it_was() -> None:
    wire = {"content": [TEXT], "isError": False, "_meta": {"k": "v"}, "newer": 1}
    CallToolResult.from_wire(wire)
    assert set(wire) == {"content", "isError", "_meta", "newer"}


@pytest.mark.parametrize("answer", [None, True, "text", 5, [], [TEXT]])
def test_an_answer_that_is_no_object_is_no_result(answer: object) -> None:
    with pytest.raises(errors.SMCPError):
        CallToolResult.from_wire(answer)


def test_the_text_of_a_result_is_that_of_its_text_blocks() -> None:
    blocks: list[Any] = [TEXT, IMAGE, {"type": "text", "text": None}, "no block", None, TEXT]
    assert CallToolResult.from_wire({"content": blocks}).text == "hello\nhello"


@pytest.mark.covers("error-shape")
@pytest.mark.parametrize("name", ["server:join_office", "server:leave_office"])
def test_a_refused_join_or_leave_is_answered_with_two_arguments(name: str) -> None:
    error = errors.OfficeHasAgent("office 'o' has an agent already")
    expected = (False, "403 Agent sid should be equal to office_id: office 'o' has an agent already")
    assert error_ack(lookup(name), error) == expected


@pytest.mark.covers("error-shape")
@pytest.mark.parametrize(
    "name",
    [
        *("client:get_tools", "client:get_config", "client:get_desktop", "client:newer", "client:get_mcp_config"),
        *("server:list_room", "server:tool_call_cancel", "server:update_config", "server:update_newer"),
    ],
)
def test_any_other_failure_is_answered_with_the_error_object(name: str) -> None:
    error = errors.ComputerNotFound("'pc'", computer="pc")
    assert error_ack(lookup(name), error) == error.to_wire()


@pytest.mark.covers("error-shape")
def test_an_event_without_a_row_is_answered_with_the_error_object() -> None:
    assert error_ack(None, errors.SMCPError()) == errors.SMCPError().to_wire()


@pytest.mark.covers("error-shape")
def test_a_failed_tool_call_is_an_error_and_a_valid_mcp_result_at_once() -> None:
    ack = error_ack(lookup("client:tool_call"), errors.ToolNotFound("'x'", toolId="x"))
    error = {"code": 404, "message": "No such tool: 'x'", "details": {"toolId": "x", "outcome": "not_run"}}
    text = {"type": "text", "text": "No such tool: 'x'"}
    assert ack == {"error": error, **error, "isError": True, "content": [text]}
    assert CallToolResult.from_wire(ack).text == "No such tool: 'x'"
    assert isinstance(errors.SMCPError.from_wire(ack), errors.ToolNotFound)


@pytest.mark.covers("error-shape")
def test_a_cancelled_call_says_so_in_its_meta() -> None:
    ack = failed_call(errors.CallCancelled())
    marks = {"a2c_cancelled": True, "a2c_cancel_reason": "agent_requested"}
    assert (ack["code"], ack["isError"], ack["_meta"]) == (499, True, marks)


@pytest.mark.covers("peer-marks")
def test_a_tool_that_took_too_long_is_marked_and_a_call_that_never_began_is_not() -> None:
    assert failed_call(errors.CallTimeout())["_meta"] == {"a2c_timeout": True}
    assert "_meta" not in failed_call(errors.CallTimeout(outcome="not_run"))
    assert "_meta" not in failed_call(errors.ToolNotFound("'x'"))


@pytest.mark.covers("calls-outcome")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.ToolNotFound("'x'"), "not_run"),
        (errors.CallTimeout("'x'"), "unknown"),
        (errors.CallTimeout("'x'", outcome="not_run"), "not_run"),
        (errors.ResultGone("'r'", outcome="done"), "done"),
    ],
)
def test_a_failed_tool_call_says_whether_the_tool_has_run(error: errors.SMCPError, outcome: str) -> None:
    ack = failed_call(error)
    assert ack["details"]["outcome"] == ack["error"]["details"]["outcome"] == outcome


def test_only_tool_calls_have_an_outcome() -> None:
    assert error_ack(lookup("client:get_tools"), errors.ToolNotFound())["details"] == {}


@pytest.mark.covers("peer-marks")
def test_an_error_of_the_published_generation_that_has_no_content_is_still_told() -> None:
    structured = {"error": "Tool 'x' not found", "error_type": "ValueError"}
    answer = {"isError": True, "content": [], "structuredContent": structured, "meta": None}
    assert CallToolResult.from_wire(answer).text == "Tool 'x' not found"
    assert CallToolResult.from_wire({**answer, "isError": False}).text == ""
    assert CallToolResult.from_wire({**answer, "structuredContent": {"error": 7}}).text == ""
    assert CallToolResult.from_wire({**answer, "structuredContent": ["x"]}).text == ""


@pytest.mark.covers("peer-errors", "error-shape")
@pytest.mark.parametrize(
    ("event", "code"),
    [("get_resources", 4014), ("get_skills", 404), ("get_skill", 4017), ("get_blob", 4018), ("put_blob", 4019)],
)
def test_an_error_has_a_code_that_published_agents_know_and_its_own_for_ours(event: str, code: int) -> None:
    row = lookup(f"client:{event}")
    for error, reason in (
        (errors.BadRequest("cursor: must be a string", field="cursor"), "forbidden"),
        (errors.CallTimeout("too slow"), "forbidden"),
        (errors.RateLimited(), "busy"),
        (errors.TooLarge(), "too_large"),
        (errors.SMCPError(), "forbidden"),
    ):
        ack = computer_error_ack(row, error)
        assert isinstance(ack, dict)
        assert (ack["code"], ack["message"], ack["details"]["reason"]) == (code, error.message, reason)
        assert ack["error"] == error.to_wire()["error"]
        assert type(errors.SMCPError.from_wire(ack)) is type(error)
    for known in (errors.CapabilityNotSupported("no", mcp_server="s", capability="resources"), errors.ComputerLeft()):
        assert computer_error_ack(row, known) == known.to_wire()
