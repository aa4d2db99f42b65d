"""`a2c-smcp nodes`: list the nodes that share a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from a2c_smcp.cli import logs
from a2c_smcp.cli.admin_client import moment
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import AsJSON, option, unused_variables
from a2c_smcp.cli.serving.node import REDIS_HELP, running_stores, store_at
from a2c_smcp.cli.terminal import Terminal, put_json, put_table
from a2c_smcp.loops import run_program

if TYPE_CHECKING:
    from a2c_smcp.server.cluster.memory import Node

_VARIABLE = "A2C_SERVER_REDIS"
_COLUMNS = ("node", "url", "lease", "members", "since", "epoch")


def nodes(
    redis: Annotated[
        str | None,
        option(_VARIABLE, "--redis", REDIS_HELP, show_default="those of Servers with --workers of this user"),
    ] = None,
    as_json: AsJSON = False,
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
    logs.set_up("error")
    nodes = sorted(run_program(_ask([redis] if redis else _private())), key=lambda node: node.name)
    if as_json:
        put_json([{**asdict(node), "started_at": moment(node.started_at)} for node in nodes])
    elif nodes:
        put_table(_COLUMNS, map(_cells, nodes))
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
    nodes: list[Node] = []
    for url in urls:
        async with store_at(url) as store:
            nodes += await store.nodes()
    return nodes


def _cells(node: Node) -> tuple[str, ...]:
    lease = f"{node.lease:.1f} s" if node.lease > 0 else f"lapsed {-node.lease:.1f} s ago"
    return node.name, node.url, lease, str(node.members), moment(node.started_at), str(node.epoch)
