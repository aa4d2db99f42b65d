"""What a definition says of its input: which variable is its own, what it takes, and whether that is a secret."""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

from a2c_smcp.computer.inputs.errors import InvalidInput
from a2c_smcp.computer.inputs.keychain import KEYRING_SERVICE
from a2c_smcp.mcp_host.config.servers import CommandInput, PickStringInput, PromptStringInput

__all__ = ["Input", "advice", "check", "default_of", "is_ours", "is_secret", "variable_of"]

Input: TypeAlias = PromptStringInput | PickStringInput | CommandInput

_PREFIX = "A2C_INPUT_"


def variable_of(id_: str) -> str:
    """The environment variable of an input: `github-token` is read from `A2C_INPUT_GITHUB_TOKEN`."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", id_.upper())


def is_ours(variable: str) -> bool:
    """Whether a variable is a credential of ours, which is no business of a command."""
    return variable.startswith(_PREFIX) or variable == "A2C_API_KEY"


def is_secret(definition: Input) -> bool:
    """Passwords and what commands print are secrets (WIRE §5), and so is whatever the keyring holds."""
    return isinstance(definition, CommandInput) or (
        isinstance(definition, PromptStringInput) and bool(definition.password)
    )


def default_of(definition: Input) -> str | None:
    return None if isinstance(definition, CommandInput) else definition.default


def check(definition: Input, value: Any, what: str = "") -> None:
    """Raises `InvalidInput` for a value that is not to be used, without quoting it."""
    options = [option.value for option in definition.options] if isinstance(definition, PickStringInput) else [value]
    if value not in options:
        raise InvalidInput(definition.id, f"{what}must be one of {', '.join(map(repr, options))}")
    if is_secret(definition) and not isinstance(value, str | int | float):
        raise InvalidInput(definition.id, f"{what}must be text")
    if value is None or not _is_json(value):
        raise InvalidInput(definition.id, f"{what}must be text, or another JSON value that is not null")


def advice(definition: Input, error: Exception) -> str:
    """What is wrong, and what the owner can do about it."""
    problem = error.fault if isinstance(error, InvalidInput) else error
    about = f" ({definition.description})" if definition.description else ""
    return (
        f"{problem}{about}; give it explicitly, in the environment as {variable_of(definition.id)}, "
        f"or in the keyring under service {KEYRING_SERVICE!r} and user {definition.id!r}"
    )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
