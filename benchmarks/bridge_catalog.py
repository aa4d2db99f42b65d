"""What an MCP client is sent of an office with many equal computers, and how long that takes to build.

Each computer's tools are parsed from JSON of their own, as they come over the wire: equal tools share no objects.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.bridge.catalog import Catalog, CatalogOptions, catalog
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Target
from benchmarks.report import save
from benchmarks.table import Row, median, options, per, report

COMPUTERS, TOOLS = 200, 50
QUICK = 3
SHARED, EACH = CatalogOptions(one_for_all="auto"), CatalogOptions(one_for_all="off")

Build = Callable[[], Catalog]


def listing(number: int) -> dict[str, Any]:
    """A tool of the usual size: some 800 bytes."""
    parameters = {
        "path": {"type": "string", "description": "Where it is, relative to the project's folder."},
        "pattern": {"type": "string", "description": "Which names are meant: * and ? stand for any characters."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": number, "description": "How many."},
        "mode": {"type": "string", "enum": ["short", "long", "json"], "description": "How the answer is written."},
    }
    return {
        "description": f"Tool number {number}: looks at what is there, and says it in as many words as most tools do.",
        "inputSchema": {
            "type": "object",
            "properties": parameters,
            "required": ["path"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object", "properties": {"result": {"type": "array", "items": {"type": "string"}}}},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }


def offers(computers: int) -> list[OfferedTool]:
    sent = json.dumps({f"tool_{number}": listing(number) for number in range(TOOLS)})
    return [
        OfferedTool(Target(f"computer-{computer:03}", name), tool)
        for computer in range(computers)
        for name, tool in json.loads(sent).items()
    ]


def builds(folder: Path) -> dict[str, Build]:
    """Ways to build, each with names of its own."""
    everything, fewer = offers(COMPUTERS), offers(COMPUTERS - 1)
    shared, each = GivenNames(folder / "shared.json"), GivenNames(folder / "each.json")
    catalog(everything, shared, SHARED)
    catalog(everything, each, EACH)

    def first() -> Catalog:
        (folder / "first.json").unlink(missing_ok=True)
        return catalog(everything, GivenNames(folder / "first.json"), SHARED)

    return {
        "one tool for all, names given and written": first,
        "one tool for all": lambda: catalog(everything, shared, SHARED),
        "one tool for all, a computer has left": lambda: catalog(fewer, shared, SHARED),
        "a tool for each computer": lambda: catalog(everything, each, EACH),
    }


class Sample(NamedTuple):
    """What was built, and the seconds and CPU seconds that it took."""

    listings: list[dict[str, Any]]
    seconds: float
    cpu: float


def built(build: Build) -> Sample:
    start, busy = time.perf_counter(), time.process_time()
    listings = build().listings()
    return Sample(listings, time.perf_counter() - start, time.process_time() - busy)


def main() -> None:
    title = f"The list of tools that an MCP client gets: {COMPUTERS} computers with {TOOLS} equal tools each"
    chosen = options(title, rounds=11).parse_args()
    rows: list[Row] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, build in builds(Path(folder)).items():
            samples = [built(build) for _ in range(QUICK if chosen.quick else chosen.rounds)]
            listings, cpu = samples[0].listings, median(sample.cpu for sample in samples)
            slowest = max(slowest, cpu) if len(listings) == TOOLS else slowest
            row = {"": name, "tools": len(listings), "kB": per(len(json.dumps(listings)), 1, 1000)}
            seconds = median(sample.seconds for sample in samples)
            rows.append({**row, "CPU ms": per(cpu, 1, 1e-3), "ms": per(seconds, 1, 1e-3)})
    measured = {"bridge_catalog.build": per(slowest, 1, 1e-3), "bridge_catalog.tools": rows[1]["tools"]}
    save("bridge_catalog", title, rows, measured)
    report(rows, chosen)


if __name__ == "__main__":
    main()
