"""Why a server refused a request: its status, and what its `WWW-Authenticate` header asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import httpx2
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

__all__ = ["Challenge"]

_MISSING_SCOPE = "insufficient_scope"


class Challenge(NamedTuple):
    """`revision` is the MCP revision of the refused request."""

    status: int = httpx2.codes.UNAUTHORIZED
    scopes: tuple[str, ...] | None = None
    metadata_url: str | None = None
    lacks_scope: bool = False
    revision: str | None = None

    @classmethod
    def of(cls, request: httpx2.Request, response: httpx2.Response) -> Self | None:
        """Return the challenge in a response; `None` if the response is no refusal."""
        if response.status_code not in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            return None
        scope = extract_scope_from_www_auth(response)
        return cls(
            status=response.status_code,
            scopes=None if scope is None else tuple(scope.split()),
            metadata_url=extract_resource_metadata_from_www_auth(response),
            lacks_scope=response.status_code == httpx2.codes.FORBIDDEN
            and extract_field_from_www_auth(response, "error") == _MISSING_SCOPE,
            revision=request.headers.get(MCP_PROTOCOL_VERSION_HEADER),
        )

    def response(self, scopes: Iterable[str]) -> httpx2.Response:
        """Return the refusal as the SDK expects it, with the scopes of the configuration added."""
        asked = list(dict.fromkeys((*scopes, *(self.scopes or ()))))
        fields = {
            "error": _MISSING_SCOPE if self.lacks_scope else None,
            "scope": " ".join(asked) if asked or self.scopes is not None else None,
            "resource_metadata": self.metadata_url,
        }
        header = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
        return httpx2.Response(self.status, headers={"WWW-Authenticate": f"Bearer {header}".strip()})
