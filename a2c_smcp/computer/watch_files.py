"""Configuration files that are watched: only what has changed is restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.config_files import Configuration, read_configuration
from a2c_smcp.computer.mcp_clients.model import source
from a2c_smcp.errors import ConfigError

__all__ = ["read_all", "watch"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0


def read_all(paths: Iterable[Path]) -> Configuration:
    """All files as one. Raises `ConfigError`, also for a name that stands in two of them."""
    merged = Configuration()
    unknown: list[str] = []
    for path in paths:
        found = read_configuration(path)
        for kind, known, new in (("server", merged.servers, found.servers), ("input", merged.inputs, found.inputs)):
            if twice := sorted(known.keys() & new.keys()):
                raise ConfigError(f"{path}: {kind} {twice[0]!r} stands in another file too")
        merged.servers.update(found.servers)
        merged.inputs.update(found.inputs)
        unknown += [f"{path}: {field}" for field in found.unknown]
    return Configuration(merged.servers, merged.inputs, tuple(unknown))


async def watch(
    computer: Computer,
    paths: list[Path],
    known: Configuration,
    on_fault: Callable[[str], None],
    interval: float = _INTERVAL,
) -> None:
    """Follows the files for ever. While they are wrong, nothing changes and the owner is told why."""
    before = known
    stamps: list[tuple[int, int] | None] = []  # the first look is at the contents: they may have changed since
    while True:
        await asyncio.sleep(interval)
        if (now := _stamps(paths)) == stamps:
            continue
        stamps = now
        try:
            after = read_all(paths)
            await apply(computer, before, after)
        except ConfigError as error:
            on_fault(f"the configuration is not taken: {error.message}")
        else:
            before = after


async def apply(computer: Computer, before: Configuration, after: Configuration) -> None:
    """Makes the computer what the files say now."""
    if before.inputs != after.inputs:
        computer.define_inputs(after.inputs.values())
    for name in before.servers.keys() - after.servers.keys():
        await computer.remove_server(name)
    for name, config in after.servers.items():
        if name not in before.servers or source(before.servers[name]) != source(config):
            await computer.put_server(config)


def _stamps(paths: list[Path]) -> list[tuple[int, int] | None]:
    return [_stamp(path) for path in paths]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size
