"""Errors with all that is expected of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["raises"]


@contextmanager
def raises(error: type[BaseException], match: str | None = None, **expected: Any) -> Iterator[None]:
    """The block raises such an error, with these details or attributes: `raises(CallTimeout, outcome="unknown")`."""
    with pytest.raises(error, match=match) as caught:
        yield
    details = getattr(caught.value, "details", None) or {}
    found = {name: details[name] if name in details else getattr(caught.value, name, None) for name in expected}
    assert found == expected
