"""The manifest of requirements and the tests agree, both ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from a2c_smcp.protocol.events import EVENTS
from tests.requirements import REQUIREMENTS
from tests.syntax import syntax_tree

TESTS = Path(__file__).parent
OVER_THE_WIRE = ("server", "interop", "nodes")


@cache
def rows_by_test() -> dict[str, set[str]]:
    """Every test, with the rows it names."""
    return dict(_rows_by_test())


def _rows_by_test() -> Iterator[tuple[str, set[str]]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = syntax_tree(path)
        everywhere = _rows(node for node in tree.body if isinstance(node, ast.Assign))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(TESTS)}::{node.name}", everywhere | _rows(iter(node.decorator_list))


def _rows(nodes: Iterator[ast.AST]) -> set[str]:
    calls = (call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call))
    named = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "covers")
    return {argument.value for call in named for argument in call.args if isinstance(argument, ast.Constant)}


def test_every_row_has_a_test() -> None:
    covered = {row for rows in rows_by_test().values() for row in rows}
    assert REQUIREMENTS.keys() - covered == set()


def test_every_row_that_a_test_names_exists() -> None:
    unknown = {name: rows - REQUIREMENTS.keys() for name, rows in rows_by_test().items()}
    assert {name: rows for name, rows in unknown.items() if rows} == {}


@pytest.mark.parametrize("folder", OVER_THE_WIRE)
def test_every_test_over_the_wire_names_its_row(folder: str) -> None:
    found = {name: rows for name, rows in rows_by_test().items() if name.startswith(f"{folder}/")}
    assert found
    assert [name for name, rows in found.items() if not rows] == []


def test_every_event_of_the_table_has_a_row() -> None:
    names = [event.name.partition(":")[2] for event in EVENTS]
    assert [name for name in names if not {f"002-{name}", f"9-{name}"} & REQUIREMENTS.keys()] == []
