"""Prints the performance page of the documentation from the results of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.table import Row

__all__ = ["written"]

_HEAD = """\
# Performance

![Goals and results](assets/performance.png){{ .wide }}

Printed by `make bench` on {date}: {machine}. With {versions}.

## How it is measured

- The programs that are compared take turns in one run, in several rounds. Numbers are medians; a ratio is the
  median of the ratios of all rounds. Rely on the ratios: other work on the machine changes all numbers.
- The server has one core, the load generator another. CPU time is what the kernel counts for all threads of the
  server's process. It says how many calls one core can carry, even if the machine does other work.
- The load comes from [picows](https://github.com/tarasko/picows), a websocket client in C. Its clients begin with
  polling and upgrade, as most do. A note marks rows where the load generator uses more CPU than the server.
- Peers are installed by the first run, pinned by hash, in environments of their own: the published `a2c-smcp`
  0.4.2, python-socketio on uvicorn and uvloop with default settings, Node's `socket.io`. The lower bound is a bare
  picows relay, which checks nothing and knows one target per connection.

## How to repeat it

```sh
make bench          # everything on this page, in twenty minutes
make bench-quick    # a first impression, in a minute and a half
make bench-relay    # one section; `make help` names the others
```

`docs/assets/performance.json` has the same numbers for programs.

## Goals and results

{goals}
"""

_ABOUT = {
    "relay": (
        "A `client:tool_call` of 200 bytes from an agent to a computer of its office, and the result back; 8 "
        "offices. The program applies all its rules: names, offices, deadlines, duplicates, limits."
    ),
    "end_to_end": (
        "From an agent through Server and computer to an MCP server on stdio and back, each a process of its "
        "own, compared with an MCP client that talks to the same server directly. Two servers: one on the MCP SDK, "
        "one written by hand that costs nearly nothing."
    ),
    "progress": (
        "A tool that reports progress once and returns 20 ms later; both say when they were written. And one that "
        "reports a hundred times in a second, of which an agent is told ten. And a resource that the agent has "
        "subscribed to, which changes now and then."
    ),
    "transfers": (
        "A file of 100 MB through the Server, beside the same file over one websocket between two processes; both are "
        "read from disk, written to disk and hashed at each end. Small calls are made in another office meanwhile."
    ),
    "sealed": (
        "The same call in plain, with answers that the computer signs and the agent checks, sealed from agent to "
        "computer, and both. The Server relays all of them in the same way."
    ),
    "monitored": (
        "The relay as above, 0.4 kB results and 64 in flight, with and without metrics and audit trail. Then a call "
        "from an agent through Server and computer to an MCP server, one at a time, with the spans of all three in "
        "files, or with the audit trail of the computer."
    ),
    "operator_console": (
        "`a2c-smcp server --console` with 20 offices. A client loads each page with its files, on new connections, and "
        "follows its stream as a browser does. The first paint is what Chromium reports. The lag is the time until a "
        "join or a call, made at random times, is on the stream of a page that shows it."
    ),
    "computer": (
        "A computer with 5 MCP servers of 100 tools and 10 windows each, asked by a bare client. These servers "
        "answer at once. Windows are read in parallel, which matters for servers that take longer."
    ),
    "crowds": "Computers that connect, join and then stay idle. All read their notices.",
    "growth": (
        "The cost of a call when something else grows by a factor of 100. Exponent 0: the cost stays the same. "
        "Exponent 1: it grows in proportion."
    ),
    "pressure": "Small calls while other members receive results of 3.9 MB, and memory when a member stops reading.",
    "agent": "The agent's own share of a call, beside a bare python-socketio client in the same process.",
    "registry": "One function with three parameters through a toolbox, in the process, arguments checked.",
    "nodes": (
        "An agent at one node and its computer at the other, one Valkey for all, beside python-socketio's "
        "Redis manager."
    ),
    "bridge": (
        "An MCP client calls an MCP server on the SDK over streamable HTTP: directly, and through bridge, Server and "
        "computer, each a process of its own, in turn. In the last row many clients call a server that answers at once "
        "at a steady rate; two of them read nothing that they are sent, in every second round."
    ),
    "bridge_catalog": (
        "The list of tools for an MCP client of the bridge, from what the computers offer. All have the same tools, of "
        "800 bytes each. It is built again whenever a computer comes, goes or changes its tools."
    ),
    "tool_search": (
        "A fixed set of tools and queries, both written for this purpose (`tests/bridge/queries.json`). A token is "
        "taken as four characters, which is too few for Chinese. Only words are compared: what is said in other words, "
        "or in another language, is often not found."
    ),
    "sandboxed_start": (
        "An MCP server of one file, written in Python, from its start until it has answered its first request: without "
        "a sandbox, and in the strict one."
    ),
    "on_call": (
        "Ten MCP servers of one file, written in Python, with 20 tools each: asleep (`start: on_call`), and running. "
        "Memory is what no other process shares, of all processes together. The first call of a server that is asleep "
        "is compared with a start of it and a call."
    ),
}


def written(document: Mapping[str, Any], goals: Sequence[Row]) -> str:
    facts = document["machine"]
    head = _HEAD.format(
        date=str(document["date"])[:10],
        machine=", ".join(f"{name} {value}" for name, value in facts.items()),
        versions=", ".join(f"{name} {value}" for name, value in document["versions"].items()),
        goals=_table(goals),
    )
    parts = [
        f"## {section['title'].rstrip('.')}\n\n{_ABOUT[name]}\n\n{_table(section['rows'])}\n"
        for name in _ABOUT
        if (section := document["sections"].get(name))
    ]
    return "\n".join([head, *parts])


def _table(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) else str(value)
