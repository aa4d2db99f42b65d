"""How a scanner is written: in a configuration file, on the command line, in Python.

In a file it is an entry of `scanners`, an object; elsewhere it may also be one text: `module:function`,
`file.py:function`, or a command with its arguments. A command is never run by a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError

from a2c_smcp.computer.secrets.replace import masked_server
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.fields import FieldContent, NonEmpty, Seconds
from a2c_smcp.mcp_host.config.validation import Fault, StrictModel, config_error, faults_of

__all__ = ["ScannerConfig", "When", "parse_scanner", "shown_scanner"]

When: TypeAlias = Literal["before", "after"]

_FUNCTION = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_]\w*")
"""`module:function` or `file.py:function`."""
_BOTH: tuple[When, ...] = ("before", "after")
_DEADLINE, _LONGEST = 10.0, 600.0


class ScannerConfig(StrictModel):
    """A scanner: a `function` or a `command`. `when` it is asked, and how many seconds it has for an answer."""

    name: Annotated[NonEmpty | None, FieldContent.NAME] = None
    function: Annotated[NonEmpty | None, FieldContent.NAME] = None
    command: Annotated[NonEmpty | None, FieldContent.COMMAND] = None
    args: Annotated[list[str], FieldContent.ARGUMENTS] = Field(default_factory=list)
    when: Annotated[list[When], FieldContent.SETTING] = Field(default_factory=lambda: [*_BOTH], min_length=1)
    deadline: Annotated[Seconds, FieldContent.SETTING] = _DEADLINE

    @property
    def shown(self) -> str:
        """The name in logs and errors."""
        return self.name or self.function or (self.command or "").rpartition("/")[2]


def parse_scanner(data: object) -> ScannerConfig:
    """The model of a scanner, written as an object or as one text. Raises `ConfigError`, which quotes no value."""
    fields = _of_text(data) if isinstance(data, str) else data
    if not isinstance(fields, Mapping):
        raise config_error("scanner", [((), "must be an object, or text: module:function, or a command")])
    try:
        config = ScannerConfig.model_validate(dict(fields))
    except ValidationError as error:
        raise config_error("scanner", faults_of(error)) from None
    if faults := _faults(config):
        raise config_error("scanner", faults)
    return config


def _of_text(text: str) -> dict[str, Any]:
    if _FUNCTION.fullmatch(text):
        return {"function": text}
    try:
        command, *args = shlex.split(text)
    except ValueError:
        raise ConfigError("its command cannot be read: a quotation mark is missing", subject="scanner") from None
    return {"command": command, "args": args}


def _faults(config: ScannerConfig) -> list[Fault]:
    faults: list[Fault] = []
    if (config.function is None) == (config.command is None):
        faults.append((("function",), "either a function or a command must be given"))
    if config.function is not None and not _FUNCTION.fullmatch(config.function):
        faults.append((("function",), 'must be like "module:function" or "file.py:function"'))
    if config.function is not None and config.args:
        faults.append((("args",), "belong to a command"))
    if config.deadline > _LONGEST:
        faults.append((("deadline",), f"must be at most {_LONGEST:g} seconds"))
    if config.model_extra:  # a misspelt "when" would let calls pass unchecked
        faults += [((name,), "there is no such field") for name in config.model_extra]
    return faults


def shown_scanner(config: ScannerConfig) -> dict[str, Any]:
    """The entry as its owner is shown it, without secrets in the arguments."""
    data = config.model_dump(mode="json", exclude_defaults=True)
    if config.command is None:
        return data
    masked = masked_server({"server_parameters": {"command": config.command, "args": config.args}})
    return {**data, **{name: value for name, value in masked["server_parameters"].items() if name in data}}
