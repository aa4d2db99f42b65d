"""Changes of lists that MCP servers announce: clients are told of each, whether or not the list looks different."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.bridge.office import AnnouncedLists
from tests.waiting import until


@pytest.mark.covers("bridge-through")
async def test_only_announcements_that_changed_nothing_are_told() -> None:
    told: list[Any] = []
    lists = AnnouncedLists("desk", told.append)
    lists.on_tools_received("laptop", [], "desk")
    lists.on_prompts_changed("laptop", None, "desk")
    lists.on_prompts_changed("laptop", "files", "desk")
    lists.on_resources_changed("laptop", None, "another office")
    lists.changed("tools")
    await until(lambda: told)
    assert told == ["prompts"]
    lists.on_resources_changed("laptop", None, "desk")
    lists.close()
    await asyncio.sleep(0)
    assert told == ["prompts"]
