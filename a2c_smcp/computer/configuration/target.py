"""The file of MCP servers that is changed: by an import, which writes it anew, or in one entry, the rest as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from a2c_smcp.computer.configuration.convert import Conversion
from a2c_smcp.computer.configuration.definitions import ids_in
from a2c_smcp.computer.configuration.files import (
    BYTE_ORDER_MARK,
    GROUPS,
    loads,
    read_data,
    sections_of,
    unified_diff,
    with_member,
    without_member,
)
from a2c_smcp.computer.configuration.resolver import Keychain
from a2c_smcp.computer.secrets.replace import masked_file
from a2c_smcp.errors import ConfigError
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, replace_file
from a2c_smcp.mcp_host.config.servers import parse_input, parse_server, source

_SHAPE = 'must be JSON of the shape {"servers": {…}, "inputs": […]} to be imported into'


@dataclass(frozen=True)
class ImportTarget:
    """A configuration file as it is now, or as it will be. `data` is empty if there is no file."""

    path: Path
    data: Mapping[str, Any] = field(repr=False)
    exists: bool = True
    has_comments: bool = False

    @classmethod
    def read(cls, path: Path) -> ImportTarget:
        """Raises `ConfigError` if the file cannot be imported into."""
        if not path.exists():
            return cls(path, {}, exists=False)
        data = read_data(path)
        groups = [data.get(key, {}) for key in GROUPS] if isinstance(data, dict) else [None]
        is_ours = all(isinstance(group, dict) for group in groups) and isinstance(data.get("inputs", []), list)
        if not is_ours or path.suffix.lower() == ".toml":
            raise ConfigError(f"{path}: {_SHAPE}")
        return cls(path, data, has_comments=not _is_plain_json(path.read_text("utf-8-sig")))

    @property
    def servers(self) -> dict[str, Any]:
        return {**self.data.get("mcpServers", {}), **self.data.get("servers", {})}

    @property
    def inputs(self) -> dict[str, Any]:
        return {
            definition["id"]: definition
            for definition in self.data.get("inputs", [])
            if isinstance(definition, dict) and "id" in definition
        }

    @property
    def holds_secrets(self) -> bool:
        """True if any part could be a secret."""
        return masked_file(self.data) != self.data

    def text(self) -> str:
        return json.dumps(self.data, indent=2, ensure_ascii=False) + "\n"

    def write(self) -> None:
        """Replace the file as a whole; only its owner can read it if it may hold a secret."""
        write_text(self.path, self.text(), private=self.holds_secrets)


def difference(before: ImportTarget, after: ImportTarget) -> str:
    """The change of a file as a unified diff without secrets. Empty if nothing changes that may be shown."""
    return unified_diff(before.path, _lines(before) if before.exists else None, _lines(after))


def _lines(target: ImportTarget) -> list[str]:
    return json.dumps(masked_file(target.data), indent=2, ensure_ascii=False).splitlines()


@dataclass(frozen=True)
class Merged:
    """The file with the servers that were added. `clashes` are servers that were left out, with the reason."""

    target: ImportTarget
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    clashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def taken(self) -> tuple[str, ...]:
        return (*self.added, *self.replaced, *self.unchanged)


def merge(target: ImportTarget, conversion: Conversion, *, replace: bool) -> Merged:
    """Add the converted servers to a file. Servers that it has under the same names stay, unless `replace`."""
    changed_inputs = {
        id_ for id_, new in conversion.inputs.items() if not _is_same_input(target.inputs.get(id_, new), new)
    }
    fates = {
        name: _fate(name, new, target.servers, changed_inputs, replace) for name, new in conversion.servers.items()
    }
    new = {name: conversion.servers[name] for name, fate in fates.items() if fate in ("added", "replaced")}
    wanted = ids_in(list(new.values()))
    definitions = {id_: each for id_, each in conversion.inputs.items() if id_ in wanted}
    return Merged(
        ImportTarget(target.path, _with(target.data, new, definitions), target.exists),
        added=_with_fate(fates, "added"),
        replaced=_with_fate(fates, "replaced"),
        unchanged=_with_fate(fates, "unchanged"),
        clashes={name: fate for name, fate in fates.items() if fate not in ("added", "replaced", "unchanged")},
    )


def _with_fate(fates: Mapping[str, str], wanted: str) -> tuple[str, ...]:
    return tuple(name for name, fate in fates.items() if fate == wanted)


def _fate(name: str, new: Any, there: Mapping[str, Any], changed_inputs: set[str], replace: bool) -> str:
    """`added`, `replaced`, `unchanged`, or a sentence on why it is left out."""
    if changed := sorted(ids_in(new) & changed_inputs):
        if not replace:
            return f"its input {changed[0]!r} is there with another definition"
    elif name in there and _is_same_server(there[name], new, name):
        return "unchanged"
    if name not in there:
        return "added"
    return "replaced" if replace else "it is there with other content"


def _with(data: Mapping[str, Any], servers: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    result = {**data, "servers": {**data.get("servers", {}), **servers}}
    if "mcpServers" in data:
        result["mcpServers"] = {name: each for name, each in data["mcpServers"].items() if name not in servers}
    before = [
        definition
        for definition in data.get("inputs", [])
        if not (isinstance(definition, dict) and definition.get("id") in inputs)
    ]
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


@dataclass(frozen=True)
class ServersFile:
    """A configuration file whose entries are changed one by one. `text` is `None` if there is no file."""

    path: Path
    text: str | None = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> ServersFile:
        """Raises `ConfigError` for a file in which no single entry can be changed."""
        path = path.expanduser().resolve()  # a link stays one: its target is replaced
        if path.suffix.lower() == ".toml":
            raise ConfigError(f"{path}: {_SHAPE}")
        file = cls(path, read_whole(path))
        try:
            data = file.data
        except ConfigError as error:
            raise ConfigError(error.about, subject=str(path)) from None
        if not isinstance(data, dict) or any(entry.name is None for entry in sections_of(data).servers):
            raise ConfigError(f"{path}: {_SHAPE}")
        return file

    @cached_property
    def data(self) -> Any:
        body = (self.text or "").removeprefix(BYTE_ORDER_MARK)
        return loads(body) if body.strip() else {}

    @property
    def servers(self) -> dict[str, Any]:
        """The entries as they are written, in their order."""
        return {name: entry for group in GROUPS for name, entry in self.data.get(group, {}).items()}

    def with_entry(self, name: str, *changes: tuple[Sequence[str], Any]) -> ServersFile:
        """The file with these values at paths inside an entry; an empty path is the whole of it."""
        text = self.text or ""
        for path, value in changes:
            text = with_member(text, (self._group_of(name), name, *path), value)
        return ServersFile(self.path, text)

    def without_entry(self, name: str) -> ServersFile:
        return ServersFile(self.path, without_member(self.text or "", self._group_of(name), name))

    def write(self, before: ServersFile) -> None:
        """Replace the file, unless another program has changed it meanwhile. Raises `ConfigError`."""
        if read_whole(self.path) != before.text:
            raise ConfigError(f"{self.path} has just been changed by another program")
        write_text(self.path, self.text or "", private=False)

    def _group_of(self, name: str) -> str:
        there = [group for group in GROUPS if group in self.data]
        return next((group for group in there if name in self.data[group]), (*there, GROUPS[0])[0])


def read_whole(path: Path) -> str | None:
    """The text with its line ends and byte order mark; `None` if there is no file. Raises `ConfigError`."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from None


