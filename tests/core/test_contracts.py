"""Who may import what (DESIGN, "The dependency rule"), read off the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import a2c_smcp
from tests.syntax import syntax_tree

ROOT = Path(a2c_smcp.__file__).parent
SOCKETS = ("server/namespace.py",)  # everybody else has a Socket.IO of our own
MCP = ("mcp_host/", "registry/remote/", "bridge/", "cli/commands/demo_servers.py")  # the client side, and servers
STORE = ("server/cluster/store.py",)
ONLY_UNDER = {"socketio": SOCKETS, "engineio": SOCKETS, "mcp": MCP, "redis": STORE, "hiredis": STORE}

NAMES = (
    *("a2c_smcp.types", "a2c_smcp.smcp", "a2c_smcp.errors"),
    *("a2c_smcp.mcp_events", "a2c_smcp.v04_events", "a2c_smcp.device_events"),
)
OURS = {  # what each part of the core may import of ours
    "types.py": (),
    "errors.py": (),
    "smcp.py": ("a2c_smcp.types",),
    "mcp_events.py": ("a2c_smcp.smcp", "a2c_smcp.types"),
    "v04_events.py": ("a2c_smcp.smcp",),
    "device_events.py": ("a2c_smcp.smcp",),
    "protocol/": (*NAMES, "a2c_smcp.protocol"),
}
IO = {
    *("asyncio", "concurrent", "ctypes", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib"),
    "random",
    *("secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile"),
    "threading",
    *("time", "uuid", "urllib.request", "socketio", "engineio", "aiohttp", "httpx", "httpx2", "redis", "uvicorn"),
}


def sources(under: str) -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).as_posix().startswith(under)]


def imports(path: Path) -> Iterator[str]:
    """The modules that a file names in its imports, also those inside functions; `from __future__` is none."""
    package = ["a2c_smcp", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(module: str, parents: object) -> bool:
    return any(f"{module}.".startswith(f"{parent}.") for parent in parents)  # type: ignore[attr-defined]


def test_a_third_party_is_imported_only_where_it_belongs() -> None:
    for path in sources(""):
        user, imported = path.relative_to(ROOT).as_posix(), [*imports(path)]
        for module, places in ONLY_UNDER.items():
            if not user.startswith(places):
                assert not [name for name in imported if within(name, [module])], user


@pytest.mark.parametrize(("part", "allowed"), OURS.items())
def test_the_core_imports_nothing_above_it_and_no_io(part: str, allowed: tuple[str, ...]) -> None:
    assert sources(part)
    for path in sources(part):
        for name in imports(path):
            assert not within(name, IO), f"{path.name} imports {name}"
            if within(name, ["a2c_smcp"]):
                assert within(name, allowed), f"{path.name} imports {name}"


def test_the_core_never_waits() -> None:
    waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    for path in (path for part in OURS for path in sources(part)):
        assert not [node for node in ast.walk(syntax_tree(path)) if isinstance(node, waits)], path
