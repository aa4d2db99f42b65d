"""Measure the layout of the package and check its limits: `python -m tools.layout [--places] [--json]`.

Exits 1 when a number is over its limit. `--places` prints where each number comes from, also within the limits.
Import cycles count every import: at run time, inside a function, and for types only.
"""

from __future__ import annotations

import ast
import gc
import json
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = "a2c_smcp"

LIMITS = {
    "largest module": 400,
    "small modules with one importer": 12,
    "largest folder": 16,
    "class names used more than once": 4,
    "functions over 50 lines": 0,
    "functions of complexity over 12": 5,
    "import cycles": 0,
}


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


def measure() -> tuple[dict[str, int], dict[str, Finding]]:
    """Numbers without a limit, and those with one."""
    found = modules()
    known = {module.name for module in found}
    graph = {module.name: imports(module, known) for module in found}
    importers = Counter(target for targets in graph.values() for target in targets)
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
    crowded = {folder: len(inside) for folder, inside in folders.items()}
    plain = {
        "modules": len(found),
        "median lines": round(statistics.median(module.lines for module in own)),
        "code lines": sum(map(code_lines, found)),
    }
    return plain, {
        "largest module": _largest({module.name: module.lines for module in found}),
        "small modules with one importer": _count(m.name for m in own if m.lines < 80 and importers[m.name] == 1),
        "largest folder": _largest({str(folder.relative_to(ROOT)): count for folder, count in crowded.items()}),
        "class names used more than once": _count(f"{k}: {', '.join(v)}" for k, v in classes.items() if len(v) > 1),
        "functions over 50 lines": _count(name for name, node in all_functions if length(node) > 50),
        "functions of complexity over 12": _count(name for name, node in all_functions if complexity(node) > 12),
        "import cycles": _count(" ".join(ring) for ring in rings),
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
    if "--json" in sys.argv[1:]:
        print(json.dumps(plain | {name: finding.value for name, finding in limited.items()}))
    else:
        for name, value in plain.items():
            print(f"{value:>7,}  {name}")
        for name, finding in limited.items():
            over = finding.value > LIMITS[name]
            print(f"{finding.value:>7,}  {name}, at most {LIMITS[name]}{': TOO MANY' if over else ''}")
            if over or "--places" in sys.argv[1:]:
                for place in finding.places:
                    print(f"           {place}")
    return int(any(finding.value > LIMITS[name] for name, finding in limited.items()))


if __name__ == "__main__":
    sys.exit(main())
