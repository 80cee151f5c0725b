"""Check the directions of imports inside rl_doctor, what is imported when a module is loaded, and that pages do not compute.

Exits with 1 and one line per violation.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "rl_doctor"

# layer -> the layers that it may import; the first entry that matches a module's name decides.
LAYERS: dict[str, tuple[str, ...]] = {
    "rl_doctor.errors": (),
    "rl_doctor.frozen": (),
    "rl_doctor.schema": (),
    "rl_doctor.discovery": (),
    "rl_doctor.store": ("errors", "schema", "store"),
    "rl_doctor.collectors": ("discovery", "errors", "schema", "store", "collectors"),
    "rl_doctor.analyzer": ("discovery", "errors", "schema", "store", "analyzer"),
    # The view is what the runner hands to rules; it alone knows what the analyzer gives.
    "rl_doctor.rules.view": (
        "schema",
        "store.facts",
        "analyzer.series",
        "analyzer.states",
        "analyzer.comparison",
        "analyzer.dialects",
        "report.model",
        "rules.shares",
    ),
    "rl_doctor.rules": (
        "discovery",
        "schema",
        "analyzer.series",
        "analyzer.closest",
        "analyzer.comparison",
        "analyzer.rounding",
        "report.model",
        "rules",
    ),
    "rl_doctor.causes": (
        "discovery",
        "analyzer.series",
        "rules.view",
        "rules.spans",
        "rules.reading",
        "rules.staleness",
        "report",
        "causes",
    ),
    "rl_doctor.report": ("report",),
    "rl_doctor.i18n": ("i18n",),
    # What is drawn is computed here: pages and charts only show it.
    "rl_doctor.views": ("discovery", "errors", "schema", "store", "analyzer", "report", "rules", "views"),
    "rl_doctor.charts": ("views", "i18n", "charts"),
    "rl_doctor.html": ("errors", "report", "views", "charts", "i18n", "live.followed", "html"),
    "rl_doctor.app": ("errors", "report", "views", "charts", "i18n", "live.followed", "live.known", "live.listing", "app"),
}

# How a class is declared; every layer may.
EVERYWHERE = f"{PACKAGE}.frozen"

# Modules that are loaded only where their heavy library is there and wanted.
HOMES = {"numba": "rl_doctor.analyzer.loops", "llvmlite": "rl_doctor.analyzer.machine"}

# Whoever imports these wants to draw; nothing outside them may import them when it is loaded.
DRAWING = ("rl_doctor.app", "rl_doctor.charts", "rl_doctor.html")

HEAVY = ("torch", "pandas", "streamlit", "plotly", "trl", "transformers", "pyarrow.dataset", "scipy", "numba", "llvmlite")

# Pages show what views computed: no arithmetic, no library for it, no function that reduces or orders data.
PAGES = "rl_doctor.app.pages"
COMPUTING = ("numpy", "pandas", "pyarrow", "math", "statistics", "plotly", "scipy")
REDUCING = ("sum", "min", "max", "sorted", "abs", "round", "divmod", "pow")


def module_name(path: Path, root: Path) -> str:
    """Dotted name of the module at ``path``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imports_at_load(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The imports that run when the module is loaded: not inside functions, not under TYPE_CHECKING."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)
        pending.extend(ast.iter_child_nodes(node))


def computing(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and description of what a page computes.

    ``|`` (unions), ``not`` and numbers with a sign are no arithmetic; ``len`` is none until something is done with it.
    """
    for line, target in imports(tree):
        if any(is_within(target, library) for library in COMPUTING):
            yield line, f"a page imports {target}"
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and not isinstance(node.op, ast.BitOr):
            yield node.lineno, "arithmetic in a page"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
            if not isinstance(node.operand, ast.Constant):
                yield node.lineno, "arithmetic in a page"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REDUCING:
            yield node.lineno, f"{node.func.id}() in a page"


def is_within(name: str, prefix: str) -> bool:
    """Whether ``name`` is ``prefix`` or something inside it."""
    return name == prefix or name.startswith(prefix + ".")


def violations(root: Path) -> Iterator[str]:
    """One line per import in the wrong direction."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = module_name(path, root)
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        allowed = next((targets for layer, targets in LAYERS.items() if is_within(name, layer)), None)
        if allowed is not None:
            layers = (EVERYWHERE, *(f"{PACKAGE}.{layer}" for layer in allowed))
            for line, target in imports(tree):
                if is_within(target, PACKAGE) and not any(is_within(target, layer) for layer in layers):
                    yield f"{path.relative_to(root)}:{line}: {name} must not import {target}"
        if is_within(name, PAGES):
            yield from (
                f"{path.relative_to(root)}:{line}: {what}: compute it in rl_doctor.views" for line, what in computing(tree)
            )
        if not any(is_within(name, layer) for layer in DRAWING):
            for line, target in imports_at_load(tree):
                if any(is_within(target, heavy) and HOMES.get(heavy) != name for heavy in (*HEAVY, *DRAWING)):
                    yield f"{path.relative_to(root)}:{line}: {target} is heavy: import it inside the function that needs it"


def main() -> int:
    """Print the violations; 1 if there are any."""
    found = list(violations(Path(__file__).resolve().parent.parent))
    print("\n".join(found) if found else "layers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
