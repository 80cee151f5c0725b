"""Collect the sentences that reports are made of, as templates, from the source; say which have no Chinese.

A template is a literal or an f-string as it stands in the source: ``{0}`` for a value, ``{0#}`` for a number, ``⟨s|⟩`` in
angle brackets for the two forms of a word. ``python -m tools.messages`` says what ``i18n/reports`` lacks and what it has
too much, and exits with 1 if there is any; ``--write`` puts the entries in the order of the source, under their modules.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rl_doctor.i18n.templates import key_of, placeholders, sentences

ROOT: Final = Path(__file__).resolve().parent.parent
CATALOGUES: Final = ROOT / "rl_doctor" / "i18n" / "reports"
_HEAD: Final = 'msgid ""\nmsgstr "Language: zh_CN\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
SOURCES: Final = (
    "rules/*.py",
    "causes/*.py",
    "report/*.py",
    "checking/*.py",
    "analyzer/explain.py",
    "analyzer/factors.py",
    "analyzer/gaps.py",
    "analyzer/logged.py",
    "analyzer/reconcile.py",
    "analyzer/unmet.py",
    "analyzer/dialects/recognise.py",
    "analyzer/recompute/*.py",
    "analyzer/recompute/variations/*.py",
    "analyzer/recompute/openrlhf/*.py",
    "analyzer/recompute/trl/*.py",
    "analyzer/recompute/verl/*.py",
    "collectors/naming.py",
    "collectors/importers/*[!e].py",
    "collectors/importers/csv_table.py",
    "collectors/importers/trainer_state.py",
    "collectors/importers/wandb_offline.py",
    "store/aliases.py",
    "store/critic.py",
    "store/folder.py",
    "store/info.py",
    "store/metrics_json.py",
    "store/recognise.py",
    "store/run.py",
    "store/run_file.py",
    "store/sessions.py",
)
"""Modules whose sentences reach a report, inside the package."""
_SILENT: Final = frozenset(
    {"source", "doc", "avoids", "needs", "optional", "explains", "leads_to", "since", "overflow", "style", "color_system"}
)
"""Arguments of declarations that no report prints."""
_FORMS: Final = frozenset(
    {"", "s", "is", "are", "was", "were", "has", "have", "does", "do", "it", "they", "this", "these", "y", "ies", "its", "their"}
)
"""Words that an f-string chooses between for grammar alone."""
_NUMERIC: Final = re.compile(r"[dfeg%,]")
_COUNTING: Final = frozenset({"abs", "int", "len"})
_COUNTS: Final = frozenset({"first_step", "last_step", "n", "size", "step"})
"""Calls and attributes that are numbers, though they are written without a format."""
_UNNAMED: Final = re.compile(r"\{(:[^{}]*)?\}(?=(%| nat\b)?)")
"""A value of ``str.format``, and what shows that it is a number."""
_VALUE: Final = re.compile(r"\{\d+#?\}|⟨[^⟩]*⟩")
_NONE: Final = re.compile(r"(?:not )?bold\b|SELECT |PRAGMA |.*[\[\]|=]{2}|TRL |.* \| None$|(?:<no )|failed to execute|in time$")
"""Styles of rich, queries and names are no sentences."""


@dataclass(slots=True)
class Found:
    """A template and where it stands.

    Attributes:
        text: the template.
        place: file and line.
        names: the expressions that its placeholders stand for.
    """

    text: str
    place: str
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class _Writer:
    """Writes one expression as a template."""

    names: list[str] = field(default_factory=list)

    def value(self, name: str, *, numeric: bool = False) -> str:
        self.names.append(name)
        return f"{{{len(self.names) - 1}{'#' if numeric else ''}}}"

    def text(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return _UNNAMED.sub(lambda found: self.value("", numeric=bool(found.group(1) or found.group(2))), node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(part) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._formatted(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left) + self.text(node.right)
        return self.value(ast.unparse(node))

    def _formatted(self, node: ast.FormattedValue) -> str:
        value = node.value
        if isinstance(value, ast.IfExp):
            forms = [form.value for form in (value.body, value.orelse) if isinstance(form, ast.Constant)]
            if len(forms) == 2 and _FORMS.issuperset(forms):
                return f"⟨{forms[0]}|{forms[1]}⟩"
        spec = "" if node.format_spec is None else ast.unparse(node.format_spec)[2:-1]
        return self.value(ast.unparse(value), numeric=bool(_NUMERIC.search(spec)) or _is_count(value))


def _is_count(node: ast.expr) -> bool:
    """Whether an expression is a number by what it says: a length, a step, a count."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _COUNTING
    if isinstance(node, ast.BinOp):
        return _is_count(node.left) or _is_count(node.right)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "steps"
    return isinstance(node, ast.Attribute) and node.attr in _COUNTS


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class _Reader:
    """Reads the templates of one module."""

    def __init__(self, path: Path, root: Path) -> None:
        self._place = path.relative_to(root).as_posix()
        source = path.read_text("utf-8")
        self._lines = source.splitlines()
        self._tree = ast.parse(source, str(path))
        self._docs = set(map(id, _docstrings(self._tree)))

    def found(self) -> Iterator[Found]:
        """Every template of the module, those inside others too."""
        yield from self._in(self._tree)

    def _in(self, node: ast.AST) -> Iterator[Found]:
        if id(node) in self._docs or isinstance(node, ast.Raise | ast.Compare) or self._is_pattern(node):
            return
        if isinstance(node, ast.Call):
            for part in (node.func, *node.args, *(one.value for one in node.keywords if one.arg not in _SILENT)):
                yield from self._in(part)
            return
        if isinstance(node, ast.AugAssign) and _is_text(node.value):
            writer = _Writer([ast.unparse(node.target)])
            yield self._made(f"{{0}}{writer.text(node.value)}", node, writer)
            yield from self._inside(node.value)
            return
        if _is_text(node) and isinstance(node, ast.expr):
            writer = _Writer()
            yield self._made(writer.text(node), node, writer)
            yield from self._inside(node)
            return
        for child in ast.iter_child_nodes(node):
            yield from self._in(child)

    def _inside(self, node: ast.AST) -> Iterator[Found]:
        """Templates among the values of one."""
        if isinstance(node, ast.FormattedValue):
            yield from self._in(node.value)
        elif isinstance(node, ast.JoinedStr):
            for part in node.values:
                yield from self._inside(part)
        elif isinstance(node, ast.BinOp):
            for side in (node.left, node.right):
                yield from self._inside(side) if _is_text(side) else self._in(side)

    def _is_pattern(self, node: ast.AST) -> bool:
        """Whether a literal is a regular expression: one that is written raw."""
        return isinstance(node, ast.Constant) and self._lines[node.lineno - 1][node.col_offset :].startswith(('r"', "r'"))

    def _made(self, text: str, node: ast.stmt | ast.expr, writer: _Writer) -> Found:
        return Found(text, f"{self._place}:{node.lineno}", tuple(writer.names))


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def templates(root: Path = ROOT) -> list[Found]:
    """The templates with words in them, each once, in the order of their modules and lines."""
    kept: dict[str, Found] = {}
    for pattern in SOURCES:
        for path in sorted((root / "rl_doctor").glob(pattern)):
            for found in _Reader(path, root).found():
                key = key_of(found.text)
                if " " in key and not _NONE.match(key) and re.search(r"[A-Za-z]{2}", _VALUE.sub("", key)):
                    kept.setdefault(key, found)
    return list(kept.values())


