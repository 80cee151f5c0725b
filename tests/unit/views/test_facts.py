"""What is told in a line each, and that both languages have the messages for it."""

from __future__ import annotations

import dataclasses

import pytest

from rl_doctor.analyzer.gaps import Gap
from rl_doctor.i18n.speaker import LANGUAGES, Language, Speaker
from rl_doctor.views.age import Age
from rl_doctor.views.facts import Message, not_recomputed, of_files, of_log, of_outcomes, of_stored, of_verdict
from rl_doctor.views.opened import Opened
from rl_doctor.views.outcomes import outcomes
from rl_doctor.views.recompute import Recomputed, recomputed
from rl_doctor.views.stored import Told, stored
from rl_doctor.views.verdict import verdict
from tests.unit.views.conftest import demo

FRESH = Age("complete", 1_300.0, growing=False, last_step=24)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_fact_can_be_said(stale: Opened, language: Language) -> None:
    speaker = Speaker(language)
    for fact in (*of_verdict(verdict(stale), FRESH), *of_stored(stored(stale))):
        assert speaker.said([fact.label])
        assert isinstance(fact.fact, int) or speaker.said([fact.fact])
        assert speaker.said(fact.notes)


def test_the_verdict_comes_first_and_the_condition_last(stale: Opened) -> None:
    first, *_, last = of_verdict(verdict(stale), FRESH)
    assert (first.kind, first.fact) == ("error", Message("diagnosis.level_error"))
    assert (last.kind, last.notes) == ("complete", (Message("app.last", {"step": 24}),))
    inconclusive = dataclasses.replace(verdict(stale), level="inconclusive")
    assert of_verdict(inconclusive, FRESH)[0].kind == "skipped"


def test_what_was_left_out_is_told_or_that_nothing_was(stale: Opened) -> None:
    view = dataclasses.replace(stored(stale), gaps=(Gap(3, 3, 1), Gap(5, 7, 3)), more_gaps=2, told=(Told("dropped", "4"),))
    assert [(one.kind, one.message.key, one.text) for one in of_files(view)] == [
        ("warning", "data.gap_one", ""), ("warning", "data.gap", ""), ("note", "data.more_gaps", ""),
        ("warning", "data.told_dropped", "4"),
    ]  # fmt: skip
    whole = dataclasses.replace(view, gaps=(), more_gaps=0, told=())
    assert [one.kind for one in of_files(whole)] == ["passed"]


def test_whether_the_log_is_right(stale: Opened) -> None:
    found = recomputed(stale)
    assert of_log(found).kind == "passed"
    wrong = dataclasses.replace(found, compared=tuple(dataclasses.replace(one, differing=2) for one in found.compared[:1]))
    assert of_log(wrong).message == Message("recompute.some_differ", {"differing": 1, "n": 1})
    nothing = dataclasses.replace(found, compared=(), reason="no log")
    assert (of_log(nothing).kind, of_log(nothing).text) == ("skipped", "no log")
    assert not_recomputed(found) == (Message("recompute.absent", {"n": 4}), Message("recompute.undefined", {"n": 4}))
    assert not_recomputed(Recomputed((), (), 0, 0, "")) == ()


@pytest.mark.parametrize(
    ("seconds", "en", "zh"),
    [
        (-3.0, "0 s", "0 秒"), (59.9, "59 s", "59 秒"), (1_200.0, "20 min", "20 分钟"), (7_200.0, "2 h", "2 小时"),
        (200_000.0, "2 days", "2 天"),
    ],
)  # fmt: skip
def test_durations_are_in_one_language(seconds: float, en: str, zh: str) -> None:
    assert Speaker("en").duration(seconds) == en
    assert Speaker("zh").duration(seconds) == zh
    assert Speaker("zh").say("app.written", quiet=zh) == f"{zh}前写入"


def test_one_reward_for_all_tells_nothing_right_from_wrong() -> None:
    found = outcomes(demo("constant-reward"))
    assert found is not None
    assert of_outcomes(found).key == "groups.about_constant"
    assert "learning signal" in Speaker().said([of_outcomes(found)])
