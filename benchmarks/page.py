"""The performance page of the documentation, printed out of what the benchmarks found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.table import Row

__all__ = ["written"]

_HEAD = """\
# Performance

![What was wanted and what was measured](assets/performance.png){{ .wide }}

Printed by `make bench` on {date}: {machine}. With {versions}.

## How it is measured

- What is compared runs side by side in one run and takes turns, round after round; the numbers are medians, and a
  ratio is the median of the rounds' ratios. Rely on the ratios: other work on the machine moves all numbers.
- A server has one core to itself and the load another. Its CPU is the kernel's account of the process, all
  threads, so it says how many calls a core can carry, whatever else the machine does.
- The load comes from [picows](https://github.com/tarasko/picows), a websocket client in C. Its clients begin with
  polling and upgrade, as most do. Where asking costs more CPU than answering, the row says so.
- Peers are installed by the first run, pinned by hash, in environments of their own: the published `a2c-smcp`
  0.4.2 as it is, python-socketio on uvicorn and uvloop as they come, Node's `socket.io`. A bare picows relay,
  which checks nothing and knows one target per connection, is the floor.

## How to repeat it

```sh
make bench          # everything on this page, in a quarter of an hour
make bench-quick    # a first impression, in a minute and a half
make bench-relay    # one section; `make help` names the others
```

`docs/assets/performance.json` holds all of it for programs.

## What was wanted

{goals}
"""

_ABOUT = {
    "relay": (
        "A `client:tool_call` of 200 bytes from an agent to a computer of its office, and the result back; 8 "
        "offices. The program takes part with all its rules on: names, offices, deadlines, duplicates, "
        "limits."
    ),
    "end_to_end": (
        "From an agent through Server and computer to an MCP server on stdio and back, each a process of its "
        "own, beside an MCP client that talks to the same server directly. Two servers: one on the MCP SDK, "
        "one written by hand that costs nearly nothing."
    ),
    "computer": (
        "A computer with 5 MCP servers of 100 tools and 10 windows each, asked by a bare client. The servers "
        "answer at once; real ones take their time, and then it counts that windows are read side by side."
    ),
    "crowds": "Computers that connect and join, then sit there. All read their notices.",
    "growth": (
        "What a call costs as something grows by a factor of 100, and the exponent of that: 0 is flat, 1 is "
        "in proportion."
    ),
    "pressure": "Small calls of some while results of 3.9 MB flow to others, and memory when somebody stops reading.",
    "agent": "The agent's own share of a call, beside a bare python-socketio client in the same process.",
    "registry": "One function with three parameters through a toolbox, in the process, arguments checked.",
    "nodes": (
        "An agent at one node and its computer at the other, one Valkey for all, beside python-socketio's "
        "Redis manager."
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
