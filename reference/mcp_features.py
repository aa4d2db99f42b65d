"""The page "What of MCP is carried", generated from the table of features."""

from __future__ import annotations

from a2c_smcp.protocol.mcp_features import FEATURES, REVISIONS, MCPFeature
from reference import markdown
from reference.markdown import code, table

__all__ = ["page"]

_INTRODUCTION = """\
An agent uses MCP servers through an office: the Computer speaks MCP with them, in any of its revisions, and the office
carries what this table says. `no` means that an agent cannot use it; the Computer then neither asks for it nor declares
it. [Events](events.md) describes the events."""
_SUITE = """\
`make conformance` runs MCP's own conformance suite against a Computer, with the scenarios that a revision requires of a
client. The last column says how many of them test a feature; their names are below."""


def page() -> str:
    areas = dict.fromkeys(feature.area for feature in FEATURES)
    return markdown.page(
        "What of MCP is carried",
        _INTRODUCTION,
        _SUITE,
        *(_section(area, [feature for feature in FEATURES if feature.area == area]) for area in areas),
        "## Conformance scenarios",
        table(["feature", "scenarios"], [_scenarios(feature) for feature in FEATURES if feature.scenarios]),
    )


def _section(area: str, features: list[MCPFeature]) -> str:
    columns = ["feature", "revisions", "carried", "how", "methods of MCP", "events", "scenarios"]
    return f"## {area}\n\n{table(columns, map(_row, features))}"


def _row(feature: MCPFeature) -> tuple[str, ...]:
    return (
        feature.name,
        "extension" if feature.extension and feature.revisions == REVISIONS else _revisions(feature.revisions),
        feature.carried,
        feature.how,
        ", ".join(map(code, feature.methods)),
        ", ".join(map(code, feature.events)),
        str(len(feature.scenarios) or ""),
    )


def _revisions(revisions: tuple[str, ...]) -> str:
    if revisions == REVISIONS:
        return "all"
    if revisions[0] == REVISIONS[0]:
        return f"up to {revisions[-1]}"
    return " and ".join(revisions)


def _scenarios(feature: MCPFeature) -> tuple[str, str]:
    return f"{feature.area}: {feature.name}", ", ".join(map(code, feature.scenarios))
