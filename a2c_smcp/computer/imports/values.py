"""The values of secrets that have left a configuration: kept in the keyring, or in a file for their owner alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.computer.imports.target import replace_file
from a2c_smcp.computer.inputs.errors import StoreUnreadable
from a2c_smcp.computer.inputs.keychain import Keychain
from a2c_smcp.computer.inputs.store import Store
from a2c_smcp.errors import ConfigError

__all__ = ["Kept", "keep_values"]


@dataclass(frozen=True)
class Kept:
    """Where each value is now, by id. `others` are ids under which another value is kept, which was left alone."""

    in_keyring: tuple[str, ...] = ()
    in_file: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


async def keep_values(values: Mapping[str, str], file: Path, *, use_keyring: bool, replace: bool) -> Kept:
    """Whatever the keyring does not keep goes into the file. Raises `ConfigError` if that cannot be written."""
    if not values:
        return Kept()
    in_file, keychain = _read(file), Keychain(enabled=use_keyring)
    known = {id_: await keychain.get(id_) or in_file.get(id_) for id_ in values}
    others = tuple(id_ for id_ in values if not replace and known[id_] not in (None, values[id_]))
    wanted = {id_: value for id_, value in values.items() if id_ not in others}
    kept = {id_ for id_, value in wanted.items() if await _is_kept(keychain, id_, value)}
    rest = {id_: value for id_, value in wanted.items() if id_ not in kept}
    after = {id_: value for id_, value in in_file.items() if id_ not in kept} | rest
    if after != in_file:
        replace_file(file, json.dumps(after, indent=2, ensure_ascii=False) + "\n", private=True)
    return Kept(tuple(sorted(kept)), tuple(sorted(rest)), others)


async def _is_kept(keychain: Keychain, id_: str, value: str) -> bool:
    """A keyring that keeps nothing may say that it does: only what can be had back is kept."""
    return await keychain.set(id_, value) and await keychain.get(id_) == value


def _read(file: Path) -> dict[str, Any]:
    try:
        return Store(file).load()
    except StoreUnreadable as error:
        raise ConfigError(str(error)) from None
