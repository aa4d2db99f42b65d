"""What each part of the package can be imported with: its own extra, and no package of another one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMPORTS = """
import importlib, json, sys
from importlib.abc import MetaPathFinder

missing, parts = map(json.loads, sys.argv[1:])

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
for part in parts:
    importlib.import_module(part)
"""


def installed_with(*extras: str) -> set[str]:
    """The distributions that come with the package and these extras."""
    found: set[str] = set()
    wanted = [("a2c-smcp", extra) for extra in ("", *extras)]
    while wanted:
        name, extra = wanted.pop()
        found.add(name)
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                each = canonicalize_name(needed.name)
                new = [(each, other) for other in ("", *needed.extras)]
                wanted += new if each not in found or (each == "a2c-smcp" and needed.extras) else ()
    return found


@pytest.mark.covers("package-extras")
@pytest.mark.parametrize(
    ("extras", "parts"),
    [
        ((), ["a2c_smcp.agent", "a2c_smcp.registry", "a2c_smcp.errors", "sage"]),
        (("computer",), ["a2c_smcp.computer", "a2c_smcp.computer.socketio.client", "a2c_smcp.bridge.bridge"]),
        (("server",), ["a2c_smcp.server", "a2c_smcp.server.run", "a2c_smcp.server.namespace"]),
        (("cli",), ["a2c_smcp.cli", "a2c_smcp.cli.commands.agent", "a2c_smcp.cli.commands.computer"]),
    ],
    ids=["none", "computer", "server", "cli"],
)
def test_a_part_is_imported_without_the_packages_of_other_extras(extras: tuple[str, ...], parts: list[str]) -> None:
    present = installed_with(*extras)
    missing = [
        module
        for module, owners in packages_distributions().items()
        if present.isdisjoint(map(canonicalize_name, owners))
    ]
    words = [sys.executable, "-c", IMPORTS, json.dumps(missing), json.dumps(parts)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
