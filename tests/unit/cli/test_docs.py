"""The generated pages: complete, and the same as in the code."""

from __future__ import annotations

from pathlib import Path

from rl_doctor import schema
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
    for name in metrics():
        assert f"| `{name}` |" in pages["metrics.md"]
    for column in (*schema.COLUMNS, *(item.name for item in schema.METRIC_COLUMNS)):
        assert f"| `{column}` |" in pages["schema.md"]
    for member in (*schema.MEMBERS, *schema.SETTINGS):
        assert f"| `{member}` |" in pages["config.md"]
    for verb in VERBS:
        assert f"## rl-doctor {verb.NAME}\n" in pages["cli.md"]


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