def write_text(path: Path, text: str, *, private: bool) -> None:
    """Replace a file as a whole. It keeps its mode, unless it is private. Raises `ConfigError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o600 if private else _mode(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _mode(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@dataclass(frozen=True)
class StoredValues:
    """Where each value is now, by id. `others` are ids that have another value already, which was not replaced."""

    in_keyring: list[str] = field(default_factory=list)
    in_file: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


async def store_values(values: Mapping[str, str], file: Path, *, use_keyring: bool, replace: bool) -> StoredValues:
    """Put the values of secrets into the keyring, or else into a file that only its owner can read.

    Raises `ConfigError` if the file cannot be read or written.
    """
    if not values:
        return StoredValues()
    before, keychain = _read_values(file), Keychain(enabled=use_keyring)
    after, stored = dict(before), StoredValues()
    for id_, value in sorted(values.items()):
        if not replace and (await keychain.get(id_) or before.get(id_)) not in (None, value):
            stored.others.append(id_)
        elif await keychain.set(id_, value):
            after.pop(id_, None)
            stored.in_keyring.append(id_)
        else:
            after[id_] = value
            stored.in_file.append(id_)
    if after != before:
        write_text(file, json.dumps(after, indent=2, ensure_ascii=False) + "\n", private=True)
    return stored


def _read_values(file: Path) -> dict[str, Any]:
    try:
        return PrivateJSONFile(file).load()
    except PrivateFileUnusable as error:
        raise ConfigError(str(error)) from None
