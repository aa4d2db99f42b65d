"""MCP servers as they are configured: their inputs filled in, their secrets known to the mask, their results mapped."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from a2c_smcp.computer.inputs.errors import InputError
from a2c_smcp.computer.inputs.render import ids_in, render
from a2c_smcp.computer.inputs.resolver import Inputs
from a2c_smcp.computer.mcp_clients.manager import Manager
from a2c_smcp.computer.mcp_clients.model import MCPServerConfig, parse_server, source, to_wire
from a2c_smcp.computer.mcp_clients.policy import Policy
from a2c_smcp.computer.mcp_clients.status import OnChange, OnServerEvent, ServerStatus, State
from a2c_smcp.computer.mcp_clients.transform import Mapper, Transform
from a2c_smcp.computer.mcp_clients.vrl import VRLScript
from a2c_smcp.computer.secrets import Mask, literal_secrets
from a2c_smcp.computer.tools import ToolRoute
from a2c_smcp.errors import ConfigError, ServerNotFound

__all__ = ["Hosting"]

logger = logging.getLogger(__name__)


class Hosting:
    """The configurations, which may hold placeholders, and the manager, which knows only what they are filled in to.

    A server whose inputs are missing is known here and not there, with the reason.
    """

    def __init__(
        self, inputs: Inputs, mask: Mask, *, policy: Policy | None, on_change: OnChange, on_event: OnServerEvent
    ) -> None:
        self.inputs = inputs
        self.configs: dict[str, MCPServerConfig] = {}
        self.manager = Manager(policy=policy, on_change=on_change, on_event=on_event)
        self._mask = mask
        self._on_change = on_change
        self._waiting: dict[str, str] = {}
        self._scripts: dict[str, VRLScript] = {}
        self._transforms: dict[tuple[str, str], Transform] = {}
        self._changing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def status(self) -> dict[str, ServerStatus]:
        """Every configured server, in the order of its configuration."""
        known = self.manager.status()
        return {name: known.get(name) or _missing(name, self._waiting.get(name, "")) for name in self.configs}

    async def put(self, config: MCPServerConfig, *, start: bool = True) -> None:
        """Adds a server, or replaces the one of this name. Raises `ConfigError` before anything is changed.

        One that is not to be started yet is not filled in yet either: that may take an owner's answer.
        """
        script = await _compiled(config)
        async with self._changing[config.name]:
            self._mask.add(literal_secrets({"servers": {config.name: to_wire(config)}}))
            self.configs[config.name] = config
            await self._forget_transforms(config.name)
            if script:
                self._scripts[config.name] = script
            if start:
                await self._fill_in(config)
            else:
                self._waiting[config.name] = ""

    async def remove(self, name: str) -> None:
        async with self._changing[name]:
            self._known(name)
            del self.configs[name]
            self._waiting.pop(name, None)
            await self._forget_transforms(name)
            if name in self.manager:
                await self.manager.remove(name)

    async def start(self, name: str | None = None) -> None:
        """Starts one server, or all. What is missing may have been given meanwhile."""
        if name is not None:
            self._known(name)
        await asyncio.gather(*(self._start(each) for each in self.configs if name in (None, each)))

    def users_of(self, ids: frozenset[str]) -> list[str]:
        """The servers whose configuration refers to one of these inputs."""
        return [name for name, config in self.configs.items() if ids & ids_in(source(config))]

    async def fill_in_again(self, names: list[str]) -> None:
        """Restarts these servers with the inputs as they are now."""
        await asyncio.gather(*(self._again(name) for name in names))

    async def close(self) -> None:
        await self.manager.close()
        for script in self._scripts.values():
            await script.close()

    def transform(self, route: ToolRoute) -> Transform:
        """What is done to the results of a tool."""
        key = (route.server, route.tool)
        if key not in self._transforms:
            fields = route.meta.ret_object_mapper
            mapper = Mapper(fields) if fields else None
            self._transforms[key] = Transform(mapper=mapper, script=self._scripts.get(route.server))
        return self._transforms[key]

    async def _start(self, name: str) -> None:
        async with self._changing[name]:
            if name in self._waiting:
                await self._fill_in(self.configs[name])
                return
        if name in self.manager:
            await self.manager.start(name)

    async def _again(self, name: str) -> None:
        async with self._changing[name]:
            if name in self.configs and (name in self.manager or self._waiting.get(name)):
                await self._fill_in(self.configs[name])

    async def _fill_in(self, config: MCPServerConfig) -> None:
        """Gives the manager what the configuration means now, and starts it, unless its owner had stopped it."""
        try:
            filled = await self._filled(config)
        except (InputError, ConfigError) as error:
            await self._wait(config.name, str(error))
            return
        except Exception:  # of whoever asks the owner: none of the others shall suffer
            logger.exception("%s: its inputs cannot be asked for", config.name)
            await self._wait(config.name, "its inputs cannot be asked for")
            return
        self._waiting.pop(config.name, None)
        if config.name in self.manager:
            await self.manager.replace(filled)
        else:
            self.manager.add(filled)
            await self.manager.start(config.name)

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
        self._mask.add(resolved.secrets)
        return parse_server(render(data, resolved.values, server=config.name))

    async def _forget_transforms(self, name: str) -> None:
        for key in [key for key in self._transforms if key[0] == name]:
            del self._transforms[key]
        if script := self._scripts.pop(name, None):
            await script.close()

    def _known(self, name: str) -> MCPServerConfig:
        if name not in self.configs:
            raise ServerNotFound(repr(name), server=name)
        return self.configs[name]


async def _compiled(config: MCPServerConfig) -> VRLScript | None:
    """Refuses a configuration whose mappers or script can never work."""
    metas = [config.default_tool_meta, *config.tool_meta.values()]
    for meta in metas:
        if meta and meta.ret_object_mapper:
            Mapper(meta.ret_object_mapper)
    if not config.vrl:
        return None
    script = VRLScript(config.vrl)
    try:
        await script.compile()
    except ConfigError:
        await script.close()
        raise
    return script


def _missing(name: str, reason: str) -> ServerStatus:
    state: State = "failed" if reason else "stopped"
    return ServerStatus(name=name, state=state, reason=reason, tools=0, windows=0, starts=0, revision="")
