"""The event table and what is looked up in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.errors import UnsupportedEvent
from a2c_smcp.protocol.events import EVENTS, OLDER_FIELDS, OLDER_NOTICES, Action, lookup
from tests.core import specification

OLDER = {  # WIRE §2
    "client:get_mcp_config": "client:get_config",
    "server:update_mcp_config": "server:update_config",
    "server:desktop_refresh": "server:update_desktop",
}
REFUSED = [
    *("connect", "disconnect", "connect_error", "message", "", " ", ":", "client", "client:", "server:", "notify:"),
    *("server:foo", "server:update", "server:update_", "server:join", "server:joinoffice", "server:desktop_refreshed"),
    *("server:tell", "server:tell_", "server:tells_x", "notify:tell_progress", "server:Tell_progress"),
    *("notify:update_config", "notify:enter_office", "notify:tool_call_cancel", "notify:desktop_refresh", "notify:x"),
    *("Client:tool_call", "CLIENT:TOOL_CALL", "Server:join_office", "server:Join_Office", "server:Update_config"),
    *("client:tool_call ", " client:tool_call", "client: tool_call", "server:join_office\n", "server:update_x\t"),
    *("client:a\x00b", "client:a\nb", "client:\x1b[0m", "client:\u202eevil", "server:update_\x7f", "client:\u2066x"),
    *("client:" + "x" * 129, "server:update_" + "x" * 129, "client:" + "x" * 10**6),
    *("client.tool_call", "client_tool_call", "on_client_tool_call", "clienttool_call", "/smcp", "smcp:x", "*"),
]


@pytest.mark.covers("event-names")
def test_the_table_has_a_row_for_every_event_and_no_other() -> None:
    assert sorted(row.name for row in EVENTS) == sorted(specification.EVENTS)


@pytest.mark.covers("event-names")
@pytest.mark.parametrize("name", specification.EVENTS)
def test_a_row_says_what_the_specification_says(name: str) -> None:
    event = lookup(name)
    assert event.name == name
    assert event.request is not None
    assert event.request.__name__ == specification.EVENTS[name].structure
    assert (" ".join(sorted(event.senders)), event.action, event.notice) == specification.rule_of(name)


@pytest.mark.covers("older-names")
@pytest.mark.parametrize(("older", "canonical"), OLDER.items())
def test_an_older_name_finds_the_row_of_the_canonical_one(older: str, canonical: str) -> None:
    assert lookup(older) is lookup(canonical)


@pytest.mark.covers("older-names")
def test_there_are_no_other_older_names() -> None:
    assert {row.older: row.name for row in EVENTS if row.older} == OLDER
    assert OLDER_FIELDS == {"agent": "robot_id"}
    assert OLDER_NOTICES == {
        "notify:update_config": "notify:update_mcp_config",
        "notify:update_desktop": "notify:desktop_refresh",
    }


NEWER = [
    *("client:x", "client:get_roots", "client:a b", "client:a:b", "client:工具", "client:" + "x" * 121),
    *("server:update_x", "server:update_roots", "server:update_finder", "server:update_update_x"),
    *("server:tell_x", "server:tell_root", "server:tell_tell_x", "server:tell_进度"),
]


@pytest.mark.covers("event-names")
@pytest.mark.parametrize("name", NEWER)
def test_an_event_newer_than_the_table_follows_the_rule_of_its_group(name: str) -> None:
    event, (sender, action, notice) = lookup(name), specification.rule_of(name)
    assert (event.name, event.senders, event.action, event.notice) == (name, (sender,), action, notice)
    assert event.required == ({"agent"} if action is Action.TELL else {"computer"})
    assert action is not Action.TELL or event.checked == {"agent", "computer", "req_id", "seat"}


@pytest.mark.covers("event-names")
@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name[:30]))
def test_a_name_that_is_no_event_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedEvent) as refusal:
        lookup(name)
    assert refusal.value.code == 400
    assert len(refusal.value.message) < 1000, "a refusal does not send a long name back"


@given(
    st.text()
    | st.builds(
        str.__add__, st.sampled_from(["client:", "server:", "server:update_", "server:tell_", "notify:"]), st.text()
    )
)
def test_only_forwards_broadcasts_and_tells_can_be_invented(name: str) -> None:
    try:
        event = lookup(name)
    except UnsupportedEvent:
        return
    assert event in EVENTS or (event.action, name.partition(":")[0]) in (
        (Action.FORWARD, "client"),
        (Action.BROADCAST, "server"),
        (Action.TELL, "server"),
    )
