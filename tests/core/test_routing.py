"""Where events go (WIRE §4): a target is only ever found inside the sender's own offices."""

from typing import Any

import pytest

from a2c_smcp.errors import AmbiguousComputer, NameMismatch, NotInOffice, SMCPError, WrongRole
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.events import lookup
from a2c_smcp.protocol.offices import Change, Forward, Member, Notice, Office, broadcast, cancel, forward, list_room

CALL, NEWER = lookup("client:tool_call"), lookup("client:newer")
CANCEL, LIST = lookup("server:tool_call_cancel"), lookup("server:list_room")
FORWARDED = ["client:tool_call", "client:get_tools", "client:get_config", "client:get_desktop", "client:newer"]
UPDATES = ["server:update_config", "server:update_tool_list", "server:update_desktop", "server:update_newer"]

PLANNER, TWIN = Member("s1", "agent", "planner", "north"), Member("s1", "agent", "planner", "south")
STRANGER = Member("s2", "agent", "stranger", "east")
LAPTOP, PHONE = Member("c1", "computer", "laptop", "north"), Member("c2", "computer", "phone", "south")
NORTH_PC, SOUTH_PC = Member("c3", "computer", "pc", "north"), Member("c4", "computer", "pc", "south")
SECRET = Member("c5", "computer", "secret", "east", instance="digest", version="0.4.2")

NORTH = Office("north", PLANNER, {"laptop": LAPTOP, "pc": NORTH_PC}, version=3)
SOUTH = Office("south", TWIN, {"phone": PHONE, "pc": SOUTH_PC}, version=4)
EAST = Office("east", STRANGER, {"secret": SECRET}, version=5)
ALL = (NORTH, SOUTH, EAST)
BOTH = (PLANNER, TWIN)


def request(computer: str, **changes: Any) -> dict[str, Any]:
    return {"agent": "planner", "req_id": "r", "computer": computer} | changes


def refusal_of(*args: Any) -> str:
    """What goes over the wire instead of a forward."""
    with pytest.raises(SMCPError) as refusal:
        forward(*args)
    return dumps(refusal.value.to_wire())


# Forward


@pytest.mark.parametrize("name", FORWARDED)
def test_a_request_goes_to_the_computer_it_names_with_its_payload_untouched(name: str) -> None:
    data = request("laptop", unknown={"x": 1}, _meta={"traceparent": "00"})
    copy = dict(data)
    decision = forward(lookup(name), [PLANNER], [NORTH], data)
    assert decision == Forward(caller=PLANNER, target=LAPTOP)
    assert data == copy


@pytest.mark.covers("older-names")
def test_an_older_name_is_forwarded_under_the_canonical_one() -> None:
    older = lookup("client:get_mcp_config")
    assert forward(older, [PLANNER], [NORTH], request("laptop")) == Forward(caller=PLANNER, target=LAPTOP)
    assert (older.name, older.json_name) == ("client:get_config", b'"client:get_config"')


@pytest.mark.covers("routing-unknown", "office-isolation")
@pytest.mark.parametrize("name", FORWARDED)
def test_a_computer_elsewhere_answers_exactly_like_one_that_does_not_exist(name: str) -> None:
    event, data = lookup(name), request("secret")
    nowhere = refusal_of(event, [PLANNER], [NORTH], data)
    elsewhere = refusal_of(event, [PLANNER], [NORTH, EAST], data)
    assert elsewhere == nowhere
    assert '"code":404' in nowhere


@pytest.mark.covers("office-isolation")
def test_an_office_one_is_not_in_answers_exactly_like_one_that_does_not_exist() -> None:
    data = request("secret", office_id="east")
    nowhere = refusal_of(CALL, [PLANNER], [NORTH], data)
    assert refusal_of(CALL, [PLANNER], ALL, data) == nowhere
    assert '"code":403' in nowhere


