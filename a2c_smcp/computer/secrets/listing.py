"""What the owner is told of secrets: which names are treated as secret, and why. Never a value."""

from __future__ import annotations

from collections.abc import Mapping

from a2c_smcp.computer.inputs.definitions import Input, is_secret
from a2c_smcp.computer.inputs.render import ids_in
from a2c_smcp.computer.secrets.config import secrets_of
from a2c_smcp.computer.secrets.rules import Kind, Named
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source

__all__ = ["names_of_secrets", "told"]


def names_of_secrets(config: MCPServerConfig, inputs: Mapping[str, Input]) -> list[Named]:
    """What counts as a secret of this server, or may be one: names of its variables, headers, flags and inputs."""
    data = source(config)
    given = {Named(f"input {id_}", Kind.declared) for id_ in ids_in(data) if id_ in inputs and is_secret(inputs[id_])}
    return sorted(secrets_of({"servers": {config.name: data}}).named | given)


def told(server: str, names: list[Named]) -> str:
    """One line on a server: `github: GITHUB_TOKEN, input token; suspected: BLOB`. Empty where there is nothing."""
    masked = ", ".join(dict.fromkeys(each.name for each in names if each.kind.is_masked))
    suspected = ", ".join(dict.fromkeys(each.name for each in names if each.kind is Kind.suspected))
    parts = [part for part in (masked, suspected and f"suspected: {suspected}") if part]
    return f"{server}: {'; '.join(parts)}" if parts else ""
