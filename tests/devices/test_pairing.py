"""Pairing as people do it: the programs, what they print, and what becomes of it when it is pasted."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.shown_output import is_printed, steps, texts
from tests.stage.place import Place, good, place_in
from tests.stage.program import Program
from tests.waiting import until

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pairing.md"
FINGERPRINT = r"[A-Za-z0-9_-]{43}"
AS_LAPTOP = ("--name", "laptop", "--office", "desk")

pytestmark = pytest.mark.covers("device-program")


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[Place]:
    """Another machine, which has another state folder."""
    async with place_in(tmp_path / "elsewhere") as place:
        yield place


async def fingerprints(place: Place) -> dict[str, str]:
    shown = json.loads((await place.run("device", "show", "--json")).out)
    return {each["role"]: each["fingerprint"] for each in shown["devices"]}


async def bound_key(place: Place, role: str, device: str) -> str:
    scope = ("--role", role, "--office", "desk", "--device", device)
    made = await place.run("key", "--principal", role, *scope, "--add-to", "keys.json", "--json")
    return str(json.loads(made.out)["key"])


def bind_to(place: Place, device: str) -> None:
    """All keys."""
    file = place.folder / "keys.json"
    bound = {key: {**entry, "device": device} for key, entry in json.loads(file.read_text()).items()}
    file.write_text(json.dumps(bound))


async def computer(place: Place, url: str, key: str, config: str = "") -> Program:
    words = ("--config", config, "--yes") if config else ()
    return await place.start("computer", *AS_LAPTOP, "--url", url, *words, A2C_API_KEY=key, A2C_LOG_LEVEL="info")


async def test_a_device_is_shown_without_a_server(place: Place) -> None:
    shown = await place.run("device")
    (step,) = [step for step in steps(GUIDE) if step.command == "a2c-smcp device"]
    assert is_printed(step.prints, shown.out + shown.err), shown
    listed = json.loads((await place.run("device", "show", "--json")).out)
    assert [each["role"] for each in listed["devices"]] == ["computer", "agent"]
    assert listed["known"] == []
    for each in listed["devices"]:
        assert re.fullmatch(FINGERPRINT, each["fingerprint"])
        assert each["fingerprint"] in shown.out
        assert each["kept"] == "file"
        assert each["can_be_copied"] is True
        assert "can copy it" in each["copying"]
        file = place.state / "a2c-smcp" / "devices" / f"{each['role']}.key"
        assert each["place"] == str(file)
        assert file.stat().st_mode & 0o777 == 0o600
        private = json.loads(file.read_text())["private"]
        assert private not in json.dumps(listed) + shown.out + shown.err


async def test_a_rotated_device_has_another_fingerprint(place: Place) -> None:
    before = await fingerprints(place)
    (step,) = [step for step in steps(GUIDE) if step.command == "a2c-smcp device rotate computer"]
    rotated = await place.paste(step.command)
    assert is_printed(step.prints, rotated.out + rotated.err)
    after = await fingerprints(place)
    assert after["computer"] in rotated.out
    assert after["computer"] != before["computer"]
    assert after["agent"] == before["agent"]
    assert json.loads((await place.run("device", "rotate", "agent", "--json")).out)["rotations"] == 1


async def test_devices_are_trusted_and_forgotten(place: Place) -> None:
    device = "A" * 43
    at = ("--office", "desk", "--url", "https://Hub.Example:443/path")
    assert (await place.run("device", "trust", device, "computer", "laptop", *at)).code == 0
    (known,) = json.loads((await place.run("device", "show", "--json")).out)["known"]
    assert known == {
        "origin": "https://hub.example", "office": "desk", "role": "computer", "name": "laptop",
        "fingerprint": device, "how": "trusted",
    }  # fmt: skip
    assert (
        f"knows computer 'laptop' in office 'desk' at https://hub.example as {device}"
        in (await place.run("device")).out
    )
    assert (await place.run("device", "forget", "computer", "laptop", *at)).code == 0
    again = await place.run("device", "forget", "computer", "laptop", *at)
    assert again.code == 1
    assert "No device is known" in again.err


@pytest.mark.parametrize(
    "words",
    [
        ("device", "trust", "short", "computer", "laptop"),
        ("device", "trust", "A" * 43, "server", "laptop"),
        ("device", "trust", "A" * 43, "computer", "laptop", "--url", "nowhere"),
        ("device", "trust", "A" * 43, "computer", " "),
        ("device", "rotate"),
        ("key", "--principal", "x", "--device", "short"),
        ("server", "--origin", "http://hub.example.com"),
        ("server", "--origin", "hub"),
    ],
    ids=" ".join,
)
async def test_wrong_use_ends_with_what_to_do(place: Place, words: tuple[str, ...]) -> None:
    ended = await place.run(*words)
    assert ended.code == 2
    assert "Traceback" not in ended.err


async def test_a_key_that_others_could_read_is_named_with_a_remedy(place: Place) -> None:
    await place.run("device")
    (place.state / "a2c-smcp" / "devices" / "computer.key").chmod(0o644)
    ended = await place.run("device")
    assert ended.code == 1
    assert "chmod 600" in ended.err


async def test_what_a_computer_prints_pairs_it_when_it_is_pasted(place: Place, elsewhere: Place) -> None:
    """The guide from its beginning to its end: the line, the key, the Server, the computer, and a thief."""
    (place.folder / "keys.json").write_text("{}")
    server = await place.start("server", "--port", "0", "--keys-file", "keys.json")
    url = await server.listens()
    first = await computer(place, url, "no-key-yet-but-long-enough")
    assert await first.ends() == 1
    (shown,) = texts(GUIDE, "to bind its key")
    pattern = re.sub(r"(?m)^  \S+/(?=a2c-smcp)", "  ", first.said)
    assert is_printed(shown, pattern), first.said
    (line,) = [each.strip() for each in first.err if " key --principal " in each]
    made = await place.paste(f"{line} --add-to keys.json")
    key = made.out.strip()
    server.signal(signal.SIGHUP)
    config = str(place.write({"good": good()}))
    paired = await computer(place, url, key, config)
    await paired.says("joined desk")
    checked = await place.run("doctor", "--url", url, A2C_API_KEY=key)
    assert "The Server accepts the key." in checked.out
    stolen = await computer(elsewhere, url, key)
    assert await stolen.ends() == 1
    (refusal,) = texts(GUIDE, "http://… does not accept")
    assert is_printed(refusal, stolen.said), stolen.said
    await server.says("bound to another device")


async def test_a_computer_prints_no_lines_for_pairing_unless_it_is_asked(place: Place) -> None:
    server = await place.start("server", "--port", "0", "--log-level", "debug")
    program = await place.start("computer", *AS_LAPTOP, "--url", await server.listens(), "--log-level", "warning")
    await program.says("joined desk")
    await program.stops()
    assert "device" not in program.said


async def test_agents_and_computers_work_with_bound_keys_on_many_workers(place: Place) -> None:
    own = await fingerprints(place)
    keys = {role: await bound_key(place, role, own[role]) for role in own}
    server = await place.start("server", "--port", "0", "--workers", "2", "--keys-file", "keys.json")
    url = await server.listens()
    config = str(place.write({"good": good()}))
    running = await computer(place, url, keys["computer"], config)
    await running.says("joined desk")
    for _ in range(3):
        room = await place.run("agent", "room", "--url", url, "--office", "desk", A2C_API_KEY=keys["agent"])
        assert room.code == 0, room.err
        assert "laptop" in room.out
    swapped = await place.run("agent", "room", "--url", url, "--office", "desk", A2C_API_KEY=keys["computer"])
    assert swapped.code == 1
    assert "bound to another device" in swapped.err
    refusals = [line for line in server.err if " refused " in line and " device=" in line]
    assert len(refusals) == 4, "once for each role, which then proves at once, and twice for the wrong one"
    bind_to(place, "A" * 43)
    server.signal(signal.SIGHUP)
    assert await running.ends() == 1
    assert "bound to another device" in running.said


async def test_a_rotated_device_is_read_again_when_the_server_refuses_it(place: Place) -> None:
    key = await bound_key(place, "computer", (await fingerprints(place))["computer"])
    server = await place.start("server", "--port", "0", "--keys-file", "keys.json")
    running = await computer(place, await server.listens(), key)
    await running.says("joined desk")
    assert (await place.run("device", "rotate", "computer")).code == 0
    bind_to(place, (await fingerprints(place))["computer"])
    server.signal(signal.SIGHUP)
    await until(lambda: running.said.count("joined desk") == 2)


async def test_up_prints_a_line_by_which_an_agent_knows_its_computer_if_it_is_asked(
    place: Place, elsewhere: Place
) -> None:
    place.write({"good": good()})
    program = await place.start("up", "--port", "0", *AS_LAPTOP, "--yes")
    await program.says("or from an MCP client")
    await program.stops()
    assert "device" not in program.said
    program = await place.start("up", "--port", "0", *AS_LAPTOP, "--yes", "--log-level", "info")
    line = (await program.says("device trust ")).strip()
    assert (await elsewhere.paste(line)).code == 0
    (known,) = json.loads((await elsewhere.run("device", "show", "--json")).out)["known"]
    assert known["fingerprint"] == (await fingerprints(place))["computer"]
    assert (known["role"], known["name"], known["office"]) == ("computer", "laptop", "desk")