def test_a_refusal_reveals_no_connections_or_secrets() -> None:
    for data in (request("secret"), request("secret", office_id="east"), request("pc")):
        answer = refusal_of(CALL, BOTH, ALL, data)
        assert not any(word in answer for word in ("digest", "c5", "s2", "stranger", "0.4.2"))


@pytest.mark.covers("office-several")
def test_the_same_name_in_two_offices_is_a_bad_request_that_lists_both() -> None:
    with pytest.raises(AmbiguousComputer) as refusal:
        forward(CALL, BOTH, reversed(ALL), request("pc"))
    assert (refusal.value.code, refusal.value.details) == (400, {"offices": ["north", "south"]})


def test_an_agent_with_two_names_speaks_from_the_office_of_the_name_it_claims() -> None:
    seats = (PLANNER, Member("s1", "agent", "night-planner", "south"))
    assert forward(CALL, seats, ALL, request("pc")).target == NORTH_PC
    assert forward(CALL, seats, ALL, request("pc", agent="night-planner")).target == SOUTH_PC


@pytest.mark.covers("office-isolation")
@pytest.mark.parametrize(
    "claim",
    [
        {"agent": "stranger"},
        {"agent": None, "robot_id": "stranger"},
        {"robot_id": "stranger"},
        {"agent": "stranger", "robot_id": "planner"},
        {"agent": "Planner"},
    ],
)
@pytest.mark.parametrize("event", [CALL, NEWER], ids=["known", "newer"])
def test_an_agent_cannot_speak_under_anothers_name(event: Any, claim: dict[str, Any]) -> None:
    with pytest.raises(NameMismatch) as refusal:
        forward(event, [PLANNER], ALL, request("laptop") | claim)
    assert refusal.value.code == 403


@pytest.mark.covers("older-names")
def test_robot_id_is_read_as_agent() -> None:
    data = {"robot_id": "planner", "req_id": "r", "computer": "laptop"}
    assert forward(CALL, [PLANNER], ALL, data).target == LAPTOP


def test_a_newer_request_need_not_say_who_speaks() -> None:
    assert forward(NEWER, [PLANNER], ALL, {"computer": "laptop"}).target == LAPTOP


@pytest.mark.covers("office-isolation")
def test_a_connection_without_a_seat_reaches_no_computer() -> None:
    for decide in (
        lambda: forward(CALL, [], ALL, request("laptop")),
        lambda: broadcast(lookup("server:update_config"), [], {"computer": "laptop"}),
        lambda: cancel(CANCEL, [], {"agent": "planner", "req_id": "r"}),
        lambda: list_room(LIST, [], NORTH, {"agent": "planner", "req_id": "r", "office_id": "north"}),
    ):
        with pytest.raises(NotInOffice) as refusal:
            decide()
        assert refusal.value.code == 403


# Broadcast


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_tells_the_others_in_the_office_and_names_it(name: str) -> None:
    data = {"computer": "laptop", "unknown": [1]}
    expected = {"computer": "laptop", "unknown": [1], "office_id": "north"}
    notice = broadcast(lookup(name), [LAPTOP], data)
    assert notice == Notice(name.replace("server:", "notify:"), "north", expected, skip_sid="c1")
    assert data == {"computer": "laptop", "unknown": [1]}


@pytest.mark.covers("office-isolation")
def test_an_update_cannot_be_sent_into_another_office() -> None:
    notice = broadcast(lookup("server:update_config"), [LAPTOP], {"computer": "laptop", "office_id": "east"})
    assert (notice.office_id, notice.data["office_id"]) == ("north", "north")


@pytest.mark.covers("office-isolation")
@pytest.mark.parametrize("name", UPDATES)
def test_a_computer_cannot_announce_for_another(name: str) -> None:
    with pytest.raises(NameMismatch) as refusal:
        broadcast(lookup(name), [LAPTOP], {"computer": "pc"})
    assert refusal.value.code == 403


