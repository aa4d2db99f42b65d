"""Which tools are listed when all of them together would not fit into one message.

Each server has the same share of the message; what one does not use, others may. So a server with few tools never
loses one because another has many. Of a server that is over its share the first tools stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from a2c_smcp.computer.tools.table import ToolTable
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.smcp import SMCPTool
from a2c_smcp.types import SERVER_NAME

__all__ = ["fitted"]

_AROUND = 64  # what a tool has around it in the message, its server's name aside


def fitted(table: ToolTable, room: int) -> ToolTable:
    """The table with as many tools as fit into `room` bytes, and a warning for each server that lost some."""
    servers = [route.server for route in table.routes.values()]
    sizes = [_size(tool) + len(server.encode()) for tool, server in zip(table.listed, servers, strict=True)]
    if (total := sum(sizes)) <= room:
        return table
    share = _share(_sums(zip(servers, sizes, strict=True)), room)
    used: dict[SERVER_NAME, int] = defaultdict(int)
    stays = []
    for server, size in zip(servers, sizes, strict=True):
        used[server] += size
        stays.append(used[server] <= share)
    lost: dict[SERVER_NAME, int] = defaultdict(int)
    for server, is_kept in zip(servers, stays, strict=True):
        lost[server] += not is_kept
    return replace(
        table,
        listed=[tool for tool, is_kept in zip(table.listed, stays, strict=True) if is_kept],
        routes={name: route for (name, route), is_kept in zip(table.routes.items(), stays, strict=True) if is_kept},
        warnings=[*table.warnings, *_warnings(lost, total, room)],
    )


def _size(tool: SMCPTool) -> int:
    return len(dumps(tool).encode(errors="surrogatepass")) + _AROUND


def _sums(sizes: Iterable[tuple[SERVER_NAME, int]]) -> Mapping[SERVER_NAME, int]:
    sums: dict[SERVER_NAME, int] = defaultdict(int)
    for server, size in sizes:
        sums[server] += size
    return sums


def _share(sums: Mapping[SERVER_NAME, int], room: int) -> int:
    """The most that every server may use, so that all of them together have enough."""
    left = len(sums)
    for size in sorted(sums.values()):
        if size * left > room:
            return room // left
        room -= size
        left -= 1
    return room


def _warnings(lost: Mapping[SERVER_NAME, int], total: int, room: int) -> list[str]:
    return [
        f"{count} tools of server {server!r} are left out: the list of all tools would have {total} bytes, at most "
        f"{room} can be sent; forbidden_tools says which are not needed"
        for server, count in lost.items()
        if count
    ]
