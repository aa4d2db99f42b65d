"""Gives tokens back to the authorization server (RFC 7009)."""

from __future__ import annotations

import logging

from mcp.client.auth import OAuthClientProvider, OAuthTokenError

from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.mcp_host.sign_in.flow import Flow
from a2c_smcp.mcp_host.sign_in.record import SignInRecord

__all__ = ["revoke"]

logger = logging.getLogger(__name__)


async def revoke(flow: Flow, provider: OAuthClientProvider, record: SignInRecord) -> bool:
    """Return whether all tokens have been revoked. The refresh token comes first: it lives longer."""
    endpoint = record.provider.revocation_endpoint if record.provider else None
    if endpoint is None:
        return False
    context = provider.context
    client = context.client_info = await context.storage.get_client_info()
    tokens = {"refresh_token": record.tokens.refresh_token, "access_token": record.tokens.access_token}
    try:
        for kind, token in tokens.items():
            if token:
                data = {"token": token, "token_type_hint": kind, **({"client_id": client.client_id} if client else {})}
                data, headers = context.prepare_token_auth(data, {})
                response = await flow.post(str(endpoint), data, headers)
                if not response.is_success:
                    raise SignInFailed(f"HTTP {response.status_code}")
    except (SignInFailed, OAuthTokenError) as error:
        said = error.reason if isinstance(error, SignInFailed) else str(error)
        logger.warning("a token could not be revoked: %s", said)
        return False
    return True
