"""Configured MCP servers: placeholders filled in, secrets given to the mask, results transformed.

`HostedServers` has the configurations as the owner wrote them, with placeholders. The manager (`mcp_host`) has them
filled in, and runs the servers. A server is started in three steps: `put` makes its configuration known, `fill_in` asks
for the values of its inputs and hands the filled-in configuration to the manager, and the manager starts it. A server
whose inputs are missing is known here and not to the manager, with the reason in `_waiting`.

What may race: the owner may take minutes to answer a question, and meanwhile the server may be changed, stopped or
removed, or the input changed. So nobody waits for a question but `fill_in`, which asks without holding a lock. Each
server has one question at a time (`_asking`); a change or a stop of the server withdraws it. Only after the answer
does `fill_in` take the lock of the server, and gives up if its question is no longer the current one. All that changes
a server holds that lock, so a filled-in configuration never replaces a newer one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.configuration.definitions import InputError, ids_in, render
from a2c_smcp.computer.configuration.resolver import Inputs
from a2c_smcp.computer.desktop.organize import Contents, Window
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.computer.secrets.rules import secrets_in, secrets_of
from a2c_smcp.computer.sign_in import Browser, SignIns
from a2c_smcp.computer.tells import ServerLogs
from a2c_smcp.errors import ConfigError, ServerNotFound
from a2c_smcp.files import default_folder
from a2c_smcp.loops import OwnedTasks, cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server, source
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.processes.environment import proxies
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.status import OnChange, OnServerEvent, ServerStatus, State
from a2c_smcp.mcp_host.supervisor import SeenServers
from a2c_smcp.mcp_host.transforms import Mapper, Transform, VRLScript
from a2c_smcp.protocol.names import BundleIds
from a2c_smcp.protocol.structure import ARGUMENTS

logger = logging.getLogger(__name__)


class HostedServers:
    """The configured servers of a computer. `configs` may hold placeholders; `manager` runs the servers."""

    def __init__(
        self,
        inputs: Inputs,
        mask: Mask,
        *,
        policy: HostLimits | None,
        on_change: OnChange,
        on_event: OnServerEvent,
        logs: ServerLogs,
        on_starting: Callable[[], None],
        state_folder: Path | None = None,
        computer: str = "",
    ) -> None:
        self.inputs = inputs
        self.configs: dict[str, MCPServerConfig] = {}
        self.bundle_ids = BundleIds()
        self.sign_ins = SignIns(
            mask,
            state_folder or default_folder(),
            limit=(policy or HostLimits()).sign_in_limit,
            start=lambda name: self._restart(self._start(name)),
        )
        self.manager = Manager(
            policy=policy,
            on_change=on_change,
            on_event=on_event,
            on_log=logs.add,
            account_for=self.sign_ins.account_for,
            seen=SeenServers(computer, state_folder),
        )
        self.sign_ins.manager = self.manager
        self._mask = mask
        self._logs = logs
        self._setting_levels = OwnedTasks()
        logs.on_fewer = lambda: self._setting_levels.spawn(self.set_log_levels())
        self._on_change = on_change
        self._on_starting = on_starting
        self._log_levels: dict[str, str | None] = {}
        self._starts: Counter[str] = Counter()
        self._waiting: dict[str, str] = {}
        self._scripts: dict[str, VRLScript] = {}
        self._transforms: dict[tuple[str, str], Transform] = {}
        self._changing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asking: dict[str, asyncio.Future[MCPServerConfig]] = {}
        self._withdrawn: set[asyncio.Future[MCPServerConfig]] = set()
        self._restarting: set[asyncio.Future[None]] = set()
        self._unsubscribe = inputs.subscribe(self._on_inputs)
        self._mask.add(secret for proxy in proxies(os.environ) for secret in secrets_in(proxy))

    def status(self) -> dict[str, ServerStatus]:
        """The status of every configured server without secrets, in the order of the configuration."""
        known = self.manager.status()
        return {
            name: replace(
                status,
                reason=self._mask.text(status.reason, name),
                diagnostics=self._mask.data(status.diagnostics, ARGUMENTS, name),
            )
            for name in self.configs
            for status in [known.get(name) or _missing(name, self._waiting.get(name, ""))]
        }

    @property
    def warnings(self) -> list[str]:
        """Warnings about parts of servers that are left out, without secrets."""
        return [
            f"server {name!r}: {self._mask.text(warning, name)}"
            for name, status in self.status().items()
            for warning in status.warnings
        ]

    @property
    def starting(self) -> list[str]:
        """Servers that are being started, whose tools are not known yet. Asking for inputs is a part of starting."""
        return [name for name, config in self.configs.items() if not config.disabled and self._is_starting(name)]

    async def check(self, config: MCPServerConfig) -> None:
        """Raise the `ConfigError` that `put` would raise."""
        if script := await _compiled(config):
            await script.close()

    async def put(self, config: MCPServerConfig) -> None:
        """Add a server, or replace the one of this name. Raises `ConfigError` before anything is changed.

        The server is neither filled in nor started yet. One that is replaced runs until the new one is filled in.
        """
        script = await _compiled(config)
        async with self._changing[config.name]:
            self._withdraw(config.name)
            self._learn(config)
            self.configs[config.name] = config
            self.bundle_ids.put(source(config))
            self._waiting[config.name] = ""
            await self._forget_transforms(config.name)
            if script:
                self._scripts[config.name] = script

    async def remove(self, name: str) -> None:
        async with self._changing[name]:
            if name not in self.configs:
                raise _not_found(name)
            self._withdraw(name)
            del self.configs[name]
            self.bundle_ids.remove(name)
            self._waiting.pop(name, None)
            await self._forget_transforms(name)
            if name in self.manager:
                await self.manager.remove(name)
            self.sign_ins.forget(name)

    async def fill_in(self, name: str, *, is_wanted: bool = False) -> None:
        """Fill in the configuration with the current values of its inputs, and hand it to the manager.

        The server is started if it `is_wanted`, if it is new, and if it replaces one that was not stopped.
        """
        if (config := self.configs.get(name)) is None:
            return
        with self._start_of(name):
            self._withdraw(name)
            asking = self._asking[name] = asyncio.ensure_future(self._filled(config))
            # Wait for a question. If the waiting is cancelled, so is the question.
            try:
                await asyncio.wait([asking])
            finally:
                asking.cancel()
            async with self._changing[name]:
                if self._asking.get(name) is not asking:
                    return
                del self._asking[name]
                is_wanted |= await self._hand_over(config, asking)
            if is_wanted and name in self.manager:
                await self.manager.start(name)

    async def start(self, name: str | None = None) -> None:
        """Start one server, or all. Missing inputs are asked for again. Raises `ServerNotFound`."""
        await asyncio.gather(*(self._start(server) for server in self._named(name)))

    async def stop(self, name: str | None = None) -> None:
        """Stop one server, or all, including those that are about to start. Raises `ServerNotFound`."""
        await asyncio.gather(*(self._stop(server) for server in self._named(name)))

    async def restart(self, name: str) -> None:
        name = self.known(name)
        await self._stop(name)
        await self._start(name)

    def windows(self) -> list[Window]:
        """The windows of all servers, each with its position in the list of its server."""
        return [
            Window.listed(name, listed, index)
            for name in self.manager
            for index, listed in enumerate(self.manager[name].windows)
        ]

    async def read(self, window: Window, limit: float) -> Contents:
        request = ReadRequest.of_resource(window.uri, limit)
        contents: Contents = (await self.manager[window.server].requests.read(request)).get("contents")
        return contents

    async def close(self) -> None:
        self._unsubscribe()
        for name in [*self._asking]:
            self._withdraw(name)
        self._logs.on_fewer = lambda: None
        await self._setting_levels.close()
        await cancel_and_wait(*self._restarting, *self._withdrawn)
        await self.sign_ins.close()
        await self.manager.close()
        for script in self._scripts.values():
            await script.close()

    def transform(self, route: ToolRoute) -> Transform:
        """The transform for results of a tool: its mapper and the script of its server."""
        key = (route.server, route.tool)
        if key not in self._transforms:
            fields = route.meta.ret_object_mapper
            mapper = Mapper(fields) if fields else None
            self._transforms[key] = Transform(mapper=mapper, script=self._scripts.get(route.server))
        return self._transforms[key]

    async def _start(self, name: str) -> None:
        if name in self._waiting:
            await self.fill_in(name, is_wanted=True)
        elif name in self.manager:
            with self._start_of(name):
                await self.manager.start(name)

    async def sign_in(self, name: str, browser: Browser) -> None:
        """Sign in to a server, and start it again if it waits for that. Raises `SignInFailed`, `ServerNotFound`."""
        account = await self._account(name)
        with self._start_of(name):
            await self.sign_ins.sign_in(account, browser)

    async def is_signed_in(self, name: str) -> bool:
        """True if there are tokens for a server. Raises `SignInFailed`, `ServerNotFound`."""
        return await self.sign_ins.is_signed_in(await self._account(name))

    async def sign_out(self, name: str) -> bool:
        """Forget the token of a server. Returns whether its provider has revoked it."""
        return await self.sign_ins.sign_out(await self._account(name))

    async def _account(self, name: str) -> Account:
        config = self.configs[name := self.known(name)]
        return self.sign_ins.known(name) or self.sign_ins.required(await self._filled(config))

    def _is_starting(self, name: str) -> bool:
        if name not in self.manager:
            return self._starts[name] > 0
        server = self.manager[name]
        return server.state != "ready" and not server.tools and (server.state == "starting" or self._starts[name] > 0)

    @contextmanager
    def _start_of(self, name: str) -> Iterator[None]:
        """Count the server as starting, from the first question to the owner until it is ready or has failed."""
        self._starts[name] += 1
        self._on_starting()
        try:
            yield
        finally:
            self._starts[name] -= 1
            self._on_starting()

    async def _stop(self, name: str) -> None:
        async with self._changing[name]:
            self._withdraw(name)
            await self.sign_ins.withdraw(name)
            if name in self.manager:
                await self.manager.stop(name)

    def _on_inputs(self, ids: frozenset[str]) -> None:
        """Restart the servers that use these inputs, with the current values."""
        users = [name for name, config in self.configs.items() if ids & ids_in(source(config))]
        for name in users:
            if name in self.manager or name in self._asking or self._waiting.get(name):
                self._restart(self.fill_in(name))

    def _restart(self, work: Coroutine[Any, Any, None]) -> None:
        restarting = asyncio.ensure_future(work)
        self._restarting.add(restarting)
        restarting.add_done_callback(self._restarted)

    def _restarted(self, task: asyncio.Future[None]) -> None:
        self._restarting.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a server could not be started again", exc_info=error)

    def _withdraw(self, name: str) -> None:
        """Cancel the question for the inputs of a server: it is out of date."""
        if asking := self._asking.pop(name, None):
            asking.cancel()
            self._withdrawn.add(asking)
            asking.add_done_callback(self._withdrawn.discard)

    async def _hand_over(self, config: MCPServerConfig, asking: asyncio.Future[MCPServerConfig]) -> bool:
        """Give the filled-in configuration to the manager. Returns whether the server is to be started."""
        try:
            filled = asking.result()
        except (InputError, ConfigError) as error:
            await self._wait(config.name, str(error))
            return False
        except (
            Exception,
            asyncio.CancelledError,
        ):  # of the code that asks the owner: fails this server only
            logger.exception("%s: its inputs cannot be asked for", config.name)
            await self._wait(config.name, "its inputs cannot be asked for")
            return False
        self._waiting.pop(config.name, None)
        is_wanted = True
        if config.name in self.manager:
            is_wanted = await self.manager.replace(filled)
        else:
            self.manager.add(filled)
        await self._set_log_level(config.name)
        return is_wanted

    async def set_log_levels(self) -> None:
        """Ask each server for the messages that are wanted of it now."""
        await asyncio.gather(*(self._set_log_level(name) for name in self.manager))

    async def _set_log_level(self, name: str) -> None:
        level = self._logs.level_for(name)
        if level != self._log_levels.get(name) or level is not None:
            self._log_levels[name] = level
            await self.manager[name].request_logs(level)

    async def _wait(self, name: str, reason: str) -> None:
        self._waiting[name] = reason
        if name in self.manager:
            await self.manager.remove(name)
        self._on_change(name, "failed", reason)

    async def _filled(self, config: MCPServerConfig) -> MCPServerConfig:
        data = source(config)
        ids = ids_in(data)
        if not ids or config.disabled:
            return config
        resolved = await self.inputs.resolve(ids, server=config.name)
        self._mask.add(resolved.secrets, config.name)
        filled = parse_server(render(data, resolved.values, server=config.name))
        self._learn(filled)
        return filled

    def _learn(self, config: MCPServerConfig) -> None:
        """Mask the secrets in a configuration from now on, whether they were written into it or came from inputs."""
        secrets = secrets_of({"servers": {config.name: source(config)}})
        self._mask.add(secrets.found, config.name)
        self._mask.suspect(secrets.suspected)

    async def _forget_transforms(self, name: str) -> None:
        for key in [key for key in self._transforms if key[0] == name]:
            del self._transforms[key]
        if script := self._scripts.pop(name, None):
            await script.close()

    def _named(self, name: str | None) -> list[str]:
        return [*self.configs] if name is None else [self.known(name)]

    def known(self, server: str) -> str:
        """The name of the configured server with this name or bundle id. Raises `ServerNotFound`."""
        if name := self.bundle_ids.server(server):
            return name
        raise _not_found(server)


def _not_found(server: str) -> ServerNotFound:
    return ServerNotFound(repr(server), server=server)


async def _compiled(config: MCPServerConfig) -> VRLScript | None:
    """The script of a configuration. Raises `ConfigError` if its script or a mapper can never work."""
    try:
        for meta in (config.default_tool_meta, *config.tool_meta.values()):
            if meta and meta.ret_object_mapper:
                Mapper(meta.ret_object_mapper)
        return await _script(config.vrl) if config.vrl else None
    except ConfigError as error:
        raise ConfigError(error.about, subject=f"server {config.name!r}") from None


async def _script(text: str) -> VRLScript:
    script = VRLScript(text)
    try:
        await script.compile()
    except ConfigError:
        await script.close()
        raise
    return script


def _missing(name: str, reason: str) -> ServerStatus:
    state: State = "failed" if reason else "stopped"
    return ServerStatus(name=name, state=state, reason=reason, tools=0, windows=0, starts=0, revision="")
