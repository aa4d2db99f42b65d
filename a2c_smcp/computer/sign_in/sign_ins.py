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
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sign_in.account import Account

__all__ = ["SignIns"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between looks for a sign-in of another process


class SignIns:
    """`browser` is how the owner is asked by itself; without one, the owner signs in only by command.

    `start` is called with the name of a server that can be started because another process has signed in. `on_ended` is
    told of each sign-in whether it has worked.
    """

    manager: Manager

    def __init__(
        self, mask: Mask, folder: Path, *, browser: Browser | None, limit: float, start: Callable[[str], None]
    ) -> None:
        self._mask, self._folder, self._limit = mask, folder, limit
        self._browser, self._start = browser, start
        self._keychain = Keychain()
        self._accounts: dict[str, Account] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.on_ended: Callable[[str, bool], None] = lambda name, is_done: None

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
            on_ended=lambda is_done: self.on_ended(name, is_done),
        )
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="sign-ins")
        return account

    def known(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def required(self, config: MCPServerConfig) -> Account:
        """As `account_for`. Raises `SignInFailed` if there is none."""
        account = None if config.name in self.manager else self.account_for(config)
        if account is None:
            raise SignInFailed(
                "it is a program, or its configuration has a credential of its own", subject=_of(config.name)
            )
        return account

    async def start(self, name: str) -> None:
        """Start a server. If it wants a sign-in and the owner may be asked, ask, and start it again."""
        while name in self.manager and (await self.manager.start(name))[name] == "auth_required":
            account = self._accounts.get(name)
            if account is None or not account.may_ask():
                return
            try:
                await account.sign_in_once()
            except SignInFailed as failure:
                self._explain(name, failure)
                return
            if name not in self.manager or self.manager.state(name) != "auth_required":
                return  # it was stopped meanwhile

    async def sign_in(self, account: Account, browser: Browser) -> None:
        """Sign in as the owner asks for, and start the server again if it waits for that. Raises `SignInFailed`."""
        name = account.server
        try:
            await account.sign_in(browser)
        except SignInFailed as failure:
            raise SignInFailed(self._mask.text(failure.reason, name), subject=_of(name)) from None
        if name in self.manager and self.manager.state(name) == "auth_required":
            await self.manager.start(name)

    async def is_signed_in(self, account: Account) -> bool:
        """Whether there are tokens, also such as another process has got meanwhile."""
        if await account.load():
            self._on_other_process(account.server)
        return account.is_signed_in

    async def sign_out(self, account: Account) -> bool:
        """Forget the token. Returns whether its provider has revoked it."""
        is_revoked = await account.sign_out()
        if account.server in self.manager:
            self.manager.check_soon(account.server)
        return is_revoked

    async def withdraw(self, name: str) -> None:
        """End a sign-in to a server that is stopped."""
        if account := self._accounts.get(name):
            await account.close()

    def forget(self, name: str) -> None:
        """The server is removed. Its tokens stay, for the case that it comes back."""
        self._retire(self._accounts.pop(name, None))

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
                        self._on_other_process(name)
                except Exception:
                    logger.exception("%s: its tokens cannot be read", name)

    def _on_other_process(self, name: str) -> None:
        if name in self.manager:
            if self.manager.state(name) == "auth_required":
                self._start(name)
            else:
                self.manager.check_soon(name)

    def _explain(self, name: str, failure: SignInFailed) -> None:
        reason = self._mask.text(failure.reason, name)
        logger.warning("%s: nobody is signed in: %s", name, reason)
        if name in self.manager:
            self.manager.explain(name, reason)


def _of(server: str) -> str:
    return f"server {server!r}"


def _wants_account(config: MCPServerConfig) -> bool:
    """Whether a token of ours may be sent: not beside a configured credential, unless `auth` says so."""
    assert not isinstance(config, StdioConfig)
    asked = config.server_parameters
    if asked.auth is not None:
        return True
    return (
        "authorization" not in {name.lower() for name in asked.headers or {}} and "@" not in urlsplit(asked.url).netloc
    )
