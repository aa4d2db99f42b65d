"""The owner's sign-ins: the browser, and an account for each MCP server that can be signed in to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from a2c_smcp.computer.configuration.resolver import Keychain
from a2c_smcp.computer.consent.approval import ask
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.errors import AuthorizationFailed, AuthorizationRequired, NotPrivate
from a2c_smcp.files import check_private, lock, private_folder, replace_file
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, SignInSettings, StdioConfig
from a2c_smcp.mcp_host.failures import AuthRequired, SignInFailed
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sign_in.account import Account

logger = logging.getLogger(__name__)

# The owner's browser: the page to sign in on, and the way back.

OpenURL: TypeAlias = Callable[[str], object]
"""Opens a page in the owner's browser. It may be async. `False`, or an error, means that it was not opened."""
PasteRedirect: TypeAlias = Callable[[str], Awaitable[str] | str]
"""Shows the owner the address of a page, and returns the address that the page sent the browser back to."""


@dataclass(frozen=True)
class Browser:
    """The owner's browser: one that opens by itself, one that the owner copies addresses to and from, or both."""

    open_url: OpenURL | None = None
    paste_redirect: PasteRedirect | None = None

    async def visit(self, url: str) -> str | None:
        is_open = self.open_url is not None and await _opened(self.open_url, url)
        if self.paste_redirect is not None:
            return str(await ask(self.paste_redirect, url))
        if not is_open:
            raise SignInFailed("no browser could be opened on this machine", cause="no browser")
        return None


async def _opened(open_url: OpenURL, url: str) -> bool:
    try:
        return await ask(open_url, url) is not False
    except Exception:  # the owner's own code; there may still be another way
        return False


# What agents get from a server that nobody is signed in to (WIRE §9): it says who has to do what, and no more.
#
# What the server said is for the owner, in the state of the server and in the log.

_HINTS = {
    4006: "The MCP server {server!r} wants a sign-in. The owner of this computer has to sign in to it.",
    4007: "The MCP server {server!r} refuses the token of this computer for this call: it has expired, or it lacks a "
    "scope. The owner of this computer has to sign in again.",
}


def hint_for(failure: AuthRequired, server: str, bundle_id: str | None = None) -> dict[str, str]:
    """The steps to take, for programs and for people. Names the server if its bundle id is another name."""
    hint = {"action": failure.action, "message": _HINTS[failure.result_code].format(server=server)}
    return hint if bundle_id in (None, server) else {**hint, "server": server}


def refused_call(failure: AuthRequired, server: str, bundle_id: str) -> dict[str, Any]:
    """The result of a tool call, with `isError`. `mcp_server` is the bundle id, as in the published 0.4 generation."""
    hint = hint_for(failure, server, bundle_id)
    return {
        "content": [{"type": "text", "text": hint["message"]}],
        "isError": True,
        "_meta": {"error_code": failure.result_code, "mcp_server": bundle_id, "auth_hint": hint},
    }


def refused_read_of(failure: AuthRequired, server: str) -> AuthorizationRequired:
    """The error for a request that is no tool call."""
    kind = AuthorizationRequired if failure.result_code == AuthorizationRequired.code else AuthorizationFailed
    hint = hint_for(failure, server)
    return kind(hint["message"], mcp_server=server, auth_hint=hint)


# Where the tokens of a server are kept: in the keyring, or in a file that only its owner can read.
#
# Beside them there is a small file without secrets, the *marker*, for each server with a sign-in. It is
# replaced whenever the tokens change. A running computer sees by it that another process has signed in or out, and a
# computer without one never asks the keyring, which may ask its owner to unlock it.

_FOLDER = "sign-in"
_LOCK_LIMIT, _LOCK_PAUSE = 20.0, 0.05  # seconds; a refresh takes less

_Stamp: TypeAlias = tuple[int, int]


