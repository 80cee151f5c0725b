from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("plotly")

from rl_doctor.charts.timeline import escaped
from rl_doctor.html.hiding import Hider
from rl_doctor.views.identifying import Identifying, of_path, ordinary, telling

SALT = b"salt"


def hider(*few: str, many: tuple[str, ...] = ()) -> Hider:
    return Hider(Identifying(frozenset(few), frozenset(many)), SALT)


@pytest.mark.parametrize(
    ("few", "text", "left"),
    [
        ("math", "reward.mean_by.math falls; maths do not", "reward.mean_by.{0} falls; maths do not"),
        ("math", "MATH, math_x", "{0}, {0}_x"),
        ("my data", "of my data, 3", "of {0}, 3"),
        ("数学题", "来源数学题的奖励", "来源{0}的奖励"),
        ("a.b+c", "(a.b+c)", "({0})"),
        ("<b>", "x<b>y", "x{0}y"),
        ('say "it\'s"\nnow', "{'k': 'say \"it\\'s\"\\nnow'}", "{'k': '{1}'}"),
    ],
)
def test_words_in_texts(few: str, text: str, left: str) -> None:
    one = hider(few)
    assert one.text(text) == left.replace("{0}", one.of(few)).replace("{1}", one.of(repr(few)[1:-1]))


@pytest.mark.parametrize(
    "place",
    [
        "/mnt/nfs/team/run-3", "~/runs/a b", "C:\\Users\\me\\run", "s3://bucket/key?x=1", "me@example.org", "10.1.2.3",
        "https://wandb.ai/team/run",
    ],
)  # fmt: skip
def test_places_are_hidden_wherever_they_come_from(place: str) -> None:
    told = hider().text(f"see {place}: it is there")
    assert place.partition(" ")[0] not in told
    assert "team" not in told
    assert told.endswith("it is there")


@pytest.mark.parametrize(
    "text", ["actor/ppo_kl and 1/2, a/b/c", "rgba(0, 114, 178, .2)", "%{y:.4~g}", "<b>x</b><br><span>y</span>", "1.0.2"]
)
def test_what_is_no_place_stays(text: str) -> None:
    assert hider().text(text) == text


def test_a_name_in_a_label() -> None:
    one = hider("R&D <set>", "my own data")
    assert one.text(escaped("x R&D <set> y")) == f"x {one.of('R&amp;D &lt;set&gt;')} y"
    assert "own" not in one.text("of my own<br>data and my<br>own data")


def test_files_may_be_named_after_machines(tmp_path: Path) -> None:
    for name in ("events.out.tfevents.1700000000.node-a17.local.0", "sequences-s0-r0-0.parquet"):
        (tmp_path / name).write_bytes(b"")
    told = Hider(Identifying(of_path(tmp_path), frozenset()), SALT).text("node-a17.local and a17 in sequences-s0-r0-0.parquet")
    assert "a17" not in told
    assert "sequences-s0-r0-0" in told


def test_of_very_many_names_each_is_hidden() -> None:
    many = tuple(f"uid-{number}:{number}" for number in range(5_000))
    one = hider("few", many=many)
    told = one.text("responses uid-17:17, (uid uid-4999:4999), uid-3:3. Not uid-3:4 of few")
    assert re.sub(r"h_[0-9a-f]{8}", "H", told) == "responses H, (uid H), H. Not uid-3:4 of H"


def test_numbers_of_a_figure_stay() -> None:
    figure = {"x": {"dtype": "f8", "bdata": "math/+math=="}, "text": ["math", 1.5, None]}
    one = hider("math")
    assert one.document(figure) == {"x": figure["x"], "text": [one.of("math"), 1.5, None]}


def test_what_tells_of_a_run_and_what_does_not() -> None:
    for word in ("gsm8k", "openai/gsm8k", "my_judge", "Qwen3-8B", "1.0+alice", "123456", "数学"):
        assert telling(word), word
    for word in (
        "reward",
        "grpo",
        "trl",
        "1.16.0",
        ">=0.8,<0.9",
        "17",
        "0:3",
        "-",
        "stop",
        "logprob",
        "actor/ppo_kl",
        "bfloat16",
    ):
        assert not telling(word), word
    assert {"clip_low", "policy.entropy", "rloo"} <= ordinary()
