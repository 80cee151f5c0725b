"""The page that lists the names."""

from __future__ import annotations

from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.analyzer.dialects_page import lines


def test_every_trainer_has_its_table() -> None:
    page = list(lines())
    headings = [line.removeprefix("## ") for line in page if line.startswith("## ")]
    assert headings == [*(known.label for _, known in sorted(trainers().items())), "Made at home"]
    for known in trainers().values():
        for item in known.names:
            assert any(line.startswith(f"| `{item.native}` |") for line in page)


def test_signs_versions_and_conditions_are_told() -> None:
    page = "\n".join(lines())
    assert "| `{actor}/approx_kl/avg` | `policy.kl_old_k1`, with the other sign |" in page
    assert "| `group/mixed_groups_ratio` | `group.zero_std_frac` = 1 - the value |" in page
    assert "| `reward_std` | `reward.std` | from 0.27 on |" in page
    assert "| `reward_std` | `group.std_mean` | before 0.27 |" in page
    assert "| `response_length/clip_ratio` | `length.limit_frac` | where the numbers bear it out |" in page


def test_rows_have_as_many_cells_as_the_header() -> None:
    assert {line.replace("\\|", "").count("|") for line in lines() if line.startswith("|")} == {5}
