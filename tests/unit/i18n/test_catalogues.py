"""The app's messages: both languages say the same, all of them are said, and nothing is said without a message."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from rl_doctor.i18n.speaker import LANGUAGES, Speaker, messages

PACKAGE = Path(__file__).resolve().parents[3] / "rl_doctor"
TOPICS = sorted(path.stem for path in (PACKAGE / "i18n" / "catalogue").glob("*.toml"))
SPEAKING = ("app", "charts", "cli", "html", "live", "views")
_CJK = re.compile("[\u3400-\u9fff]")
_UNSPOKEN = re.compile(r"rl-doctor|[\W\d_]*(?:\{\w*[^}]*\}[\W\d_]*)*|.*\{.*\}.*|[A-Z][\w .-]*|[\w./`: -]+")
"""What may be the same in both languages: names, signs, placeholders."""


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_every_page_has_a_catalogue() -> None:
    assert {"app", "diagnosis", "run"} <= set(TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_both_languages_have_the_same_placeholders(topic: str) -> None:
    for name, texts in tomllib.loads((PACKAGE / "i18n" / "catalogue" / f"{topic}.toml").read_text("utf-8")).items():
        assert set(texts) == set(LANGUAGES), f"{topic}.{name}"
        assert all(text.strip() for text in texts.values()), f"{topic}.{name}"
        assert placeholders(texts["en"]) == placeholders(texts["zh"]), f"{topic}.{name}"


@pytest.mark.parametrize("topic", TOPICS)
def test_chinese_is_chinese(topic: str) -> None:
    for name, texts in tomllib.loads((PACKAGE / "i18n" / "catalogue" / f"{topic}.toml").read_text("utf-8")).items():
        assert not _CJK.search(texts["en"]), f"{topic}.{name}"
        if texts["en"] == texts["zh"]:
            assert _UNSPOKEN.fullmatch(texts["en"]), f"{topic}.{name} is not translated"
        else:
            words = re.findall(r"[a-z]{4,}", re.sub(r"\{.*?\}", "", texts["zh"]))
            assert _CJK.search(texts["zh"]) or len(words) <= 2, f"{topic}.{name}"


def _texts(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The literals of a module, and its f-strings as expressions; whether a message is said with it directly."""
    said = {id(call.args[0]) for call in ast.walk(tree) if isinstance(call, ast.Call) and call.args and _says(call.func)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value), id(node) in said
        elif isinstance(node, ast.JoinedStr):
            yield "".join(map(_expression, node.values)), False


def _expression(part: ast.expr) -> str:
    """A part of an f-string as an expression: what it is, what it is chosen from, or a word."""
    if isinstance(part, ast.Constant):
        return re.escape(str(part.value))
    chosen = part.value if isinstance(part, ast.FormattedValue) else None
    if isinstance(chosen, ast.IfExp) and isinstance(chosen.body, ast.Constant) and isinstance(chosen.orelse, ast.Constant):
        return f"(?:{re.escape(str(chosen.body.value))}|{re.escape(str(chosen.orelse.value))})"
    return r"\w+"


def _says(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "say"


def _spoken() -> tuple[set[str], set[str]]:
    """What the modules that speak hold: expressions of texts, and the keys that are said directly."""
    expressions, direct = set(), set()
    modules = [path for folder in SPEAKING for path in sorted((PACKAGE / folder).rglob("*.py"))]
    for path in (*modules, PACKAGE / "i18n" / "speaker.py"):  # the last one heads tables
        for expression, said in _texts(ast.parse(path.read_text("utf-8"))):
            expressions.add(expression)
            if said:
                direct.add(re.sub(r"\\(.)", r"\1", expression))
    return expressions, direct


def test_no_message_is_unused_and_none_is_missing() -> None:
    expressions, direct = _spoken()
    keys = set(messages())
    assert {key for key in direct if re.fullmatch(rf"(?:{'|'.join(TOPICS)})\.\w+", key)} <= keys
    whole = [re.compile(one) for one in expressions if one != r"\w+"]
    by_name = [one for one in whole if one.pattern.replace(r"\w+", "").strip("._\\")]

    def used(key: str) -> bool:
        topic, _, name = key.partition(".")
        composed = f"{topic}\\.\\w+" in expressions or r"\w+\.\w+" in expressions
        return any(one.fullmatch(key) for one in by_name if one.pattern != f"{topic}\\.\\w+") or (
            composed and any(one.fullmatch(name) for one in by_name)
        )

    assert not sorted(key for key in keys if not used(key))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_message_without_a_value_for_its_placeholder_is_an_error(language) -> None:
    key = next(key for key, texts in messages().items() if placeholders(texts["en"]))
    with pytest.raises(KeyError):
        Speaker(language).say(key)
    with pytest.raises(KeyError):
        Speaker(language).say("app.no-such-message")
