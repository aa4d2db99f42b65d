"""Fixtures of other folders that tests of the command line use."""

from tests.sign_in.conftest import guarded, provider

__all__ = ["guarded", "provider"]
