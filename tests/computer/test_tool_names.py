"""Who keeps a tool's name when another server offers one of the same name."""

from __future__ import annotations

import pytest

from a2c_smcp.computer.calls.table import NameOrder

BOTH = "configured a b | listed a send | listed b send"
RESTART = f"{BOTH} | failed a | listed a send"
ORDERS = {
    "the configuration counts, not who is ready first": ("configured a b | listed b send | listed a send", "ab"),
    "a failed first start comes last": ("configured a b | listed b send | failed a | listed a send", "ba"),
    "a tool that is added later comes last": (f"{BOTH.replace('a send', 'a read')} | listed a read send", "ba"),
    "a server that is added later comes last": ("configured b | listed b send | configured a b | listed a send", "ba"),
    "a restart changes nothing": (RESTART, "ab"),
    "a removal gives up the place": (f"{RESTART} | configured b | configured a b | listed a send", "ba"),
}


@pytest.mark.parametrize(("events", "order"), ORDERS.values(), ids=ORDERS)
def test_of_two_servers_the_earlier_one_keeps_the_name(events: str, order: str) -> None:
    names = NameOrder()
    for each in events.split(" | "):
        event, *words = each.split()
        match event:
            case "configured":
                names.configured(words)
            case "listed":
                names.listed(words[0], words[1:])
            case "failed":
                names.failed(words[0])
    assert sorted("ab", key=lambda server: names.of(server, "send")) == [*order]