def catalogue_of(found: Found) -> str:
    """Where a template's entry belongs: a file for each module, in a folder for each package."""
    _, package, *rest = found.place.rpartition(":")[0].removesuffix(".py").split("/")
    return f"{package}/{'-'.join(rest)}.po"


def written(wanted: Iterable[Found], known: Mapping[str, str]) -> dict[str, str]:
    """The catalogues by name, with the Chinese that is known; none for those that are new."""
    entries: dict[str, list[str]] = {}
    for found in wanted:
        key = key_of(found.text)
        english, chinese = (json.dumps(text, ensure_ascii=False) for text in (key, known.get(key, "")))
        entries.setdefault(catalogue_of(found), []).append(f"\nmsgid {english}\nmsgstr {chinese}\n")
    return {name: _HEAD + "".join(own) for name, own in entries.items()}


def problems(wanted: Iterable[Found], known: Mapping[str, str], texts: Mapping[str, str]) -> list[str]:
    """What is wrong with the catalogues, a line each.

    Args:
        wanted: the templates of the source.
        known: what each is in Chinese.
        texts: the catalogues by name, as they are.
    """
    listed = list(wanted)
    lines = [f"{found.place}: no Chinese for {key!r}" for found in listed if (key := key_of(found.text)) not in known]
    lines += [f"placeholders differ: {key!r}" for key, text in known.items() if placeholders(key) != placeholders(text)]
    as_written = written(listed, known)
    lines += [f"{name}: no module has its sentences" for name in texts if name not in as_written]
    lines += [f"{name}: not in the order of the source" for name, text in as_written.items() if texts.get(name) != text]
    return lines


def main() -> int:
    """Say what is wrong, or put the catalogues in order; 1 if Chinese is missing or anything is wrong."""
    wanted = templates()
    if sys.argv[1:] == ["--write"]:
        for name, text in written(wanted, sentences()).items():
            (CATALOGUES / name).parent.mkdir(parents=True, exist_ok=True)
            (CATALOGUES / name).write_text(text, "utf-8", newline="\n")
        for name in catalogues().keys() - written(wanted, {}).keys():
            (CATALOGUES / name).unlink()
    lines = problems(wanted, sentences(), catalogues())
    print("\n".join(lines) if lines else "messages: ok")
    return 1 if lines else 0


def catalogues() -> dict[str, str]:
    """The catalogues of the modules by name, as they are."""
    return {path.relative_to(CATALOGUES).as_posix(): path.read_text("utf-8") for path in sorted(CATALOGUES.glob("*/*.po"))}


if __name__ == "__main__":
    sys.exit(main())
