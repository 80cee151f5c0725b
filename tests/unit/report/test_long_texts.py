"""Long reports: what is told once, and what is cut short in text and whole in JSON."""

from __future__ import annotations

from dataclasses import replace

from rl_doctor.report import json_document, text
from rl_doctor.report.model import Evidence, Finding, Result
from rl_doctor.report.wording import evidence, not_recomputed
from tests.unit.report.examples import FULL, RUN


def finding(number: int, cause: str = "The logged number has the opposite sign.") -> Finding:
    name = f"actor/key{number}"
    item = Evidence("policy.kl_old_k1", 1, 8, 0.5, -0.5, 5e-4, "nat", 8, {"logged_name": name})
    return Finding(
        "RLD801", "logged-metric-mismatch", "error", f"{name} differs from its recomputation", (item,), cause,
        ("Compare the code.",), (f"{name}: abs, k2",), ("prompt included (needs prompt_length)",), str(number),
    )  # fmt: skip


def test_keys_with_one_cause_are_one_group_with_one_advice() -> None:
    findings = (*(finding(number) for number in range(36)), finding(36, "Something else."))
    report = replace(FULL, results=(Result("RLD801", "logged-metric-mismatch", "found", findings=findings),))
    shown = text.render([report])
    assert len(shown.splitlines()) < 70
    assert shown.count("Compare the code.") == 2
    assert shown.count("opposite sign") == 1
    assert "and 32 more like these" in shown
    assert "actor/key35" in shown
    assert shown.count("needs prompt_length") == 2
    assert len(json_document.document(report)["results"][0]["findings"]) == 37


def test_a_number_of_the_log_is_told_beside_its_recomputation() -> None:
    (item,) = finding(1).evidence
    assert evidence(item) == (
        "actor/key1 0.5 nat logged, -0.5 nat recomputed, allowed difference 0.0005 nat, 8 steps, steps 1-8"
    )  # fmt: skip


def test_what_was_not_recomputed_is_one_line() -> None:
    (line,) = not_recomputed(RUN)
    assert line == (
        "4 numbers: actor/entropy (needs old_entropy), actor/kl_loss (no step has rows of all 4 ranks), critic/vf_loss "
        "(needs value) and 1 more (the JSON report lists all); 12 cannot be from what is recorded; of 1 no definition is "
        "known"
    )
    assert not_recomputed(replace(RUN, not_recomputed=(), not_recomputable=0, undefined=2)) == ["of 2 no definition is known"]
    assert not_recomputed(replace(RUN, not_recomputed=(), not_recomputable=0, undefined=0)) == []
