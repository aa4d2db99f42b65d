"""What of MCP a Computer does by itself: connections to MCP servers, and sign-in. A row for each feature."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["CONNECTION", "NEWEST", "OLDER", "REVISIONS", "SIGN_IN", "Carried", "MCPFeature"]

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

Carried = Literal["yes", "partly", "no"]

OLDER = REVISIONS[:-1]
NEWEST = REVISIONS[-1:]


class MCPFeature(NamedTuple):
    """One row.

    `methods` are MCP's requests and notifications, `capabilities` what a Computer declares to servers for it, `events`
    those of this protocol by which an agent uses it, `scenarios` those of the conformance suite that test it. An
    `extension` of MCP is not in the lists of its revisions.
    """

    area: str
    name: str
    carried: Carried
    how: str
    methods: tuple[str, ...] = ()
    revisions: tuple[str, ...] = REVISIONS
    events: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    extension: bool = False


CONNECTION = (
    MCPFeature(
        "Connection",
        "handshake of older revisions",
        "yes",
        "Done by the Computer, with the newest revision that both know.",
        methods=("initialize", "notifications/initialized"),
        revisions=OLDER,
        scenarios=("initialize",),
    ),
    MCPFeature(
        "Connection",
        "discovery, metadata in every request",
        "yes",
        "Tried first; a server that does not answer it gets the older handshake.",
        methods=("server/discover",),
        revisions=NEWEST,
        scenarios=("request-metadata",),
    ),
    MCPFeature(
        "Connection",
        "ping",
        "yes",
        "A Computer answers it, and sends it to a server that has been silent for long.",
        methods=("ping",),
        revisions=OLDER,
    ),
    MCPFeature(
        "Connection",
        "stdio, streamable HTTP, HTTP with SSE",
        "yes",
        "`type` in the configuration. A stream that is cut is taken up where it ended.",
        scenarios=("sse-retry",),
    ),
    MCPFeature(
        "Connection",
        "HTTP headers for methods, names and marked parameters",
        "yes",
        "Sent by the Computer. A tool that marks its parameters wrongly is left out, with a warning. "
        "`null` for a marked parameter that is not required is the same as no value.",
        revisions=NEWEST,
        scenarios=("http-standard-headers", "http-custom-headers", "http-invalid-tool-headers"),
    ),
)

SIGN_IN = (
    MCPFeature(
        "Sign-in",
        "OAuth 2.1 with PKCE: discovery of the resource and its authorization server",
        "yes",
        "On the Computer: by browser, or by pasting the redirect. Tokens never leave the machine.",
        scenarios=(
            "auth/metadata-default",
            "auth/metadata-var1",
            "auth/metadata-var2",
            "auth/metadata-var3",
            "auth/resource-mismatch",
            "auth/authorization-server-migration",
            "auth/2025-03-26-oauth-metadata-backcompat",
            "auth/2025-03-26-oauth-endpoint-fallback",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "client metadata documents, dynamic registration, registered clients",
        "yes",
        "`auth` in the configuration of the server: `client_metadata_url`, nothing, or `client_id`.",
        scenarios=(
            "auth/basic-cimd",
            "auth/pre-registration",
            "auth/token-endpoint-auth-basic",
            "auth/token-endpoint-auth-post",
            "auth/token-endpoint-auth-none",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "scopes, and further ones when a tool needs them",
        "yes",
        "The call waits for the sign-in if the owner is there; otherwise its result has the code 4007.",
        scenarios=(
            "auth/scope-from-www-authenticate",
            "auth/scope-from-scopes-supported",
            "auth/scope-omitted-when-undefined",
            "auth/scope-step-up",
            "auth/scope-retry-limit",
            "auth/offline-access-scope",
            "auth/offline-access-not-supported",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "check of the issuer",
        "yes",
        "A redirect that names another issuer, or metadata of another, ends the sign-in.",
        revisions=NEWEST,
        scenarios=(
            "auth/iss-supported",
            "auth/iss-not-advertised",
            "auth/iss-supported-missing",
            "auth/iss-wrong-issuer",
            "auth/iss-unexpected",
            "auth/iss-normalized",
            "auth/metadata-issuer-mismatch",
        ),
    ),
    MCPFeature(
        "Sign-in",
        "client credentials: a secret, or a signed assertion",
        "yes",
        '`"grant": "client_credentials"` in `auth`.',
        scenarios=("auth/client-credentials-basic", "auth/client-credentials-jwt"),
        extension=True,
    ),
    MCPFeature(
        "Sign-in",
        "DPoP, enterprise-managed authorization, workload identity",
        "no",
        "Extensions that the MCP SDK does not have, or that need an identity provider of an organisation.",
        scenarios=(
            "auth/dpop",
            "auth/dpop-nonce",
            "auth/enterprise-managed-authorization",
            "auth/wif-jwt-bearer",
        ),
        extension=True,
    ),
)
