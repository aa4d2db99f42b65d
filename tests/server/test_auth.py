"""Where credentials are read, what a principal may do, and that nothing but a clear yes lets anybody in."""

import asyncio
import time
from typing import Any

import pytest

from a2c_smcp.errors import NotAuthenticated, NotAuthorised
from a2c_smcp.server.auth.authentication import ANYBODY, MAX_CREDENTIAL, AuthenticationProvider, Principal, credentials
from tests.stage.keys import Judged, enter

pytestmark = pytest.mark.covers("auth-fails-closed")

HOLD = 30.0


# Where credentials are read


@pytest.mark.covers("auth-credentials")
def test_credentials_are_read_from_four_places_in_order() -> None:
    headers = {"access_token": "d", "x-api-key": "c", "authorization": "Bearer b", "cookie": "e"}
    assert credentials({"token": "a", "other": "x"}, headers) == ["a", "b", "c", "d"]


@pytest.mark.covers("auth-credentials")
def test_empty_and_repeated_credentials_are_left_out() -> None:
    headers = {"authorization": "Bearer a", "x-api-key": "", "access_token": "a"}
    assert credentials({"token": ""}, headers) == ["a"]


@pytest.mark.covers("auth-credentials")
@pytest.mark.parametrize(
    ("header", "found"),
    [
        *[(header, ["k"]) for header in ("Bearer k", "bearer k", "BEARER   k ")],
        *[(header, []) for header in ("Bearer", "Bearer ", "Basic k", "k", "Bearerk", "")],
    ],
)
def test_only_a_bearer_authorization_counts(header: str, found: list[str]) -> None:
    assert credentials(None, {"authorization": header}) == found


@pytest.mark.covers("auth-credentials")
@pytest.mark.parametrize(
    "auth", [None, "k", ["k"], 1, True, {}, {"token": None}, {"token": 1}, {"token": ["k"]}, {"token": {"token": "k"}}]
)
def test_a_connect_object_that_is_none_presents_nothing(auth: object) -> None:
    assert credentials(auth, {}) == []


@pytest.mark.covers("auth-credentials")
def test_an_oversized_credential_is_not_looked_at() -> None:
    longest = "k" * MAX_CREDENTIAL
    assert credentials({"token": longest + "k"}, {"x-api-key": longest}) == [longest]


# What a principal may do

ALICE = Principal("alice", frozenset({"desk", "team-*"}), frozenset({"agent"}), frozenset({"planner", "plan-[0-9]"}))


@pytest.mark.covers("auth-scope")
def test_anybody_may_do_anything() -> None:
    ANYBODY.check("agent", "planner", "desk")
    ANYBODY.check("computer", "laptop", "desk")


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize(
    ("role", "name", "office_id", "field"),
    [
        ("computer", "planner", "desk", "role"),
        ("agent", "writer", "desk", "name"),
        ("agent", "planner", "attic", "office_id"),
        ("agent", "planner", "team", "office_id"),
        ("agent", "planner", "DESK", "office_id"),
        ("agent", "planner", "desk2", "office_id"),
        ("agent", "planner", "my-team-1", "office_id"),
        ("agent", "Planner", "desk", "name"),
        ("agent", "*", "desk", "name"),
    ],
)
def test_a_refusal_names_what_is_outside_the_scope(role: Any, name: str, office_id: str, field: str) -> None:
    with pytest.raises(NotAuthorised) as refusal:
        ALICE.check(role, name, office_id)
    assert refusal.value.code == 403
    assert refusal.value.details == {"field": field}
    assert repr({"role": role, "name": name, "office_id": office_id}[field]) in refusal.value.message


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize(("name", "office_id"), [("planner", "desk"), ("plan-7", "team-"), ("planner", "team-a/b c")])
def test_patterns_admit_what_they_match(name: str, office_id: str) -> None:
    ALICE.check("agent", name, office_id)


@pytest.mark.covers("auth-scope")
@pytest.mark.parametrize("none", ["offices", "roles", "names"])
def test_an_empty_set_allows_nothing(none: str) -> None:
    with pytest.raises(NotAuthorised):
        Principal("alice", **{none: frozenset()}).check("agent", "planner", "desk")  # type: ignore[arg-type]


# Failing closed


async def test_true_admits_anybody_and_a_principal_admits_them() -> None:
    alice = Principal("alice", expires=time.time() + HOLD)
    assert await enter(Judged(lambda _: True)) is ANYBODY
    assert await enter(Judged(lambda _: alice)) is alice


@pytest.mark.parametrize("answer", [False, None, 0, 1, 1.0, "yes", "", "alice", {"id": "alice"}, [], Principal])
async def test_any_other_answer_is_a_no(answer: object) -> None:
    with pytest.raises(NotAuthenticated):
        await enter(Judged(lambda _: answer))


@pytest.mark.parametrize("expires", [0, -1.0, float("nan"), float("-inf"), 1e9, "2999-01-01"])
async def test_a_principal_whose_time_is_over_or_unclear_is_refused(expires: Any) -> None:
    alice = Principal("alice", expires=expires)
    with pytest.raises(NotAuthenticated):
        await enter(Judged(lambda _: alice))


class Panic(BaseException):
    """As native extensions raise it."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("hunter2"),
        TimeoutError("hunter2"),
        NotAuthorised("hunter2"),
        ExceptionGroup("hunter2", [ValueError("hunter2")]),
        Panic("hunter2"),
        SystemExit("hunter2"),
        KeyboardInterrupt("hunter2"),
        GeneratorExit("hunter2"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_is_a_no_logged_with_its_traceback_but_not_its_words(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail(_: object) -> None:
        raise error

    with pytest.raises(NotAuthenticated) as refusal:
        await enter(Judged(fail), {"token": "hunter2"}, {"x-api-key": "hunter2"})
    assert "Traceback" in caplog.text
    assert f"in fail\n    raise error\n{type(error).__name__}" in caplog.text
    assert "hunter2" not in caplog.text + str(refusal.value)
    assert refusal.value.__suppress_context__


async def test_a_provider_may_say_itself_why_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> None:
        raise NotAuthenticated("ask the front desk")

    with pytest.raises(NotAuthenticated, match="ask the front desk"):
        await enter(Judged(refuse))
    assert not caplog.records


async def test_a_provider_that_is_not_async_refuses() -> None:
    class Sync(AuthenticationProvider):
        def authenticate(self, *_: object) -> Any:
            return True

    with pytest.raises(NotAuthenticated):
        await enter(Sync())


async def test_a_yes_that_comes_after_the_deadline_is_a_no() -> None:
    async def stubborn(_: object) -> bool:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return True
        raise AssertionError

    async def blocking(_: object) -> bool:
        time.sleep(0.03)  # noqa: ASYNC251 - the loop itself is held up, as by a slow hash
        return True

    for late in (stubborn, blocking):
        with pytest.raises(NotAuthenticated):
            await enter(Judged(late), timeout=0.02)


async def test_a_cancelled_handshake_stays_cancelled() -> None:
    asked = asyncio.Event()

    async def ask(_: object) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    handshake = asyncio.ensure_future(enter(Judged(ask), timeout=HOLD))
    await asyncio.wait_for(asked.wait(), HOLD)
    handshake.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handshake


def test_by_default_clients_of_a_custom_provider_stay_after_a_reload() -> None:
    provider = Judged(lambda _: True)
    provider.reload()
    assert provider.valid(ANYBODY)
