"""The configuration file of an MCP client: read, changed by one entry, shown without secrets, and written.

The rest of the file stays as it is written: it belongs to the client, and to its user. Before a change, the file is
copied to a backup beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from a2c_smcp.computer.configuration.differences import unified_diff
from a2c_smcp.computer.configuration.edit import BYTE_ORDER_MARK, with_member, without_member
from a2c_smcp.computer.configuration.text import loads, significant_tokens
from a2c_smcp.computer.imports.programs import Program
from a2c_smcp.computer.imports.target import write_text
from a2c_smcp.computer.secrets.mask import MASKED
from a2c_smcp.computer.secrets.replace import masked_file
from a2c_smcp.errors import ConfigError

__all__ = ["ClientFile"]

_DEFAULT = re.compile(r"(\$\{\w+:-)[^}]+")
"""The default in a reference such as `${API_KEY:-default}`, which may be a secret."""


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
        found = cls(path, program, _read(path))
        try:
            data = found.data
        except ConfigError as error:
            raise ConfigError(error.about, subject=str(path)) from None
        if not isinstance(data, dict) or not isinstance(data.get(program.group, {}), dict):
            raise ConfigError(f'{path}: is not of the shape {{"{program.group}": {{…}}}}')
        return found

    @cached_property
    def data(self) -> Any:
        """Raises `ConfigError` for a text that is not JSON."""
        body = (self.text or "").removeprefix(BYTE_ORDER_MARK)
        return loads(body) if body.strip() else {}

    @property
    def servers(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.data.get(self.program.group, {})
        return found

    @property
    def backup(self) -> Path:
        return self.path.with_name(f"{self.path.name}.a2c-backup")

    def with_server(self, name: str, entry: Mapping[str, Any]) -> ClientFile:
        return replace(self, text=with_member(self.text or "", self.program.group, name, entry))

    def without_server(self, name: str) -> ClientFile:
        """The file without this server: the backup, or no file, if nothing else has changed since."""
        try:
            before = replace(ClientFile.read(self.backup, self.program), path=self.path)
        except ConfigError:
            before = replace(self, text=None)
        if before.with_server(name, self.servers[name]).text == self.text:
            return before
        return replace(self, text=without_member(self.text or "", self.program.group, name))

    def difference(self, after: ClientFile, ours: str) -> str:
        """A unified diff without secrets of other servers than ours."""
        hidden = dict(_masked_strings(self._without(ours), masked_file(self._without(ours))))
        before = None if self.text is None else _shown(self.text, hidden)
        return unified_diff(self.path, before, _shown(after.text or "", hidden))

    def _without(self, name: str) -> dict[str, Any]:
        servers = {each: server for each, server in self.servers.items() if each != name}
        return {**self.data, self.program.group: servers} if self.program.group in self.data else dict(self.data)

    def write(self, before: ClientFile) -> None:
        """Replace or remove the file, and keep what it was in the backup, for its owner alone. Raises `ConfigError`."""
        if _read(self.path) != before.text:
            raise ConfigError(f"{self.path} has just been changed by another program")
        if before.text is not None:
            write_text(self.backup, before.text, private=True)
        if self.text is None:
            self.path.unlink()
        else:
            write_text(self.path, self.text, private=False)


def _read(path: Path) -> str | None:
    """The text with its line ends and byte order mark. Raises `ConfigError`."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}") from None


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
