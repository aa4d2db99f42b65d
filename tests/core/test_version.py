"""Which `a2c_version` is spoken with (WIRE §1)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.errors import BadRequest, VersionMismatch
from a2c_smcp.protocol.names import FIRST_VERSION, PROTOCOL_VERSION, accept

pytestmark = pytest.mark.covers("version")


def test_a_client_that_does_not_say_is_of_the_first_generation() -> None:
    assert accept(None) == FIRST_VERSION == "0.1"


@pytest.mark.parametrize("version", ["0.0", "0.1", "0.1.2", "0.3.9", "0.4", "0.4.2", "0.4.10", "0.4.2rc1"])
def test_a_known_version_is_accepted_and_kept_as_it_was_said(version: str) -> None:
    assert accept(version) == version


@pytest.mark.parametrize(
    "version",
    [
        *("", "0", "0.", ".4", "v0.4", "latest", "0,4", "0.x", "-0.4", "0.4 ", " 0.4", "0.4\n", "0.4.2\x00", "0.٤"),
        "null",
        *("0.4/../..", "0.4<b>", '0.4"', "0." + "4" * 50, "0.4." + "x" * 100),
    ],
)
def test_a_malformed_version_is_a_bad_request(version: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        accept(version)
    assert (refusal.value.code, refusal.value.details) == (400, {"field": "a2c_version"})


@pytest.mark.parametrize("version", ["0.5", "0.5.0-beta.1", "0.10.11", "0.41", "1.0", "1.0.0", "2.4", "10.0"])
def test_a_later_version_is_a_mismatch(version: str) -> None:
    with pytest.raises(VersionMismatch) as refusal:
        accept(version)
    assert refusal.value.details == {
        "server_version": PROTOCOL_VERSION,
        "client_version": version,
        "min_supported": FIRST_VERSION,
        "max_supported": PROTOCOL_VERSION,
    }


@pytest.mark.parametrize(
    ("required", "version"),
    [
        ("0.4", "0.4"),
        ("0.4", "0.4.0"),
        ("0.4", "0.4.2"),
        ("0.4.2", "0.4.2"),
        ("0.1", None),
        ("0", "0.7"),
        ("0.5", "0.5.1"),
    ],
)
def test_a_pinned_version_admits_what_begins_with_it(required: str | None, version: str | None) -> None:
    assert accept(version, required) == (version or FIRST_VERSION)


@pytest.mark.parametrize(
    ("required", "version"),
    [
        ("0.4", None),
        ("0.4", "0.1.2"),
        ("0.4", "0.40"),
        ("0.4", "0.41.1"),
        ("0.4.2", "0.4"),
        ("0.4.2", "0.4.20"),
        ("0.4", "1.4"),
    ],
)
def test_a_pinned_version_refuses_all_others_and_says_4008(required: str, version: str | None) -> None:
    with pytest.raises(VersionMismatch) as refusal:
        accept(version, required)
    assert refusal.value.code == 4008
    assert refusal.value.details == {
        "server_version": PROTOCOL_VERSION,
        "client_version": version or "0.1",
        "min_supported": required,
        "max_supported": required,
    }


@given(st.text() | st.from_regex(r"\A0\.[0-9]{1,3}(\.[0-9]{1,3})?\Z"))
def test_any_claimed_version_is_accepted_verbatim_or_refused(version: str) -> None:
    with suppress(BadRequest):
        assert accept(version) == version
