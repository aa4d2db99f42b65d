"""The file that is imported into: what it holds already, what becomes of it, and how it is replaced."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2c_smcp.computer.configuration.files import read_data
from a2c_smcp.computer.imports.convert import Conversion
from a2c_smcp.computer.inputs.render import ids_in
from a2c_smcp.computer.secrets.shown import shown
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import parse_input, parse_server, source

__all__ = ["Merged", "Target", "merge", "replace_file"]

_SHAPE = 'must be JSON of the shape {"servers": {…}, "inputs": […]} to be imported into'


@dataclass(frozen=True)
class Target:
    """A file as it is now, or as it will be: empty as long as there is none."""

    path: Path
    data: Mapping[str, Any] = field(repr=False)
    exists: bool = True
    has_comments: bool = False

    @classmethod
    def read(cls, path: Path) -> Target:
        """Raises `ConfigError` for what cannot be imported into."""
        if not path.exists():
            return cls(path, {}, exists=False)
        data = read_data(path)
        groups = [data.get(key, {}) for key in ("servers", "mcpServers")] if isinstance(data, dict) else [None]
        is_ours = all(isinstance(group, dict) for group in groups) and isinstance(data.get("inputs", []), list)
        if not is_ours or path.suffix.lower() == ".toml":
            raise ConfigError(f"{path}: {_SHAPE}")
        return cls(path, data, has_comments=not _is_plain_json(path.read_text("utf-8-sig")))

    @property
    def servers(self) -> dict[str, Any]:
        return {**self.data.get("mcpServers", {}), **self.data.get("servers", {})}

    @property
    def inputs(self) -> dict[str, Any]:
        return {each["id"]: each for each in self.data.get("inputs", []) if isinstance(each, dict) and "id" in each}

    @property
    def holds_secrets(self) -> bool:
        """Whether there is anything in it that could be one."""
        return shown(self.data) != self.data

    def text(self) -> str:
        return json.dumps(self.data, indent=2, ensure_ascii=False) + "\n"

    def write(self) -> None:
        """Whole or not at all; for its owner alone if there is a secret in it."""
        replace_file(self.path, self.text(), private=self.holds_secrets)


@dataclass(frozen=True)
class Merged:
    """What the file becomes. `clashes` are names that have other content there, with what they are."""

    target: Target
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    clashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def taken(self) -> tuple[str, ...]:
        return (*self.added, *self.replaced, *self.unchanged)


def merge(target: Target, conversion: Conversion, *, replace: bool) -> Merged:
    """What is in the file stays, unless `replace` lets new content take the place of old under the same name."""
    there, inputs = target.servers, target.inputs
    wrong_inputs = {
        id_ for id_, new in conversion.inputs.items() if id_ in inputs and not _is_same_input(inputs[id_], new)
    }
    fate = {name: _fate(name, new, there, wrong_inputs, replace) for name, new in conversion.servers.items()}
    new = {name: conversion.servers[name] for name, what in fate.items() if what in ("added", "replaced")}
    wanted = ids_in(list(new.values()))
    definitions = {id_: each for id_, each in conversion.inputs.items() if id_ in wanted}
    return Merged(
        Target(target.path, _with(target.data, new, definitions), target.exists),
        **{kind: tuple(name for name in fate if fate[name] == kind) for kind in ("added", "replaced", "unchanged")},
        clashes={name: what for name, what in fate.items() if what not in ("added", "replaced", "unchanged")},
    )


def _fate(name: str, new: Any, there: Mapping[str, Any], wrong_inputs: set[str], replace: bool) -> str:
    if wrong := sorted(ids_in(new) & wrong_inputs):
        if not replace:
            return f"its input {wrong[0]!r} is there with another definition"
    elif name in there and _is_same_server(there[name], new, name):
        return "unchanged"
    if name not in there:
        return "added"
    return "replaced" if replace else "it is there with other content"


def _with(data: Mapping[str, Any], servers: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    result = {**data, "servers": {**data.get("servers", {}), **servers}}
    if "mcpServers" in data:
        result["mcpServers"] = {name: each for name, each in data["mcpServers"].items() if name not in servers}
    before = [each for each in data.get("inputs", []) if not (isinstance(each, dict) and each.get("id") in inputs)]
    return {**result, "inputs": [*before, *inputs.values()]} if inputs else result


def _is_same_server(old: Any, new: Any, name: str) -> bool:
    try:
        return source(parse_server(old, name)) == source(parse_server(new, name))
    except ConfigError:
        return bool(old == new)


def _is_same_input(old: Any, new: Any) -> bool:
    try:
        return parse_input(old) == parse_input(new)
    except ConfigError:
        return bool(old == new)


def _is_plain_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def replace_file(path: Path, text: str, *, private: bool) -> None:
    """Puts a new file in the place of an old one, whose mode it keeps unless it is private. Raises `ConfigError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if not private:
                Path(draft).chmod(_mode(path))
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _mode(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
