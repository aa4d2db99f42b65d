"""Measure the layout of the package and check its limits: `python -m tools.layout [--places] [--json] [--lock]`.

Exits 1 when a number is over its limit. `--places` prints where each number comes from, also within the limits.
Import cycles count every import: at run time, inside a function, and for types only.

The limit of the code lines is a ratchet in `tools/layout.lock`: it only falls. `--lock` lowers it to what there is; a
feature that needs more raises it by hand, in its own commit, with its reason beside the number. A limit that has no
room left is a reason to review the structure of the package, not to cut something to fit.
"""

from __future__ import annotations

import ast
import gc
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = "a2c_smcp"

LOCK = ROOT / "tools" / "layout.lock"
SLACK = 150
"""Code lines that the ratchet may stand above what there is."""

LIMITS = {
    "code lines": int(LOCK.read_text("utf-8").split()[0]),
    "modules": 330,
    "folders": 48,
    "largest module": 600,
    "largest folder": 20,
    "class names used more than once": 4,
    "functions over 70 lines": 0,
    "functions of complexity over 12": 5,
    "functions with over 12 parameters": 4,
    "import cycles": 0,
    "modules that name one operation": 8,
    "of these, outside of the roles that offer it": 2,
}

OPERATIONS = ROOT / PACKAGE / "protocol" / "operations.py"
OFFERING = tuple(f"{PACKAGE}.{name}" for name in ("protocol.operations", "agent.client", "cli", "registry", "bridge"))
"""Where each request to an MCP server may be named: its row, its typed method, a command, and sources of its own."""


class Module(NamedTuple):
    name: str
    path: Path
    nodes: list[ast.AST]
    lines: int


class Finding(NamedTuple):
    """A number, and the places it comes from."""

    value: int
    places: list[str]


def modules() -> list[Module]:
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        text = path.read_text("utf-8")
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, nodes_of(ast.parse(text)), len(text.splitlines())))
    return found


_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """As `ast.walk` gives them, without names, constants and operators: they are most of them, and not looked at."""
    found = [tree]
    for node in found:
        for field in node._fields:
            value = getattr(node, field, None)
            children = value if isinstance(value, list) else (value,)
            found += [each for each in children if isinstance(each, ast.AST) and not isinstance(each, _LEAVES)]
    return found


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(module: Module) -> int:
    """Lines that are neither blank, nor a comment, nor a docstring."""
    text = module.path.read_text("utf-8").splitlines()
    docstrings: set[int] = set()
    for node in module.nodes:
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        1
        for number, line in enumerate(text, 1)
        if number not in docstrings and line.strip() and not line.strip().startswith("#")
    )


