"""`a2c-smcp nodes`: list the nodes that share a store."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import option, unused_variables
from a2c_smcp.cli.serving.stores import REDIS_HELP, running_stores, store_at
from a2c_smcp.cli.terminal import Terminal, is_for_programs, put_json, put_table
from a2c_smcp.loops import run_program

if TYPE_CHECKING:
    from a2c_smcp.server.directory.nodes import Node

__all__ = ["nodes"]

_VARIABLE = "A2C_SERVER_REDIS"
_COLUMNS = ("node", "url", "lease", "members", "since", "epoch")


def nodes(
    redis: Annotated[
        str | None,
        option(_VARIABLE, "--redis", REDIS_HELP, show_default="those of Servers with --workers of this user"),
    ] = None,
    as_json: Annotated[
        bool | None,
        typer.Option("--json/--table", help="For a program or for a person; by itself a table only on a terminal."),
    ] = None,
) -> None:
    """List the nodes that share a store: their leases, members and URLs.

    Without --redis, these are the private stores of every `a2c-smcp server --workers` that this user runs here. A node
    whose lease has lapsed has died or lost the store; others free its seats within seconds. Only reads.

    Examples:

    \b
    a2c-smcp nodes --redis redis://127.0.0.1:6379
    A2C_SERVER_REDIS="$REDIS" a2c-smcp nodes --json
    a2c-smcp nodes
    """
    logs.set_up(logs.LogLevel.error)
    found = sorted(run_program(_ask([redis] if redis else _private())), key=lambda node: node.name)
    if is_for_programs(as_json):
        put_json([_described(node) for node in found])
    elif found:
        put_table(_COLUMNS, map(_row, found))
    else:
        Terminal().show("no node has a lease there: a2c-smcp server --redis starts one")


def _private() -> list[str]:
    """The private stores of this user's Servers. Raises `WrongUse` if there is none."""
    unused = unused_variables(["--redis"])
    if urls := running_stores():
        if unused:
            Terminal().show(unused, "yellow")
        return urls
    what = "There is no `a2c-smcp server --workers` of this user here whose nodes could be listed"
    raise WrongUse(
        f"{what} ({unused})" if unused else what, f"Name the store that nodes share: --redis or {_VARIABLE}."
    )


async def _ask(urls: list[str]) -> list[Node]:
    found: list[Node] = []
    for url in urls:
        async with store_at(url) as store:
            found += await store.nodes()
    return found


def _described(node: Node) -> dict[str, Any]:
    return {**asdict(node), "started_at": _since(node)}


def _row(node: Node) -> tuple[str, ...]:
    lease = f"{node.lease:.1f} s" if node.lease > 0 else f"lapsed {-node.lease:.1f} s ago"
    return node.name, node.url, lease, str(node.members), _since(node), str(node.epoch)


def _since(node: Node) -> str:
    return datetime.fromtimestamp(node.started_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
