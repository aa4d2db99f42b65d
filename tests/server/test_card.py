"""The card of a Server: what a program without a key may know of it. The real program, on real sockets."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp import __version__
from tests.stage.mcp_clients import INITIALIZE
from tests.stage.place import Place
from tests.stage.web import fetch

pytestmark = pytest.mark.covers("server-card")

PATH, OF_OFFICE = "/.well-known/mcp/server-card.json", "/mcp/finance/server-card"
KEY = "a-key-of-this-server-0123456789"
ANYBODY = {"Origin": "https://anybody.example"}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.end()


async def server(place: Place, *words: str) -> str:
    program = await place.start("server", "--port", "0", "--mcp", *words)
    return (await program.says("listening on")).rpartition(" ")[2]


async def card_at(url: str, **headers: str) -> dict[str, Any]:
    told = await fetch(url, headers=headers)
    assert told.status == 200
    assert told.headers["Content-Type"] == "application/mcp-server-card+json"
    card: dict[str, Any] = json.loads(told.text)
    return card


async def test_the_card_says_how_offices_are_reached_and_that_a_key_is_needed(place: Place) -> None:
    url = await server(place, "--card", "--api-key", KEY)
    card = await card_at(f"{url}{PATH}")
    assert card == await card_at(f"{url}{OF_OFFICE}")
    (remote,) = card["remotes"]
    assert (remote["type"], remote["url"]) == ("streamable-http", f"{url}/mcp/{{office}}")
    assert [*remote["variables"]] == ["office"]
    (header,) = remote["headers"]
    assert (header["name"], header["isRequired"], header["isSecret"]) == ("Authorization", True, True)
    assert (card["name"], card["version"]) == ("1.0.0.127/a2c-smcp", __version__)
    assert len(card["description"]) <= 100
    assert KEY not in json.dumps(card)


async def test_every_web_page_may_read_the_card_and_nothing_else(place: Place) -> None:
    url = await server(place, "--card", "--api-key", KEY)
    told = await fetch(f"{url}{PATH}", headers=ANYBODY)
    assert (told.status, told.headers["Access-Control-Allow-Origin"]) == (200, "*")
    assert (await fetch(f"{url}{OF_OFFICE}", headers=ANYBODY)).status == 400
    assert (await fetch(f"{url}/mcp/finance", headers=ANYBODY)).status == 400


async def test_the_card_is_for_reading_and_calls_need_the_key_as_ever(place: Place) -> None:
    url = await server(place, "--card", "--api-key", KEY)
    headers = {"Accept": "application/json, text/event-stream"}
    for path in (OF_OFFICE, "/mcp/finance"):
        assert (await fetch(f"{url}{path}", "POST", json=INITIALIZE, headers=headers)).status == 401


async def test_a_server_for_which_no_key_is_needed_says_so(place: Place) -> None:
    url = await server(place, "--card")
    assert "headers" not in (await card_at(f"{url}{PATH}"))["remotes"][0]


async def test_without_the_option_there_is_no_card(place: Place) -> None:
    url = await server(place, "--api-key", KEY)
    assert (await fetch(f"{url}{PATH}")).status == 404
    assert (await fetch(f"{url}{OF_OFFICE}")).status == 401
    (await place.run("server", "--port", "0", "--card")).refused(2, "--card", "--mcp")


@pytest.mark.parametrize("host", ['a"b</script>', "x.example/../y", "[::1]:7000", "hub.example"])
async def test_the_host_in_a_card_is_the_one_that_was_asked_for_and_stays_a_name(place: Place, host: str) -> None:
    url = await server(place, "--card", "--api-key", KEY)
    told = await fetch(f"{url}{PATH}", headers={"Host": host})
    assert (told.status, told.headers["Cache-Control"]) == (200, "no-store")
    assert not {*'"<> '} & {*told.json["remotes"][0]["url"]}
    assert re.fullmatch(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", told.json["name"])
