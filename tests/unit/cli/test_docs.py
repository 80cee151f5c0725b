"""The generated pages: complete, and the same as in the code."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from rl_doctor import check, open_run, schema
from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.analyzer.registry import metrics
from rl_doctor.cli.app import VERBS
from rl_doctor.cli.pages import rule_page
from rl_doctor.rules.registry import rules
from tools import gen_docs


def test_pages_are_current() -> None:
    assert gen_docs.stale(gen_docs.pages(), gen_docs.DOCS) == [], "`make docs` writes them anew"


def test_stale_missing_and_left_over_pages_are_found(tmp_path: Path) -> None:
    wanted = {"cli.md": "new\n", "rules/kl-spike.md": "page\n"}
    assert gen_docs.stale(wanted, tmp_path) == ["cli.md: missing", "rules/kl-spike.md: missing"]
    gen_docs.write(wanted, tmp_path)
    assert gen_docs.stale(wanted, tmp_path) == []
    (tmp_path / "cli.md").write_text("old\n")
    (tmp_path / "rules" / "gone.md").write_text("page\n")
    assert gen_docs.stale(wanted, tmp_path) == ["cli.md: stale", "rules/gone.md: belongs to no rule and no trainer"]
    gen_docs.write(wanted, tmp_path)
    assert gen_docs.stale(wanted, tmp_path) == []


def test_everything_has_its_place() -> None:
    pages = gen_docs.pages()
    for rule in rules().values():
        assert f"(rules/{rule.name}.md)" in pages["rules.md"]
        page = " ".join(pages[f"rules/{rule.name}.md"].split())
        for part in (rule.code, rule.cause, rule.source, *rule.advice, *rule.avoids, *rule.limits, *rule.needs):
            assert " ".join(part.split()) in page
    rows = {name for line in pages["metrics.md"].splitlines() if line.startswith("| `") for name in _names(line.split("`")[1])}
    assert rows >= set(metrics())
    for column in (*schema.COLUMNS, *(item.name for item in schema.METRIC_COLUMNS)):
        assert f"| `{column}` |" in pages["schema.md"]
    for member in (*schema.MEMBERS, *schema.SETTINGS):
        assert f"| `{member}` |" in pages["config.md"]
    for verb in VERBS:
        assert f"## rl-doctor {verb.NAME}\n" in pages["cli.md"]


def _names(pattern: str) -> list[str]:
    """What a name with ``{a,b}`` stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(one) for one in itertools.product(*parts)]


def test_the_page_of_metrics_can_be_read() -> None:
    page = gen_docs.pages()["metrics.md"]
    assert max(map(len, page.splitlines())) <= 600
    assert sum("| `advantage.fit_grpo" in line for line in page.splitlines()) <= 2
    assert "| `policy.kl_old` | nat | " in page
    (line,) = [line for line in page.splitlines() if line.startswith("| `policy.kl_old` | nat")]
    assert "| logged only |" in line


def test_texts_that_differ_in_words_become_one() -> None:
    assert gen_docs.braced(["a_ddof0 of x", "a_ddof1 of x", "a_ddof1 of y"]) == "a_ddof{0,1} of {x,y}"


def test_the_file_made_by_hand_is_compared_with_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(gen_docs.HAND_MADE, {})  # noqa: S102 - the page's own example
    assert gen_docs.HAND_MADE in gen_docs.pages()["formats.md"]
    report = check(open_run(tmp_path / "run.parquet"))
    (finding,) = [found for found in report.findings if found.code == "RLD801"]
    assert "critic/advantages/max" in str(finding)


def test_the_trainers_and_their_own_settings_are_told() -> None:
    page = gen_docs.pages()["config.md"]
    (line,) = [line for line in page.splitlines() if line.startswith("| `trainer` |")]
    assert all(f"`{name}`" in line for name in trainers())
    own = page.partition("## The trainer's own configuration")[2].partition("## ")[0]
    assert "`eps_clip_high`" in own.partition("- slime (`slime`)")[2].partition("\n- ")[0]
    assert "RLD801" in own
    assert max(map(len, own.splitlines())) <= 130


def test_every_rule_says_what_a_page_needs() -> None:
    for rule in rules().values():
        assert rule.doc, rule.code
        assert rule.cause, rule.code
        assert rule.advice, rule.code
        assert rule.source, rule.code
        for name in rule.limits:
            assert name in rule.doc, f"{rule.code}: the doc does not explain the limit {name}"


def test_a_rule_page_says_what_to_do_before_what_it_computes() -> None:
    for rule in rules().values():
        page = rule_page(rule, metrics())
        heads = [line for line in page.splitlines() if line.startswith("## ")]
        assert heads[:2] == ["## Likely cause", "## What to do"], rule.code
        assert "## What it computes" not in heads[:-1], rule.code
        assert all(len(line) <= 130 for line in page.splitlines()), rule.code
        computed = page.partition("## What it computes")[2].splitlines()
        assert len(computed) < 50, rule.code
        for name in {*rule.needs, *rule.optional}:
            assert sum(f"`{name}{'*' * name.endswith('.')}`" in line for line in computed) == 1, (rule.code, name)
        assert not any(line.startswith("  -") for line in computed), rule.code


def test_the_page_of_the_configuration_says_who_reads_it() -> None:
    page = gen_docs.pages()["config.md"]
    settings, _, readers = page.partition("## What reads it")
    rows = {line.split("`")[1]: line for line in readers.splitlines() if line.startswith("| `")}
    assert "(rules/kl-flatline.md)" in rows["kl_coef"]  # looked at by the check itself
    assert "(rules/stale-old-logprob.md)" in rows["is_correction"]  # by a function that the check calls
    assert "`value.clip_frac`" in rows["value_clip"]
    assert "(rules/" not in rows["kl_output_clamp"]
    assert "| `kl_estimator` | text | `k1`, `k2`, `k3`, `abs` |" in settings
    assert "| `group_size` | whole number | at least 1 | sequences |" in settings
