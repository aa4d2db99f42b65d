"""The page "MCP features", generated from the table of features."""

from __future__ import annotations

from reference import markdown
from reference.features import FEATURES, REVISIONS, MCPFeature
from reference.markdown import code, table

__all__ = ["page"]

_INTRODUCTION = """\
An agent uses MCP servers through a Computer, which speaks every revision of MCP. These tables say which features of MCP
an agent can use, and by which methods of MCP and which [events](events.md) of this protocol. `no` means that an agent
cannot use the feature; the Computer then does not declare it to MCP servers. What MCP itself
deprecates is passed on as far as an agent can use it."""
_SUITE = """\
`make conformance` runs MCP's own conformance suite against a Computer, with the scenarios that a revision requires of a
client. These scenarios test a feature:"""


def page() -> str:
    areas = dict.fromkeys(feature.area for feature in FEATURES)
    return markdown.page(
        "MCP features",
        _INTRODUCTION,
        *(_section(area, [feature for feature in FEATURES if feature.area == area]) for area in areas),
        f"## Conformance scenarios\n\n{_SUITE}",
        table(["feature", "scenarios"], [_scenarios(feature) for feature in FEATURES if feature.scenarios]),
    )


def _section(area: str, features: list[MCPFeature]) -> str:
    columns = ["feature", "revisions", "supported", "how", "methods and events"]
    return f"## {area}\n\n{table(columns, map(_row, features))}"


def _row(feature: MCPFeature) -> tuple[str, ...]:
    return (
        feature.name,
        "extension" if feature.extension and feature.revisions == REVISIONS else _revisions(feature.revisions),
        feature.carried,
        feature.how,
        ", ".join(map(code, (*feature.methods, *feature.events))),
    )


def _revisions(revisions: tuple[str, ...]) -> str:
    if revisions == REVISIONS:
        return "all"
    if revisions[0] == REVISIONS[0]:
        return f"up to {revisions[-1]}"
    return " and ".join(revisions)


def _scenarios(feature: MCPFeature) -> tuple[str, str]:
    return f"{feature.area}: {feature.name}", ", ".join(map(code, feature.scenarios))
