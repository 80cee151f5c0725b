"""Which rules and metrics the words on the command line mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rl_doctor.errors import UsageError, suggestion

if TYPE_CHECKING:
    from rl_doctor.rules.registry import Rule


_PART: Final = 4
"""Letters of which a word that is part of a name is taken for it."""
_MOST: Final = 6


def words(given: Iterable[str]) -> list[str]:
    """The words of a repeatable option that also takes commas."""
    return [word for item in given for word in (part.strip() for part in item.split(",")) if word]


def matching(word: str, known: Sequence[Rule]) -> list[Rule]:
    """Rules that a code, a prefix of codes or a name means.

    Raises:
        UsageError: it means none; the message says what may have been meant.
    """
    code = word.upper()
    found = [rule for rule in known if rule.name == word.lower() or (code.startswith("RLD") and rule.code.startswith(code))]
    if not found:
        candidates = [name for rule in known for name in (rule.code, rule.name)]
        raise UsageError(f"no rule {word!r}{suggestion(word, candidates)}; `rl-doctor rules` lists them all")
    return found


def one_rule(word: str, known: Sequence[Rule], others: Iterable[str] = ()) -> Rule:
    """The rule of a code or a name; ``others`` are names of other things that may have been meant.

    Raises:
        UsageError: there is none.
    """
    for rule in known:
        if word.upper() == rule.code or word.lower() == rule.name:
            return rule
    candidates = [name for rule in known for name in (rule.code, rule.name)] + list(others)
    inside = [name for name in candidates if word.lower() in name.lower()] if len(word) >= _PART else []
    more = f" and {len(inside) - _MOST} more" if len(inside) > _MOST else ""
    meant = f"; it is a part of {', '.join(inside[:_MOST])}{more}" if inside else suggestion(word, candidates)
    raise UsageError(f"no rule {word!r}{meant}; `rl-doctor rules` lists them all")


def choose_rules(
    select: Iterable[str], ignore: Iterable[str], require: Iterable[str]
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules to run and the codes of those that must not be skipped.

    Raises:
        UsageError: a word means no rule, none is left, or a required rule is not among them.
    """
    from rl_doctor.rules.registry import rules

    known = tuple(rules().values())
    selected, ignored, required = words(select), words(ignore), words(require)
    wanted = {rule.code for word in selected for rule in matching(word, known)} if selected else {rule.code for rule in known}
    wanted -= {rule.code for word in ignored for rule in matching(word, known)}
    if not wanted:
        raise UsageError("--select and --ignore leave no rule to run")
    codes = tuple(dict.fromkeys(one_rule(word, known).code for word in required))
    if absent := [code for code in codes if code not in wanted]:
        raise UsageError(f"--require {absent[0]}: --select and --ignore leave this rule out")
    return tuple(rule for rule in known if rule.code in wanted), codes


def choose_metrics(select: Iterable[str], known: Collection[str]) -> list[str]:
    """Names of metrics, in the order of the registry, that the words mean: names, or topics such as ``policy``.

    Raises:
        UsageError: a word means none.
    """
    wanted: set[str] = set()
    for word in words(select):
        found = {name for name in known if name == word or name.startswith(f"{word.rstrip('.')}.")}
        if not found:
            topics = {name.partition(".")[0] for name in known}
            hint = suggestion(word, [*known, *topics])
            raise UsageError(f"no metric {word!r}{hint}; `rl-doctor metrics --list` names them all")
        wanted |= found
    return [name for name in known if name in wanted]
