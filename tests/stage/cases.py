"""A test for each row of a table."""

from __future__ import annotations

from typing import Any

import pytest


def cases(names: str, *rows: Any, ids: Any = None) -> pytest.MarkDecorator:
    """`@cases("typed, value", ("7", 7), ("x", None))`: `pytest.mark.parametrize`, with a row on each line."""
    return pytest.mark.parametrize(names, rows, ids=ids)
