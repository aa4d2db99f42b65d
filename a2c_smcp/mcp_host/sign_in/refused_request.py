"""The answer to a single request that a server refuses for want of a right, while the session goes on.

The SDK tells nobody why a request failed with an HTTP status. So the response gets a JSON-RPC error as its body, with
the reason behind a mark that no server can know; the SDK's error then becomes `TokenRefused`.
"""

from __future__ import annotations

import json
import secrets

import httpx2
from mcp_types import INTERNAL_ERROR

from a2c_smcp.mcp_host.failures import AuthRequired, TokenRefused

__all__ = ["reason_in", "refused_answer", "token_refused"]

_MARK = f"[{secrets.token_hex(8)}] "


async def refused_answer(request: httpx2.Request, response: httpx2.Response, failure: AuthRequired) -> httpx2.Response:
    """Return the response with the reason as its body. Without a request to answer it stays as it is."""
    try:
        request_id = json.loads(request.content).get("id")
    except (httpx2.RequestNotRead, ValueError, AttributeError):
        return response
    if not isinstance(request_id, str | int):
        return response
    await response.aclose()
    error = {"code": INTERNAL_ERROR, "message": _MARK + failure.reason}
    answer = {"jsonrpc": "2.0", "id": request_id, "error": error}
    return httpx2.Response(response.status_code, json=answer, request=request)


def reason_in(response: httpx2.Response) -> str | None:
    """Return the marked reason in the body of a response that was read."""
    try:
        said = response.json()["error"]["message"]
    except (httpx2.ResponseNotRead, ValueError, LookupError, TypeError):
        return None
    return said if isinstance(said, str) and said.startswith(_MARK) else None


def token_refused(said: str) -> TokenRefused | None:
    """Return the failure that one of our own error answers stands for; `None` for any other text."""
    _, mark, reason = said.partition(_MARK)
    return TokenRefused(reason) if mark else None
