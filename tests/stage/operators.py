"""An operator who asks the interface of a Server over HTTP."""

from __future__ import annotations

from typing import Any

from tests.stage.web import fetch

ADMIN = "operator-0123456789"


async def operate(url: str, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    answer = await fetch(f"{url}/admin/api/{path}", method, headers=headers, **options)
    return answer.status, answer.json


async def freeze(url: str, **scope: Any) -> Any:
    status, changed = await operate(url, "POST", "freeze", json=scope or {"all": True})
    assert status == 200, changed
    return changed


async def thaw(url: str, **scope: Any) -> Any:
    status, changed = await operate(url, "POST", "thaw", json=scope or {"all": True})
    assert status == 200, changed
    return changed
