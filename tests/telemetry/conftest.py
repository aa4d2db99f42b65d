"""Fixtures of other folders."""

from __future__ import annotations

from tests.cli.test_workers import place  # noqa: F401, for programs