@pytest.mark.parametrize("name", UPDATES)
def test_an_agent_cannot_announce_updates(name: str) -> None:
    with pytest.raises(WrongRole):
        broadcast(lookup(name), [PLANNER], {"computer": "planner"})


@pytest.mark.parametrize("field", ["None", "agent", "robot_id", "name", "role"])
def test_fields_that_say_nothing_about_a_computer_are_not_its_name(field: str) -> None:
    assert broadcast(lookup("server:update_config"), [LAPTOP], {"computer": "laptop", field: "x"}).data[field] == "x"


# Cancel


@pytest.mark.parametrize(
    ("offices", "told"), [({"north"}, ["north"]), ({"south", "north"}, ["north", "south"]), (set(), ["north", "south"])]
)
def test_a_cancel_is_told_in_the_offices_of_the_call_or_in_all_of_the_agents(
    offices: set[str], told: list[str]
) -> None:
    data = {"agent": "planner", "req_id": "r", "unknown": 1}
    notices = cancel(CANCEL, BOTH, data, offices)
    assert notices == [Notice("notify:tool_call_cancel", office, data, skip_sid="s1") for office in told]


@pytest.mark.covers("office-isolation")
def test_a_cancel_never_reaches_an_office_of_others() -> None:
    assert cancel(CANCEL, BOTH, {"agent": "planner", "req_id": "r"}, {"east"}) == []


@pytest.mark.covers("office-isolation")
@pytest.mark.parametrize(
    "claim", [{"agent": "stranger"}, {"robot_id": "stranger"}, {"agent": "planner", "robot_id": "x"}]
)
def test_an_agent_cannot_cancel_for_another(claim: dict[str, str]) -> None:
    with pytest.raises(NameMismatch):
        cancel(CANCEL, BOTH, {"req_id": "r"} | claim)


def test_a_computer_cannot_cancel() -> None:
    with pytest.raises(WrongRole):
        cancel(CANCEL, [LAPTOP], {"agent": "laptop", "req_id": "r"})


# List


@pytest.mark.covers("version")
def test_list_room_shows_everybody_with_their_version_and_no_secret() -> None:
    answer = list_room(LIST, [STRANGER], EAST, {"agent": "stranger", "req_id": "r7", "office_id": "east"})
    assert answer == {
        "req_id": "r7",
        "sessions": [
            {"sid": "s2", "name": "stranger", "role": "agent", "office_id": "east", "a2c_version": "0.1"}
            | {"seat": STRANGER.seat},
            {
                "sid": "c5",
                "name": "secret",
                "role": "computer",
                "office_id": "east",
                "a2c_version": "0.4.2",
                "seat": SECRET.seat,
                "dedup": True,
            },
        ],
    }


@pytest.mark.covers("office-isolation")
@pytest.mark.parametrize("office", [EAST, Office("east")], ids=["full", "empty"])
def test_list_room_of_an_office_one_is_not_in_is_forbidden_whether_it_exists_or_not(office: Office) -> None:
    with pytest.raises(NotInOffice) as refusal:
        list_room(LIST, BOTH, office, {"agent": "planner", "req_id": "r", "office_id": "east"})
    assert str(refusal.value) == "403 Not in this office: 'east'"


@pytest.mark.covers("office-isolation")
def test_list_room_is_the_agents_under_its_own_name() -> None:
    with pytest.raises(WrongRole):
        list_room(LIST, [LAPTOP], NORTH, {"agent": "planner", "req_id": "r", "office_id": "north"})
    with pytest.raises(NameMismatch):
        list_room(LIST, [PLANNER], NORTH, {"agent": "stranger", "req_id": "r", "office_id": "north"})


@pytest.mark.covers("office-resume")
def test_a_seat_does_not_show_its_instance() -> None:
    assert "digest" not in repr(SECRET) + repr(Change(enters=(SECRET,)))
