"""The record of a sign-in: tokens, the registration of this client, the description of the provider."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast

from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, Field, ValidationError

from a2c_smcp.mcp_host.config.sign_in import SignInSettings
from a2c_smcp.mcp_host.failures import SignInFailed

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
        """True if another process has changed it since the last `load`, `save` or `delete`."""
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
        """True if the token can be used without a refresh."""
        return self.expires is None or time.time() < self.expires - min(_MARGIN, _PART * (self.expires - self.begins))

    @property
    def is_valid(self) -> bool:
        return self.expires is None or time.time() < self.expires

    @property
    def secrets(self) -> list[str]:
        client = self.client.client_secret if self.client else None
        return [secret for secret in (self.tokens.access_token, self.tokens.refresh_token, client) if secret]


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


# The SDK's OAuth providers, each made for one flow out of a record, and turned into a record when the flow is over.
#
# A provider keeps the state of a flow in its public `context`. What it does not load by itself is put there first: when
# the token expires, and what was discovered about the authorization server.

_CLIENT_NAME = "a2c-smcp"
_LONG_AGO = 1.0  # the SDK reads 0 as "never expires"
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True)
class PersonHandlers:
    """The way of a person to the authorization server and back, and the address they come back to."""

    redirect: Callable[[str], Awaitable[None]]
    callback: Callable[[], Awaitable[AuthorizationCodeResult]]
    redirect_uri: str


class _FlowStorage:
    """The SDK's `TokenStorage`, for the time of one flow."""

    def __init__(self, tokens: OAuthToken | None, client: OAuthClientInformationFull | None) -> None:
        self._tokens, self._client = tokens, client

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def provider_for(
    url: str,
    settings: SignInSettings,
    record: SignInRecord | None,
    *,
    handlers: PersonHandlers | None = None,
    is_expired: bool = False,
) -> OAuthClientProvider:
    """Return a provider in the state of the record. `is_expired`: it begins with a refresh."""
    redirect_uri = handlers.redirect_uri if handlers else "http://127.0.0.1/callback"
    client = _client(settings, record, redirect_uri, is_returning=handlers is not None)
    storage = _FlowStorage(record.tokens if record else None, client)
    if settings.is_unattended:
        provider = _unattended(url, settings, storage)
    else:
        provider = OAuthClientProvider(
            url,
            OAuthClientMetadata(
                client_name=_CLIENT_NAME,
                redirect_uris=[AnyUrl(redirect_uri)],
                scope=record.scope if record else None,
                token_endpoint_auth_method=settings.token_endpoint_auth_method if settings.client_id else None,
            ),
            storage,
            handlers.redirect if handlers else None,
            handlers.callback if handlers else None,
            settings.client_metadata_url,
        )
    if record is not None:
        context = provider.context
        context.oauth_metadata, context.protected_resource_metadata = record.provider, record.resource
        context.auth_server_url = record.authorization_server
        context.token_expiry_time = _LONG_AGO if is_expired else None
    return provider


def record_of(provider: OAuthClientProvider, url: str, settings: SignInSettings) -> SignInRecord:
    """Return the record of a flow that has got a token."""
    context = provider.context
    assert context.current_tokens is not None
    return SignInRecord(
        binding=binding_of(url, settings),
        tokens=context.current_tokens,
        begins=time.time(),
        expires=context.token_expiry_time,
        scope=context.client_metadata.scope,
        client=None if settings.client_id else context.client_info,
        provider=context.oauth_metadata,
        resource=context.protected_resource_metadata,
        authorization_server=context.auth_server_url,
    )


def _client(
    settings: SignInSettings, record: SignInRecord | None, redirect_uri: str, *, is_returning: bool
) -> OAuthClientInformationFull | None:
    """Return the client of the configuration, or the one that was registered, unless it has another address."""
    if settings.client_id is None:
        known = record.client if record else None
        uris = [str(uri) for uri in known.redirect_uris or []] if known else []
        return None if is_returning and uris and redirect_uri not in uris else known
    method = settings.token_endpoint_auth_method or ("client_secret_basic" if settings.client_secret else "none")
    return OAuthClientInformationFull(
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        redirect_uris=[AnyUrl(redirect_uri)],
        token_endpoint_auth_method=method,
    )


def _unattended(url: str, settings: SignInSettings, storage: Any) -> OAuthClientProvider:
    from mcp.client.auth.extensions import client_credentials as by_client  # imports cryptography, which takes long

    scope = " ".join(settings.scopes) or None
    client_id = cast(str, settings.client_id)
    if settings.private_key is None:
        method = cast(
            Literal["client_secret_basic", "client_secret_post"],
            settings.token_endpoint_auth_method or "client_secret_basic",
        )
        secret = cast(str, settings.client_secret)
        return by_client.ClientCredentialsOAuthProvider(url, storage, client_id, secret, method, scope, settings.issuer)
    signed = by_client.SignedJWTParameters(
        issuer=client_id,
        subject=client_id,
        signing_key=settings.private_key,
        signing_algorithm=settings.signing_algorithm or _algorithm(settings.private_key),
    )
    assertion = signed.create_assertion_provider()
    return by_client.PrivateKeyJWTOAuthProvider(url, storage, client_id, assertion, scope, settings.issuer)


def _algorithm(private_key: str) -> str:
    """Return the usual algorithm for a key. Raises `SignInFailed` if it cannot be read."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private_key.encode(), password=None)
    except (ValueError, TypeError):
        what = "its private_key is not a private key in PEM form without a password"
        raise SignInFailed(what, cause="private key") from None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return _CURVES.get(key.curve.name, "ES256")
    return "EdDSA" if isinstance(key, ed25519.Ed25519PrivateKey) else "RS256"