def imports(module: Module, known: set[str]) -> set[str]:
    """Modules of the package that this one imports: at run time, lazily, or for its types only."""
    found: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                target = below if below in known else node.module
                if target in known:
                    found.add(target)
    return found - {module.name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def functions(module: Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module.name}:{node.lineno} {node.name}", node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, last = function.body[0], function.body[-1]
    return (last.end_lineno or last.lineno) - first.lineno + 1


_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Ways through a function: one, and one more for every branch, condition of a comprehension and `and` or `or`."""
    ways = 1
    for node in nodes_of(function):
        if isinstance(node, _BRANCHES):
            ways += 1
        if isinstance(node, ast.comprehension):
            ways += len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
    return ways


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(given.vararg) + bool(given.kwarg)


def operations() -> dict[str, set[str]]:
    """For each row of the table of operations: its own name, its event, the type of its request, and MCP's method."""
    rows: dict[str, set[str]] = {}
    for node in ast.parse(OPERATIONS.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            words = {each.arg: each.value for each in node.value.keywords}
            if {"event", "request"} <= words.keys() and isinstance(node.targets[0], ast.Name):
                told = [words[key] for key in ("event", "request", "method") if key in words]
                texts = {each.value for each in told if isinstance(each, ast.Constant)}
                names = {each.id for each in told if isinstance(each, ast.Name)}
                rows[node.targets[0].id] = {node.targets[0].id, *texts, *names}
    return rows


def named(module: Module) -> set[str]:
    """Names and texts in a module."""
    found: set[str] = set()
    for node in ast.walk(module.nodes[0]):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def naming() -> tuple[Finding, Finding]:
    """The most modules that name one operation, and the most of them outside of `OFFERING`."""
    found = [(module.name, named(module)) for module in modules()]
    by_row = {row: [name for name, names in found if names & words] for row, words in operations().items()}
    elsewhere = {row: [name for name in names if not name.startswith(OFFERING)] for row, names in by_row.items()}
    return _longest(by_row), _longest(elsewhere)


def _longest(by_row: dict[str, list[str]]) -> Finding:
    ordered = sorted(by_row.items(), key=lambda item: -len(item[1]))
    return Finding(len(ordered[0][1]), [f"{row}: {len(names)}: {', '.join(names)}" for row, names in ordered[:3]])


def measure() -> tuple[dict[str, int], dict[str, Finding]]:
    """Numbers without a limit, and those with one."""
    found = modules()
    known = {module.name for module in found}
    graph = {module.name: imports(module, known) for module in found}
    own = [module for module in found if module.path.name != "__init__.py"]
    folders: dict[Path, list[Module]] = defaultdict(list)
    for module in own:
        folders[module.path.parent].append(module)
    classes: dict[str, list[str]] = defaultdict(list)
    for module in found:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{module.name}:{node.lineno}")
    all_functions = [each for module in found for each in functions(module)]
    rings = cycles(graph)
    crowded = {str(folder.relative_to(ROOT)): len(inside) for folder, inside in folders.items()}
    most, elsewhere = naming()
    return {"median lines": round(statistics.median(module.lines for module in own))}, {
        "code lines": Finding(sum(map(code_lines, found)), ["a feature raises tools/layout.lock in its own commit"]),
        "modules": Finding(len(own), []),
        "folders": Finding(len({module.path.parent for module in found}), []),
        "largest module": _largest({module.name: module.lines for module in found}),
        "largest folder": _largest(crowded),
        "class names used more than once": _count(f"{k}: {', '.join(v)}" for k, v in classes.items() if len(v) > 1),
        "functions over 70 lines": _count(name for name, node in all_functions if length(node) > 70),
        "functions of complexity over 12": _count(name for name, node in all_functions if complexity(node) > 12),
        "functions with over 12 parameters": _count(name for name, node in all_functions if parameters(node) > 12),
        "import cycles": _count(" ".join(ring) for ring in rings),
        "modules that name one operation": most,
        "of these, outside of the roles that offer it": elsewhere,
    }


def _count(places: Iterator[str]) -> Finding:
    listed = sorted(places)
    return Finding(len(listed), listed)


def _largest(sizes: dict[str, int]) -> Finding:
    """The size of the largest, with the names of the eight largest."""
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return Finding(ordered[0][1], [f"{name}: {size}" for name, size in ordered[:8]])


def main() -> int:
    gc.disable()  # all that is made stays to the end, and looking for garbage takes half of the time
    plain, limited = measure()
    lines = limited["code lines"].value
    if "--lock" in sys.argv[1:] and lines < LIMITS["code lines"]:
        number, _, reasons = LOCK.read_text("utf-8").partition(" ")
        LOCK.write_text(f"{lines} {reasons}", "utf-8")
        print(f"{LOCK.relative_to(ROOT)}: {number} -> {lines}")
        return 0
    if "--json" in sys.argv[1:]:
        print(json.dumps(plain | {name: finding.value for name, finding in limited.items()}))
    else:
        for name, value in plain.items():
            print(f"{value:>7,}  {name}")
        for name, finding in limited.items():
            over = finding.value > LIMITS[name]
            print(f"{finding.value:>7,}  {name}, at most {LIMITS[name]:,}{': TOO MANY' if over else ''}")
            if over or "--places" in sys.argv[1:]:
                for place in finding.places:
                    print(f"           {place}")
        if lines < LIMITS["code lines"] - SLACK:
            print("The code has become smaller: `python -m tools.layout --lock` lowers its limit.", file=sys.stderr)
    too_many = any(finding.value > LIMITS[name] for name, finding in limited.items())
    return int(too_many or lines < LIMITS["code lines"] - SLACK)


if __name__ == "__main__":
    sys.exit(main())
