"""One HTTP request, on a connection of its own, and the whole response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from tests.peer import PATIENCE

Http = aiohttp.ClientSession


class Response(NamedTuple):
    """A response that was read to its end."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def fetch(url: str, method: str = "GET", **options: Any) -> Response:
    """Of a switch to another protocol, the head only."""
    async with aiohttp.request(method, url, timeout=aiohttp.ClientTimeout(PATIENCE), **options) as response:
        return Response(response.status, response.headers, "" if response.status == 101 else await response.text())
