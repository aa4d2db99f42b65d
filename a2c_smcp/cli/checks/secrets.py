"""What is treated as secret in the files: names, never values. What only may be one has to be declared."""

from __future__ import annotations

import json
from collections.abc import Iterator

from a2c_smcp.cli.checks.findings import Finding, Situation, ok, warning
from a2c_smcp.computer.secrets import SHORTEST
from a2c_smcp.computer.secrets.config import names_of_secrets, told
from a2c_smcp.computer.secrets.rules import Kind

__all__ = ["secrets"]


def secrets(situation: Situation) -> Iterator[Finding]:
    found = situation.configuration
    known = {name: names_of_secrets(server, found.inputs) for name, server in found.servers.items()}
    for server, names in known.items():
        for each in names:
            if each.kind is Kind.suspected:
                yield warning(
                    f"{each.name} of server {server!r} may be a secret: it is hidden in logs, and not in results.",
                    f'Say "secrets": {json.dumps({each.name: True})} on that server, or false if it is none.',
                )
            elif each.is_short:
                yield warning(
                    f"{each.name} of server {server!r} is a secret of fewer than {SHORTEST} characters: it is not"
                    " masked.",
                    "Use a longer one.",
                )
    lines = [line for server, names in known.items() if (line := told(server, names))]
    if known:
        yield ok(f"Treated as secret: {'. '.join(lines)}." if lines else "Nothing is treated as secret.")
