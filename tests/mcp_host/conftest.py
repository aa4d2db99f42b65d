"""Sessions with one server each, for tests that need nothing else of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.sessions.session import MCPSession
from tests.computer.supervised import naughty, of_the_sdk, session
from tests.mcp_host.scripts import scripted


def _session_with(config: MCPServerConfig) -> pytest.FixtureFunctionDefinition:
    @pytest.fixture
    async def opened() -> AsyncIterator[MCPSession]:
        async with session(config) as one:
            yield one

    return opened


modern, older = _session_with(scripted("modern")), _session_with(scripted("older"))
fine, newest = _session_with(naughty()), _session_with(of_the_sdk())


@pytest.fixture
async def one(era: str) -> AsyncIterator[MCPSession]:
    """With the scripted server, in the era of the test."""
    async with session(scripted(era)) as opened:
        yield opened
