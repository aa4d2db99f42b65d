"""The accounts of a computer at its MCP servers: one for each server that can be signed in to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from a2c_smcp.computer.inputs.sources import Keychain
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.sign_in.browser import Browser
from a2c_smcp.computer.sign_in.store import ServerTokens
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, SignInSettings, StdioConfig
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.mcp_host.sign_in.account import Account

__all__ = ["SignIns"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between looks for a sign-in of another process


class SignIns:
    """`browser` is how the owner is asked by itself; without one, he signs in only when he wants to.

    `on_change` is called with the name of a server when another process has signed in or out.
    """

    def __init__(
        self, mask: Mask, folder: Path, *, browser: Browser | None, limit: float, on_change: Callable[[str], None]
    ) -> None:
        self._mask, self._folder, self._limit = mask, folder, limit
        self._browser, self._on_change = browser, on_change
        self._keychain = Keychain()
        self._accounts: dict[str, Account] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    def account_for(self, config: MCPServerConfig) -> Account | None:
        """Return the account for a configuration that is filled in; `None` if the server needs none of ours."""
        before = self._accounts.pop(config.name, None)
        if isinstance(config, StdioConfig) or not _wants_account(config):
            self._retire(before)
            return None
        asked = config.server_parameters
        settings = asked.auth or SignInSettings()
        if before is not None and (before.url, before.settings) == (asked.url, settings):
            self._accounts[config.name] = before
            return before
        self._retire(before)
        name = config.name
        account = self._accounts[name] = Account(
            name,
            asked.url,
            settings,
            ServerTokens(self._folder, name, asked.url, self._keychain),
            lambda secrets: self._mask.add(secrets, name),
            headers={key: str(value) for key, value in (asked.headers or {}).items()},
            person=self._browser,
            limit=self._limit,
            posts=config.type == "streamable",
        )
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="sign-ins")
        return account

    def get(self, name: str) -> Account | None:
        return self._accounts.get(name)

    async def automatic(self, name: str) -> str | None:
        """Ask the owner by himself, if he may be asked. Return why nobody is signed in; `None` if somebody is."""
        account = self._accounts.get(name)
        if account is None or not account.may_ask():
            return ""
        try:
            await account.sign_in_once()
        except SignInFailed as failure:
            said = self._mask.text(failure.about, name)
            logger.warning("%s: nobody is signed in: %s", name, said)
            return said
        return None

    async def close(self) -> None:
        if self._watching is not None:
            await cancel_and_wait(self._watching)
        for account in self._accounts.values():
            await account.close()
        await cancel_and_wait(*self._retired)

    def _retire(self, account: Account | None) -> None:
        if account is not None:
            closing = asyncio.get_running_loop().create_task(account.close())
            self._retired.add(closing)
            closing.add_done_callback(self._retired.discard)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            for name, account in list(self._accounts.items()):
                try:
                    if await account.reload_if_changed():
                        self._on_change(name)
                except Exception:
                    logger.exception("%s: its tokens cannot be read", name)


def _wants_account(config: MCPServerConfig) -> bool:
    """Whether a token of ours may be sent: not beside a credential that the owner has configured, unless he says so."""
    assert not isinstance(config, StdioConfig)
    asked = config.server_parameters
    if asked.auth is not None:
        return True
    return (
        "authorization" not in {name.lower() for name in asked.headers or {}} and "@" not in urlsplit(asked.url).netloc
    )
