"""``rl-doctor compare``: text and JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_doctor.cli.main import main

DEMO = Path(__file__).parents[3] / "rl_doctor" / "demo"
HEALTHY, SIGN, LOG = DEMO / "healthy.parquet", DEMO / "kl-sign.parquet", DEMO / "truncated.trainer_state.json"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_text_tells_where_they_part_and_what_is_configured_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, HEALTHY, SIGN)
    assert code == 0
    words = " ".join(out.split())
    assert "healthy.parquet · trl 1.16.0 · grpo · steps 1-60 · 19,402 tokens" in words
    assert "ref.kl_k3: from step 10 on outside the band of kl-sign.parquet" in words
    assert "for the 21 points to the last of 30 shared ones" in words
    assert "config.kl_coef 0.04 0.5" in words
    assert "RLD801" in words
    assert all(len(line) <= 100 for line in out.splitlines())


def test_json_holds_every_metric_that_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, HEALTHY, SIGN, LOG, "--output-format", "json")
    document = json.loads(out)
    assert code == 0
    assert [one["name"] for one in document["runs"]] == ["healthy.parquet", "kl-sign.parquet", "truncated.trainer_state.json"]
    parted = {(one["metric"], one["other"]): one["first_step"] for one in document["divergences"]}
    assert parted["ref.kl_k3", "kl-sign.parquet"] == 10
    assert parted["reward.mean", "kl-sign.parquet"] is None
    assert all(one["shared"] > 0 for one in document["divergences"])
    settings = {one["name"]: one["values"] for one in document["settings"]}
    assert settings["config.kl_coef"] == ["0.04", "0.5", ""]
    assert {one["code"] for one in document["findings"]} >= {"RLD801", "RLD501"}


def test_a_folder_stands_for_its_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in (HEALTHY, SIGN):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    code, out, _ = run(capsys, tmp_path, "--by", "tokens")
    assert code == 0
    assert "aligned by tokens; values between steps are interpolated" in out


def test_the_same_run_does_not_part(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(HEALTHY.read_bytes())
    code, out, _ = run(capsys, HEALTHY, copy)
    assert code == 0
    assert "leaves the other's band" in out
    assert out.count("nothing") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((HEALTHY,), "two RUNs"),
        ((HEALTHY, HEALTHY), "one and the same run"),
        ((HEALTHY, "no/such/run"), "No such file"),
        ((HEALTHY, LOG, "--by", "tokens"), "not all runs tell tokens"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str | Path, ...], says: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says.lower() in err.lower()
    assert len(err.splitlines()) == 1
