"""The configuration file of an MCP client: read, changed by one entry, shown without secrets, and written.

The rest of the file stays as it is written: it belongs to the client, and to its user. Before a change, the file is
copied to a backup beside it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.setup_files import find_running_up
from a2c_smcp.computer.configuration.files import (
    BYTE_ORDER_MARK,
    loads,
    significant_tokens,
    unified_diff,
    with_member,
    without_member,
)
from a2c_smcp.computer.configuration.programs import CLIENTS, PROGRAMS, Program
from a2c_smcp.computer.configuration.target import read_whole, write_text
from a2c_smcp.computer.configuration.toml_tables import load_toml, masked_toml, with_table, without_table
from a2c_smcp.computer.secrets.mask import MASKED
from a2c_smcp.computer.secrets.replace import masked_file
from a2c_smcp.errors import ConfigError
from a2c_smcp.files import default_folder, private_folder, replace_file

_DEFAULT = re.compile(r"(\$\{\w+:-)[^}]+")
"""The default in a reference such as `${API_KEY:-default}`, which may be a secret."""


def program_names(typed: str) -> Iterator[str]:
    """Names of programs that can be imported, for completion in a shell."""
    return (name for name in PROGRAMS if name.startswith(typed))


def client_names(typed: str) -> Iterator[str]:
    """Names of programs that can use an office, for completion in a shell."""
    return (name for name in CLIENTS if name.startswith(typed))


@dataclass(frozen=True)
class ClientFile:
    """The file of a program as it is now, or as it will be. `text` is `None` if there is none."""

    path: Path
    program: Program
    text: str | None = field(repr=False)

    @classmethod
    def read(cls, path: Path, program: Program) -> ClientFile:
        """Raises `ConfigError` for a file that cannot be changed safely."""
        if path.is_symlink():
            raise ConfigError(f"{path} is a link to {path.readlink()}, and would be replaced by a file")
        file = cls(path, program, read_whole(path))
        try:
            data = file.data
        except ConfigError as error:
            raise ConfigError(error.about, subject=str(path)) from None
        if not isinstance(data, dict) or not isinstance(data.get(program.group, {}), dict):
            raise ConfigError(f'{path}: is not of the shape {{"{program.group}": {{…}}}}')
        return file

    @cached_property
    def data(self) -> Any:
        """Raises `ConfigError` for a text that is not JSON, or TOML if it should be that."""
        body = (self.text or "").removeprefix(BYTE_ORDER_MARK)
        if self._is_toml:
            return load_toml(body)
        return loads(body) if body.strip() else {}

    @property
    def servers(self) -> Mapping[str, Any]:
        servers: Mapping[str, Any] = self.data.get(self.program.group, {})
        return servers

    @property
    def backup(self) -> Path:
        return self.path.with_name(f"{self.path.name}.a2c-backup")

    @property
    def _is_toml(self) -> bool:
        return self.path.suffix == ".toml"

    def with_server(self, name: str, entry: Mapping[str, Any]) -> ClientFile:
        """Raises `ConfigError` for a TOML file whose servers are no tables."""
        if self._is_toml:
            return replace(self, text=with_table(self.text or "", (self.program.group, name), entry))
        return replace(self, text=with_member(self.text or "", (self.program.group, name), entry))

    def without_server(self, name: str) -> ClientFile:
        """The file without this server: the backup, or no file, if nothing else has changed since."""
        try:
            before = replace(ClientFile.read(self.backup, self.program), path=self.path)
        except ConfigError:
            before = replace(self, text=None)
        if before.with_server(name, self.servers[name]).text == self.text:
            return before
        if self._is_toml:
            return replace(self, text=without_table(self.text or "", (self.program.group, name)))
        return replace(self, text=without_member(self.text or "", self.program.group, name))

    def difference(self, after: ClientFile, ours: str) -> str:
        """A unified diff without secrets of other servers than ours."""
        if self._is_toml:
            shown = [masked_toml(file.text or "", (self.program.group, ours)) for file in (self, after)]
            return unified_diff(self.path, None if self.text is None else shown[0], shown[1])
        hidden = dict(_masked_strings(self._without(ours), masked_file(self._without(ours))))
        before = None if self.text is None else _shown(self.text, hidden)
        return unified_diff(self.path, before, _shown(after.text or "", hidden))

    def _without(self, name: str) -> dict[str, Any]:
        servers = {other: server for other, server in self.servers.items() if other != name}
        return {**self.data, self.program.group: servers} if self.program.group in self.data else dict(self.data)

    def write(self, before: ClientFile) -> None:
        """Replace or remove the file, and keep what it was in the backup, for its owner alone. Raises `ConfigError`."""
        if read_whole(self.path) != before.text:
            raise ConfigError(f"{self.path} has just been changed by another program")
        if before.text is not None:
            write_text(self.backup, before.text, private=True)
        if self.text is None:
            self.path.unlink()
        else:
            write_text(self.path, self.text, private=False)


def _shown(text: str, hidden: Mapping[str, str]) -> list[str]:
    """The lines of a text, with other words for its secrets."""
    pieces, end = [], 0
    for token in significant_tokens(text):
        if token[0].startswith('"'):
            word = json.loads(token[0])
            instead = _DEFAULT.sub(rf"\1{MASKED}", hidden.get(word, word))
            pieces += [text[end : token.start()], token[0] if instead == word else json.dumps(instead)]
            end = token.end()
    return "".join([*pieces, text[end:]]).removeprefix(BYTE_ORDER_MARK).splitlines()


def _masked_strings(data: Any, masked: Any) -> Iterator[tuple[str, str]]:
    """The texts that are masked, each with its masked form."""
    if isinstance(data, str):
        if data != masked:
            yield data, masked if isinstance(masked, str) else MASKED
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _masked_strings(value, masked.get(key, MASKED) if isinstance(masked, Mapping) else MASKED)
    elif isinstance(data, list):
        same = isinstance(masked, list) and len(masked) == len(data)
        for value, shown in zip(data, masked if same else [MASKED] * len(data), strict=True):
            yield from _masked_strings(value, shown)


# The file with the API key that a bridge reads. The configuration of an MCP client names it, and holds no key.

_FOLDER = "connect"


@dataclass(frozen=True)
class KeyFile:
    """A file with a key. `new` is the key that has to be written into it; `None` if it is there.

    `url` is the URL of the running `a2c-smcp up` whose key it is: another program may listen on another address of
    `localhost`.
    """

    path: Path
    new: str | None = field(default=None, repr=False)
    url: str | None = None

    def write(self) -> None:
        """Make the file, for its owner alone. Raises `Failed`."""
        if self.new is None:
            return
        try:
            if self.path.parent == default_folder() / _FOLDER:
                private_folder(default_folder(), _FOLDER)
            replace_file(self.path, f"{self.new}\n".encode())
        except OSError as error:
            raise Failed(f"{self.path}: cannot be written: {error.strerror}", "Name another with --key-file.") from None

    @property
    def warning(self) -> str:
        """The fault in the permissions of the file; empty if there is none."""
        others = stat.S_IRWXG | stat.S_IRWXO
        if os.name != "posix" or self.new is not None or not self.path.stat().st_mode & others:
            return ""
        return f"others on this machine can read {self.path}; run: chmod 600 {shlex.quote(str(self.path))}"


def find_key_file(path: Path | None, api_key: str | None, *, url: str, server: str) -> KeyFile | None:
    """The file of the key for a Server; `None` if it wants no key, as far as is known. Raises `WrongUse`.

    It is the given one; or one of our own for the given key, by the name of the entry; or that of the `a2c-smcp up`
    that runs at this URL.
    """
    if path:
        return _checked(path.expanduser().absolute(), api_key)
    if api_key:
        return KeyFile(default_folder() / _FOLDER / f"{server}.key", api_key)
    running = find_running_up(url)
    return KeyFile(running.key_file, url=running.info.url) if running else None


def _checked(path: Path, api_key: str | None) -> KeyFile:
    if not path.exists():
        api_key = api_key or os.environ.get("A2C_API_KEY")  # which counts for nothing beside a file that is there
        if api_key is None:
            raise WrongUse(f"There is no file {path}", "Give the key with --api-key, and the file is made.")
        return KeyFile(path, api_key)
    try:
        kept = path.read_text("utf-8").strip()
    except (OSError, ValueError):
        raise WrongUse(f"{path} cannot be read as text", "Name a file with the key alone in it.") from None
    if not kept or len(kept.split()) > 1:
        raise WrongUse(f"{path} does not hold a key", "Name a file with the key alone in it.")
    if api_key not in (None, kept):
        raise WrongUse(f"{path} holds another key than --api-key", "Leave out --api-key, or name another file.")
    return KeyFile(path)
