"""The command's own behaviour: verbs, usage errors, unexpected errors."""

from __future__ import annotations

import re

import pytest

from rl_doctor import __version__
from rl_doctor.cli import judging
from rl_doctor.cli.app import VERBS
from rl_doctor.cli.main import main
from rl_doctor.rules.registry import rules


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"rl-doctor {__version__}\n", "")


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for verb in VERBS:
        assert f"\n  {verb.NAME} " in out
        assert call(capsys, verb.NAME, "--help")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["chek"],
        ["check"],
        ["check", "x", "--fail-on", "info"],
        ["check", "x", "--output-format", "yaml"],
        ["check", "x", "--output", "json"],
        ["check", "x", "--output", "yaml=report"],
        ["check", "x", "--output", "json=/no/such/folder/report.json"],
        ["check", "x", "--select", "RLD999"],
        ["check", "x", "--ignore", "RLD"],
        ["check", "x", "--require", "nothing"],
        ["check", "x", "--nonsense"],
        ["explain"],
        ["explain", "RLD999"],
        ["metrics"],
        ["metrics", "--list", "--select", "nothing"],
        ["pack", "x"],
        [],
    ],
)
def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert "Traceback" not in err
    assert "internal error" not in err
    assert bool(err) or not arguments
    assert not out or not arguments


def test_a_wrong_verb_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'check'" in call(capsys, "chek")[2]


def test_explain_prints_the_whole_page_by_code_and_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "explain", "RLD203")
    rule = rules()["RLD203"]
    assert (code, err) == (0, "")
    assert out.startswith("# RLD203 kl-spike\n")
    page = " ".join(out.split())
    for part in (*rule.limits, *rule.advice, *rule.avoids, rule.cause, rule.source, "policy.kl_old_k3", "Used where"):
        assert part in page
    assert call(capsys, "explain", "kl-spike")[1] == out


def test_the_help_of_explain_names_rules_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "explain", "--help")
    (words,) = re.findall(r"a code such as (RLD\d+), or a name such as ([a-z-]+)", " ".join(out.split()))
    for word in words:
        assert call(capsys, "explain", word)[0] == 0


def test_explain_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "explain", "kl-spikes")
    assert (code, out) == (2, "")
    assert "did you mean kl-spike" in err


@pytest.mark.parametrize(("part", "whole"), [("RLD10", "RLD101, RLD102"), ("stale", "stale-old-logprob")])
def test_explain_names_what_a_word_is_a_part_of(capsys: pytest.CaptureFixture[str], part: str, whole: str) -> None:
    code, _, err = call(capsys, "explain", part)
    assert code == 2
    assert f"no rule {part!r}; it is a part of {whole}" in err


def test_a_run_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "compare", "runs/a", "runs/a")
    assert code == 2
    assert "one and the same run, a; name another one" in err


def test_rules_lists_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in _printed(capsys, "rules").splitlines()] == list(rules())


def test_metrics_list_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert "policy.ratio_mean" in _printed(capsys, "metrics", "--list", "--select", "policy")


@pytest.mark.parametrize("shown", [False, True])
def test_an_unexpected_error_is_one_line_that_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, shown: bool
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(judging, "judge", broken)
    monkeypatch.setenv("RL_DOCTOR_TRACEBACK", "1" if shown else "0")
    code, out, err = call(capsys, "check", "x")
    assert (code, out) == (2, "")
    assert ("Traceback" in err) is shown
    last = err.splitlines()[-1]
    assert last.startswith("rl-doctor: error: internal error: ZeroDivisionError: one two; please report it")


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "")
    return out
