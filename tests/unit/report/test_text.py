"""The text report: order, wrapping, colour, and what must be said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rl_doctor.report import text
from tests.unit.report.examples import BLANK, CLEAN, EXPLAINED, FULL, MISMATCH, RESULTS, UNREADABLE

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_errors_come_first_and_the_earliest_of_them_leads() -> None:
    printed = text.render([FULL])
    places = [
        printed.index(head) for head in ("RLD001 non-finite", "RLD102 rollout-train", "RLD401 zero-variance", "RLD101 stale")
    ]
    assert places == sorted(places)


def test_a_finding_says_evidence_cause_and_next_steps() -> None:
    printed = text.render([FULL], width=200)
    for part in (
        MISMATCH.message,
        "mismatch.abs 0.0361 nat, baseline 0.011 nat, limit 0.02 nat, n 352,000,000, steps 388-612, rank 1",
        "ERROR         The engine samples with stale weights",
        "ruled out     another temperature: the slope is 1.00",
        "not checked   staleness: needs weight_version",
        "next          1. Repeat step 388",
        "2. Record weight_version",
        "see           rl-doctor explain RLD102",
    ):
        assert part in printed


def test_findings_of_one_rule_share_its_advice() -> None:
    other = replace(
        MISMATCH, message="On rank 3 too.", evidence=(replace(MISMATCH.evidence[0], first_step=7, where={"rank": 3}),)
    )
    printed = text.render([replace(FULL, results=(replace(RESULTS[3], findings=(MISMATCH, other)),))], width=200)
    assert "synchronisation that failed. (steps 7-612)" in printed
    assert "found         RLD102 rollout-train-mismatch, steps 7-612" in printed
    assert printed.index("rank 3\n") < printed.index(MISMATCH.message) < printed.index("ruled out")
    for once in ("Repeat step 388", "ruled out", "not checked", "see   "):
        assert printed.count(once) == 1


def test_a_cause_says_its_signs_what_follows_and_what_it_is_not() -> None:
    printed = text.render([EXPLAINED], width=200)
    for part in (
        "ERROR         The engine samples with weights that fall behind. (steps 388-612)",
        "2 of 4 signs  the difference grows with the updates",
        "but           rollout_logprob is no nearer",
        "not checked   the lag itself: needs weight_version",
        "ruled out     the trainer leaves out the temperature: the slope is 1.00",
        "fits as well  the engine reuses a stale prefix cache (to tell them apart: group)",
        "follows       info RLD201 ratio-saturation, steps 390-400: 43% of the tokens",
        "look at       step 390, sequence 7 (uid 390.1): mismatch.worst_rows 4.25",
    ):
        assert part in printed
    assert printed.count("RLD201") == 1


def test_a_finding_that_the_diagnosis_leaves_out_is_told_all_the_same() -> None:
    printed = text.render([EXPLAINED])
    assert printed.index("weights that fall behind") < printed.index("WARNING       The prompts are too easy")


def test_what_was_skipped_is_grouped_by_what_would_enable_it() -> None:
    skipped = tuple(result for result in RESULTS if result.outcome == "skipped")
    printed = text.render([replace(FULL, results=skipped)], width=200)
    assert re.search(r"ref_logprob +RLD205 kl-flatline, RLD207 wrong-reference\n", printed)
    assert re.search(r"config.clip_low +RLD201 ratio-saturation\n", printed)
    assert re.search(r"too short to judge +RLD301 entropy-collapse \(12 steps are measured, and 24 are needed\)\n", printed)


def test_what_was_skipped_does_not_bury_what_was_found() -> None:
    printed = text.render([FULL], width=200)
    assert re.search(r"not recorded +ref_logprob 2, config.clip_low 1\n", printed)
    assert re.search(r"or else +too short to judge 1\n", printed)


def test_a_long_label_goes_on_below_its_beginning() -> None:
    lacking = ("config.clip_high", "config.clip_low", "rollout_logprob")
    printed = text.render([replace(FULL, results=(replace(RESULTS[4], missing=lacking),))], width=72).splitlines()
    at = printed.index("Not judged, and what would enable it")
    assert [line[:30].rstrip() for line in printed[at + 1 : at + 3]] == ["  config.clip_high +", "  config.clip_low +"]


def test_what_was_left_out_of_the_reading_is_said() -> None:
    printed = text.render([FULL], width=200)
    for part in (*FULL.run.skipped_parts, "router_ids, foo", *FULL.run.renamed_columns, *FULL.run.notes):
        assert part in printed


@pytest.mark.parametrize(
    ("report", "fail_on", "last"),
    [
        (FULL, "error", "2 errors, 1 warning, 0 info; 2 passed, 4 skipped (1 inconclusive), 1 crashed; exit 1"),
        (FULL, "never", "2 errors, 1 warning, 0 info; 2 passed, 4 skipped (1 inconclusive), 1 crashed; exit 2"),
        (CLEAN, "error", "0 errors, 0 warnings, 0 info; 2 passed, 0 skipped; exit 0"),
        (BLANK, "error", "0 errors, 0 warnings, 0 info; 1 passed, 4 skipped (1 inconclusive); exit 3"),
    ],
)
def test_the_last_line_counts_and_names_the_exit_code(report: object, fail_on: str, last: str) -> None:
    assert text.render([report], fail_on).rstrip().splitlines()[-1] == last  # type: ignore[list-item, arg-type]


def test_several_runs_end_with_the_worst_exit_code() -> None:
    printed = text.render([FULL, CLEAN, UNREADABLE])
    assert printed.rstrip().splitlines()[-1] == "3 runs, 1 could not be judged; exit 2"


def test_nothing_judged_is_said_in_words() -> None:
    assert "nothing could be judged: no rule" in text.render([BLANK])
    assert "required, but not judged: RLD205." in text.render([replace(FULL, results=RESULTS[5:], required=("RLD205",))])
    assert "No findings." in text.render([CLEAN])
    assert "No findings." not in text.render([BLANK])


@pytest.mark.parametrize("width", [40, 72, 100, 160])
def test_lines_fit_the_width(width: int) -> None:
    for line in text.render([FULL], width=width).splitlines():
        assert len(line) <= width


def test_colour_changes_nothing_but_the_colour() -> None:
    plain, coloured = text.render([FULL]), text.render([FULL], colour=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m" in coloured
    assert [line.rstrip() for line in ANSI.sub("", coloured).splitlines()] == plain.splitlines()


def test_markup_and_control_characters_in_names_are_only_text() -> None:
    run = replace(FULL.run, path="a\x1b[31m[bold red]b[/]", unknown_columns=("[link=x]y", "\x07"))
    finding = replace(MISMATCH, message="[red]:smile: \x1b]0;title\x07")
    printed = text.render([replace(FULL, run=run, results=(replace(RESULTS[3], findings=(finding,)),))], width=200)
    assert "\x1b" not in printed
    assert "\x07" not in printed
    for part in ("a\\x1b[31m[bold red]b[/]", "[link=x]y, \\x07", "[red]:smile: \\x1b]0;title\\x07"):
        assert part in printed
