"""What the watch shows: in 80 columns, in ASCII, in Chinese, of any look."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from rl_doctor.i18n.speaker import Language, Speaker
from rl_doctor.live.looking import Look
from rl_doctor.live.sight import Sight
from rl_doctor.live.terminal import JsonLines, Lines, picture, sparkline
from rl_doctor.live.words import Words
from tests.unit.live.sights import sight, sights, trouble

SEEN = replace(
    sight(
        trouble("old_logprob", "1", steps=(5, 24)),
        trouble("length", "2", severity="warning", going_on=False, steps=(7, 9)),
        trouble("kl", "3", severity="info"),
        step=24, tokens=9072, written=990.0, about="trl 1.16.0 · grpo",
    )
)  # fmt: skip


def shown(look: Look | None, width: int = 80, language: Language = "en", lines: int | None = None, plain: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as captured:
        console.print(picture(look, Words(Speaker(language)), "runs/a", 1002.0, lines=lines, plain=plain))
    return captured.get()


def test_the_table() -> None:
    text = shown(Look(SEEN))
    assert text.splitlines()[0] == "runs/a · trl 1.16.0 · grpo · step 24 · 9,072 tokens · written 12 s ago"
    assert text.splitlines()[1] == "running · 1 error, 1 warning, 1 info"
    assert "✖ error" in text
    assert "step 5" in text
    assert "▁█" in text
    assert "going on" in text
    assert "not since" in text
    assert text.index("✔ warning") < text.index("● info")


@pytest.mark.parametrize("language", ["en", "zh"])
@given(seen=sights(), width=st.integers(60, 160))
def test_any_look_keeps_within_the_width(language: Language, seen: Sight, width: int) -> None:
    text = shown(Look(seen), width, language)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    for each in seen.troubles:
        assert each.findings[0].code in text


def test_what_is_known_of_the_trainer_is_told_in_chinese() -> None:
    text = shown(Look(replace(SEEN, about="trl 0.18 or later, by its keys")), language="zh")
    assert "trl 0.18 或更晚" in text
    assert "by its keys" not in text


def test_a_low_terminal_shows_what_fits_and_counts_the_rest() -> None:
    many = sight(*(trouble(name, name) for name in "abcdefgh"))
    text = shown(Look(many), lines=24)
    assert "and 5 more: rl-doctor check runs/a" in text
    assert len(text.splitlines()) < 24
    assert "more" not in shown(Look(many))


def test_in_ascii_alone() -> None:
    text = shown(Look(replace(SEEN, about="")), plain=True)
    assert text.replace("·", "").isascii()
    assert "x error" in text


@pytest.mark.parametrize(
    ("look", "told"),
    [
        (None, "reading runs/a"),
        (Look(None, "runs/a: not there", missing=True), "waiting: runs/a is not there yet"),
        (Look(None, "runs/a: no rows"), "cannot be judged yet, looking again: runs/a: no rows"),
        (Look(SEEN, "runs/a: torn"), "cannot be read now, looking again: runs/a: torn"),
        (Look(replace(SEEN, quiet=200.0)), "STALLED: nothing written for 3 min"),
        (Look(sight(exit_code=3, why="nothing could be judged")), "not judged: nothing could be judged"),
        (Look(sight()), "running · nothing found"),
        (Look(sight(read=14)), "step 14 (judged to step 9)"),
        (Look(sight(status=None)), "followed · nothing found"),
    ],
)
def test_what_else_is_said(look: Look | None, told: str) -> None:
    assert told in shown(look, 120)


def test_a_name_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in shown(Look(replace(SEEN, path="runs/\x1b[2Jx")))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_a_sparkline_has_a_bar_for_each_number(values: list[float]) -> None:
    bars = sparkline(values)
    assert len(bars) == sum(map(math.isfinite, values))
    if bars and max(filter(math.isfinite, values)) > min(filter(math.isfinite, values)):
        assert "▁" in bars
        assert "█" in bars


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 7, 7]) == "▄▄▄"
    assert sparkline([0, 7], plain=True) == "_#" or sparkline([0, 7], plain=True) == "_@"


def test_one_line_for_each_change() -> None:
    lines: list[str] = []
    sink = Lines(lines.append, Words(Speaker()), "runs/a")
    looks = [
        Look(None, "x", missing=True), Look(None, "x", missing=True), Look(sight(trouble("b", "9", going_on=False))),
        Look(sight(trouble("b", "9", going_on=False), step=10)), Look(sight(trouble("a", "1"))), Look(sight(trouble("a", "1"))),
        Look(sight(trouble("a", "1", going_on=False))), Look(sight(quiet=61.0)), Look(sight(quiet=90.0)), Look(sight()),
        Look(sight(ended=True, status="complete", exit_code=0)),
    ]  # fmt: skip
    for look in looks:
        sink.take(look)
    assert [line[10:] for line in lines] == [
        "waiting: runs/a is not there yet",
        "step 9  runs/a · running",
        "step 9  ERROR, past: b is wrong. (RLD101; since step 3, not since step 9) Do first: mend it",
        "step 9  ERROR a is wrong. (RLD101; since step 3) Do first: mend it",
        "step 9  over: a is wrong. (RLD101; not since step 9)",
        "step 9  STALLED: nothing written for 61 s",
        "step 9  writes again, at step 9",
        "step 9  finished: complete; nothing found; exit 0",
    ]


def test_json_for_programs() -> None:
    lines: list[str] = []
    sink = JsonLines(lines.append, "runs/a")
    for look in (Look(None, "x", missing=True), Look(SEEN), Look(SEEN), Look(replace(SEEN, ended=True), over=True, exit_code=1)):
        sink.take(look)
    first, second, last = map(json.loads, lines)
    assert (first["problem"], first["sight"]) == ("x", None)
    assert second["events"][0] == {"kind": "onset", "cause": "old_logprob", "codes": ["RLD101"]}
    assert Sight.from_json(second["sight"]) == SEEN
    assert (last["over"], last["exit_code"], last["events"]) == (True, 1, [{"kind": "finished"}])
