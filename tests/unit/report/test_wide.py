"""Lines with wide characters are broken where Chinese breaks them, and none is too wide."""

# ruff: noqa: RUF001 - the wide marks of Chinese are meant

from __future__ import annotations

import pytest
from rich.cells import cell_len

from rl_doctor.i18n.telling import told
from rl_doctor.report import text
from rl_doctor.report.wide import folded
from tests.golden.outputs import ALL

SENTENCE = (
    "训练端两次前向的精度或代码路径不同：平均差异为 +0.027 nat（正常的策略：不超过 0.1）；"
    "logprob 有 0%、old_logprob 有 0% 是半精度的值。"
)


@pytest.mark.parametrize("width", range(12, 90, 7))
def test_no_line_is_wider_than_it_may_be_and_nothing_is_lost(width: int) -> None:
    lines = folded(SENTENCE, width).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(SENTENCE.split())
    assert all(line[0] not in "，。：；、）" for line in lines)
    assert all(line[-1] != "（" for line in lines)


def test_lines_are_filled() -> None:
    lines = folded("训" * 100, 40).split("\n")
    assert [cell_len(line) for line in lines] == [40] * 5


def test_a_word_wider_than_a_line_is_left_to_the_console() -> None:
    assert folded("训 " + "x" * 30, 12).split("\n") == ["训", "x" * 30]


def test_text_without_wide_characters_is_left_alone() -> None:
    assert folded("a  b " * 40, 20) == "a  b " * 40
    assert folded("", 20) == ""


@pytest.mark.parametrize("width", [60, 100])
def test_a_chinese_report_keeps_to_its_width(width: int) -> None:
    printed = text.render(ALL, width=width, tell=told)
    assert "错误" in printed
    assert all(cell_len(line) <= width for line in printed.split("\n"))


def test_bodies_of_a_table_begin_in_one_column() -> None:
    lines = text.render(ALL, tell=told).split("\n")
    labelled = [line for line in lines if line.startswith(("  证据", "  已排除", "  下一步"))]
    assert labelled
    starts = {cell_len(line[: len(line) - len(line[4:].split("  ", 1)[1].lstrip())]) for line in labelled}
    assert len(starts) == 1
