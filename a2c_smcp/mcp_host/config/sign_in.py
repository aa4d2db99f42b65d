"""`auth` in the configuration of a server: what its OAuth provider needs to know about us. All of it is optional."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from a2c_smcp.mcp_host.config.fields import FieldContent, NonEmpty, Url, fault, has_placeholder
from a2c_smcp.mcp_host.config.inputs import StrictModel, contents_of
from a2c_smcp.web import LOOPBACK_NAMES

_LARGEST_PORT = 65535


def _scopes(value: object) -> object:
    """Accept a list of scopes, or OAuth's own form: names separated by blanks."""
    if isinstance(value, str) and not has_placeholder(value):
        value = value.split()
    if isinstance(value, list) and any(scope == "" or set(str(scope)) & set(' "\\') for scope in value):
        raise fault("must be a list of names without blanks and quotes")
    return value


def _port(value: object) -> object:
    if isinstance(value, str) and value.isdecimal():  # an input that was typed in arrives as text
        value = int(value)
    if not has_placeholder(value) and (type(value) is not int or not 0 < value <= _LARGEST_PORT):
        raise fault(f"must be a port, 1 to {_LARGEST_PORT}")
    return value


def _document(url: str) -> str:
    parts = urlsplit(url)
    if not has_placeholder(url) and (parts.scheme != "https" or parts.path in ("", "/")):
        raise fault('must be an https URL with a path, such as "https://example.com/client.json"')
    return url


def _redirect(url: str) -> str:
    parts = urlsplit(url)
    if not has_placeholder(url) and (parts.scheme != "http" or parts.hostname not in LOOPBACK_NAMES or not parts.port):
        raise fault('must be a URL of this machine with a port, such as "http://localhost:8765/callback"')
    return url


class SignInSettings(StrictModel):
    """The sign-in at a server. Without any field, the client registers itself, and the owner signs in by browser.

    `grant="client_credentials"` needs no person: the client signs in for itself, with `client_secret`, or with a token
    that it signs with `private_key` (PEM). `client_metadata_url` is the address of a document that describes this
    client, for providers that read such documents instead of registering clients. `issuer` is the one authorization
    server that the owner trusts, also on this machine or its network; no other gets the secrets of the client.
    `redirect_port` or `redirect_uri`: where the browser comes back to; without them, a free port of 127.0.0.1.
    """

    grant: Annotated[Literal["authorization_code", "client_credentials"], FieldContent.SETTING] = "authorization_code"
    client_id: Annotated[NonEmpty | None, FieldContent.NAME] = None
    client_secret: Annotated[NonEmpty | None, FieldContent.SECRET] = None
    token_endpoint_auth_method: Annotated[
        Literal["client_secret_basic", "client_secret_post", "none"] | None, FieldContent.SETTING
    ] = None
    private_key: Annotated[NonEmpty | None, FieldContent.SECRET] = None
    signing_algorithm: Annotated[NonEmpty | None, FieldContent.SETTING] = None
    scopes: Annotated[list[str], BeforeValidator(_scopes), FieldContent.NAME] = Field(default_factory=list)
    issuer: Annotated[Url | None, FieldContent.URL] = None
    client_metadata_url: Annotated[Annotated[Url, AfterValidator(_document)] | None, FieldContent.URL] = None
    redirect_port: Annotated[Annotated[int, BeforeValidator(_port)] | None, FieldContent.SETTING] = None
    redirect_uri: Annotated[Annotated[Url, AfterValidator(_redirect)] | None, FieldContent.URL] = None

    @model_validator(mode="after")
    def _fits_together(self) -> SignInSettings:
        if misfit := _misfit(self):
            raise fault(misfit)
        if self.issuer is None and not (self.client_secret is None and self.private_key is None):
            raise fault(
                "client_secret and private_key need an issuer, the only authorization server that gets them, such as "
                '"issuer": "https://auth.example.com"'
            )
        return self

    @property
    def is_unattended(self) -> bool:
        """True if a sign-in needs no person."""
        return self.grant == "client_credentials"


def _misfit(auth: Any) -> str:
    if auth.grant == "client_credentials":
        if auth.client_id is None or (auth.client_secret is None) == (auth.private_key is None):
            return "client_credentials needs a client_id, and either a client_secret or a private_key"
        if auth.token_endpoint_auth_method == "none":  # noqa: S105  # the name of a method
            return 'client_credentials needs another token_endpoint_auth_method than "none"'
    elif auth.private_key is not None:
        return 'private_key is used with "grant": "client_credentials" only'
    if auth.client_secret is not None and auth.client_id is None:
        return "client_secret needs a client_id"
    if auth.redirect_port is not None and auth.redirect_uri is not None:
        return "redirect_port and redirect_uri exclude each other"
    return ""


SIGN_IN_CONTENTS = contents_of(SignInSettings)
"""The contents of the fields of `auth`, by name."""