class ServerTokens:
    """The tokens of one server at one URL. If nothing can be kept on this machine, they last as long as the process."""

    def __init__(self, folder: Path, server: str, url: str, keychain: Keychain) -> None:
        digest = hashlib.sha256(f"{server}\0{url}".encode()).hexdigest()[:32]
        self._state_folder, self._server = folder, server
        self._marker = folder / _FOLDER / f"{digest}.json"
        self._file = folder / _FOLDER / f"{digest}.tokens"
        self._lock = folder / _FOLDER / f"{digest}.lock"
        self._keychain, self._key = keychain, f"sign-in {digest}"
        self._stamp: _Stamp | None = None

    async def load(self) -> str | None:
        self._stamp = self._stamp_now()
        kept = self._kept()
        if kept == "keyring":
            return await self._keychain.get(self._key)
        return await asyncio.to_thread(self._read) if kept == "file" else None

    async def save(self, text: str) -> None:
        is_in_keyring = await self._keychain.set(self._key, text)
        try:
            await asyncio.to_thread(self._write, None if is_in_keyring else text)
        except (OSError, NotPrivate) as error:
            said = error.strerror if isinstance(error, OSError) else error.about
            logger.warning("%s: you are signed in until this program ends: %s", self._server, said)
        self._stamp = self._stamp_now()

    async def delete(self) -> None:
        if self._kept() == "keyring":
            await self._keychain.delete(self._key)
        for path in (self._file, self._marker):
            with suppress(OSError):
                path.unlink()
        self._stamp = self._stamp_now()

    def has_changed(self) -> bool:
        return self._stamp_now() != self._stamp

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        try:
            private_folder(self._state_folder, _FOLDER)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        except (OSError, NotPrivate):
            yield
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOCK_LIMIT):
                    while not lock(descriptor):  # noqa: ASYNC110  # other processes tell nothing
                        await asyncio.sleep(_LOCK_PAUSE)
            yield
        finally:
            os.close(descriptor)

    def _stamp_now(self) -> _Stamp | None:
        try:
            found = self._marker.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _kept(self) -> str | None:
        """Where the marker says that the tokens are."""
        try:
            check_private(self._marker.parent, self._marker)
            marker = json.loads(self._marker.read_text("utf-8"))
        except NotPrivate as error:
            logger.warning("%s: nobody is signed in: %s", self._server, error.about)
            return None
        except (OSError, ValueError):
            return None
        return str(marker.get("kept")) if isinstance(marker, dict) else None

    def _read(self) -> str | None:
        try:
            check_private(self._file)
            if os.name == "posix" and self._file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                logger.warning("%s: others on this machine could read %s; sign in again", self._server, self._file)
                self._file.chmod(0o600)
            return self._file.read_text("utf-8")
        except NotPrivate as error:
            logger.warning("%s: nobody is signed in: %s", self._server, error.about)
        except (OSError, ValueError):
            pass
        return None

    def _write(self, text: str | None) -> None:
        """Write the tokens, unless they are in the keyring, then the marker."""
        private_folder(self._state_folder, _FOLDER)
        if text is None:
            self._file.unlink(missing_ok=True)
        else:
            replace_file(self._file, text.encode())
        marker = {"server": self._server, "kept": "keyring" if text is None else "file", "id": secrets.token_hex(8)}
        replace_file(self._marker, json.dumps(marker).encode())


_INTERVAL = 1.0  # seconds between looks for a sign-in of another process


class SignIns:
    """The owner signs in by command: no MCP server can have a page opened.

    `start` is called with the name of a server that can be started because another process has signed in. `on_ended` is
    told of each sign-in whether it has worked.
    """

    manager: Manager

    def __init__(self, mask: Mask, folder: Path, *, limit: float, start: Callable[[str], None]) -> None:
        self._mask, self._folder, self._limit, self._start = mask, folder, limit, start
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
                "it is a program, or its configuration has a credential of its own",
                subject=_of(config.name),
                cause="own credential",
            )
        return account

    async def sign_in(self, account: Account, browser: Browser) -> None:
        """Sign in as the owner asks for, and start the server again if it waits for that. Raises `SignInFailed`."""
        name = account.server
        try:
            await account.sign_in(browser)
        except SignInFailed as failure:
            reason = self._mask.text(failure.reason, name)
            raise SignInFailed(reason, subject=_of(name), cause=failure.cause) from None
        if name in self.manager and self.manager[name].state == "auth_required":
            await self.manager.start(name)

    async def is_signed_in(self, account: Account) -> bool:
        """True if there are tokens, including those that another process has obtained meanwhile."""
        if await account.load():
            self._on_other_process(account.server)
        return account.is_signed_in

    async def sign_out(self, account: Account) -> bool:
        """Forget the token. Returns whether its provider has revoked it."""
        is_revoked = await account.sign_out()
        if account.server in self.manager:
            self.manager[account.server].check_soon()
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
            if self.manager[name].state == "auth_required":
                self._start(name)
            else:
                self.manager[name].check_soon()


def _of(server: str) -> str:
    return f"server {server!r}"


def _wants_account(config: MCPServerConfig) -> bool:
    """True if a token of ours may be sent: not beside a configured credential, unless `auth` permits it."""
    assert not isinstance(config, StdioConfig)
    asked = config.server_parameters
    if asked.auth is not None:
        return True
    return (
        "authorization" not in {name.lower() for name in asked.headers or {}} and "@" not in urlsplit(asked.url).netloc
    )
