"""The Server and its clients come from `tests/conftest.py`."""

from tests.conftest import TRANSPORTS, Hub

__all__ = ["TRANSPORTS", "Hub"]
