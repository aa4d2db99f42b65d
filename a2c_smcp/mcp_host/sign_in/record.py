"""What a sign-in leaves behind: tokens, the registration of this client, and what was discovered about the provider."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, Field, ValidationError

from a2c_smcp.mcp_host.config.sign_in import SignInSettings

__all__ = ["Learn", "SignInRecord", "TokenStore", "binding_of", "read_record"]

Learn: TypeAlias = Callable[[Iterable[str]], None]
"""Called with secrets the moment they are known, before anything else is done with them."""

_MARGIN = 60.0  # seconds before its end at which a token is refreshed, at the most
_PART = 0.1  # of the life of a token that lives for less than ten minutes


class TokenStore(Protocol):
    """Keeps one record as text, for its owner alone. Other processes may change it."""

    async def load(self) -> str | None: ...

    async def save(self, text: str) -> None: ...

    async def delete(self) -> None: ...

    def has_changed(self) -> bool:
        """Whether another process has changed it since the last `load`, `save` or `delete`."""
        ...

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Inside, no other process refreshes the token: a refresh token can be used only once."""
        ...


class SignInRecord(BaseModel):
    """`binding` is the server and the client that it belongs to. `scope` is what was asked for, at the last sign-in."""

    binding: str
    tokens: OAuthToken = Field(repr=False)
    begins: float
    expires: float | None = None
    scope: str | None = None
    client: OAuthClientInformationFull | None = Field(default=None, repr=False)
    provider: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    authorization_server: str | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the token can be used without a refresh."""
        return self.expires is None or time.time() < self.expires - min(_MARGIN, _PART * (self.expires - self.begins))

    @property
    def is_valid(self) -> bool:
        return self.expires is None or time.time() < self.expires

    @property
    def secrets(self) -> list[str]:
        client = self.client.client_secret if self.client else None
        return [each for each in (self.tokens.access_token, self.tokens.refresh_token, client) if each]


def binding_of(url: str, settings: SignInSettings) -> str:
    """A digest of all that makes a token another one: it is never sent to another URL, or for another client."""
    parts = [url, settings.grant, settings.client_id, settings.issuer, settings.client_metadata_url]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_record(text: str | None, binding: str) -> SignInRecord | None:
    """Return the record in a text; `None` if it is missing, unreadable, or belongs to another server or client."""
    try:
        record = SignInRecord.model_validate_json(text) if text else None
    except ValidationError:
        return None
    return record if record and record.binding == binding else None
