"""Computers in the office of a test."""

from tests.computer.hosted import host
from tests.computer.libraries import lend
from tests.stage.guarded_computer import guard
from tests.stage.questions import start

__all__ = ["guard", "host", "lend", "start"]
