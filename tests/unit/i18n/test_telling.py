"""Sentences are put together in Chinese as they were in English."""

# ruff: noqa: RUF001 - the wide marks of Chinese are meant

from __future__ import annotations

import time

import pytest

from rl_doctor.i18n.speaker import Speaker
from rl_doctor.i18n.telling import told, understood

TOLD = {
    "old_logprob is computed with outdated weights.": "old_logprob 用过时的权重计算。",
    "Old_logprob is computed with outdated weights": "old_logprob 用过时的权重计算",
    "steps 3-9": "第 3-9 步",
    "step 3": "第 3 步",
    "1 step": "1 步",
    "1,234 tokens": "1,234 个 token",
    "the reward rises while the KL does (RLD204, steps 3-9)": "KL 上升的同时奖励也上升（RLD204，第 3-9 步）",
    "nothing shows that the gradient grows": "没有迹象表明梯度变大",
    "the entropy falls; the reward goes from 0.2 to 0.1": "熵下降；奖励从 0.2 变到 0.1",
    "whether the slope is 1: needs logprob, old_logprob": "是否斜率为 1：需要 logprob、old_logprob",
    "43% of the tokens have a ratio outside [0.8, 1.2] (median, steps 20 to 24)":
        "第 20 至 24 步，43% 的 token 比率超出 [0.8, 1.2]（中位数）",
    "mismatch.first_k3 0.028 nat, baseline 0 nat, limit 0.001 nat, n 3,992, steps 5-23":
        "mismatch.first_k3 0.028 nat，基线 0 nat，阈值 0.001 nat，n 3,992，第 5-23 步",
    "the loss mask, only tokens of both masks (needs loss_mask)": "loss 掩码，仅两个掩码都有的 token（需要 loss_mask）",
    "2 errors, 0 warnings, 1 info; 73 passed, 41 skipped (8 inconclusive); exit 1":
        "2 条错误，0 条警告，1 条提示；73 条通过，41 条跳过（8 条无法下结论）；退出码 1",
}  # fmt: skip


@pytest.mark.parametrize("english", TOLD, ids=lambda text: text[:40])
def test_a_text_is_told(english: str) -> None:
    assert understood(english)
    assert told(english) == TOLD[english]


@pytest.mark.parametrize(
    "text",
    ["", " ", "RLD101", "policy.ratio_mean", "reward/format", "0.5", "a, b", "token_reward", "runs/a b/c.parquet", "3.2e-05 nat"],
)
def test_names_and_numbers_stay(text: str) -> None:
    assert told(text) == text


@pytest.mark.parametrize("text", ["Nobody ever wrote such a sentence into a rule.", "made of words, and of others", "去掉 this"])
def test_a_sentence_that_is_not_known_stays(text: str) -> None:
    assert told(text) == text
    assert not understood(text)


def test_what_a_placeholder_holds_may_be_foreign() -> None:
    known = "reward component my own thing never changes although the configuration gives it weight"
    assert told(known) == "奖励分量 my own thing 从不变化，而配置里给了它权重"


def test_lines_are_told_each() -> None:
    assert told("the entropy falls\nthe gradient grows") == "熵下降\n梯度变大"


def test_english_stays_as_it_is() -> None:
    assert Speaker("en").tell("the entropy falls") == "the entropy falls"
    assert Speaker("zh").tell("the entropy falls") == "熵下降"


def test_long_lists_and_strange_texts_take_no_time() -> None:
    texts = [
        ", ".join(f"name_{n} and thing_{n} (of {n}; or not)" for n in range(40)),
        "; ".join(["the reward was odd"] * 40),
        " at steps 3 to 9" * 30,
        "(" * 200 + ")" * 100,
        "a: b: c, d; " * 60,
    ]
    start = time.process_time()
    for text in texts:
        told(text)
    assert time.process_time() - start < 10
