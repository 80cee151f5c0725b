"""A run that resumed on another number of ranks: each step is judged by the number that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pytest

from rl_doctor import check, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.sessions import Sessions
from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.run import Run
from rl_doctor.store.writer import RunWriter
from tests.simulation.healthy import KINDS
from tests.simulation.logs import relogged
from tests.unit.analyzer.reference_trl import NATIVE, STEPS, Row, expected, make_rows

RANKS: Final = {1: 2, 2: 1, 3: 3}
"""World size of each session."""
FIRST: Final = {1: 1, 2: 5, 3: 7}
"""First step of each session, in which a generation batch begins."""


def session_of(step: int) -> int:
    return max(session for session, first in FIRST.items() if first <= step)


def made() -> list[Row]:
    """Rows of every session, each of its own number of ranks."""
    return [
        row for session, ranks in RANKS.items() for row in make_rows(session, ranks) if session_of(row.keys["step"]) == session
    ]


def rows_of(rows: list[Row]) -> Rows:
    columns: dict[str, Any] = {name: np.array([row.keys[name] for row in rows]) for name in rows[0].keys}
    columns |= {name: columns[name].astype(object) for name in ("uid", "group", "finish_reason")}
    columns |= {name: columns[name].astype(np.int32) for name in ("epoch", "minibatch", "microbatch", "rank", "response_length")}
    columns |= {name: np.concatenate([row.tokens[name] for row in rows]) for name in rows[0].tokens}
    return Rows(columns, splits_of(np.array([len(row.tokens["logprob"]) for row in rows])))


def trl(
    folder: Path, log: dict[int, dict[str, float]], rows: list[Row], native: Mapping[int, dict[str, Any]] = MappingProxyType({})
) -> Run:
    """Record the rows, session by session and rank by rank; the log by rank 0 of the session of each step."""
    for session, ranks in RANKS.items():
        info = RunInfo(
            trainer="trl", trainer_version="1.16.0", algorithm="grpo", world_size=ranks, writing_ranks=tuple(range(ranks)),
            config=RunConfig(native=NATIVE | native.get(session, {})),
        )  # fmt: skip
        writers = [RunWriter(folder, info, rank=0)]
        writers += [RunWriter(folder, info, rank=rank, session=writers[0].session) for rank in range(1, ranks)]
        for step in (step for step in range(1, STEPS + 1) if session_of(step) == session):
            for rank, writer in enumerate(writers):
                own = [row for row in rows if row.keys["step"] == step and row.keys["rank"] == rank]
                if own:
                    writer.write_part(rows_of(own), completes=[step])
            if step in log:
                writers[0].write_metrics([{"step": step, "name": name, "value": value} for name, value in log[step].items()])
        for writer in reversed(writers):
            writer.close()
    return open_run(folder)


def honest(every: int, rows: list[Row]) -> dict[int, dict[str, float]]:
    """What TRL logs: at every multiple, and of the steps since its process began."""
    ends = [end for end in range(1, max(row.keys["step"] for row in rows) + 1) if end % every == 0 or end == STEPS]
    found = {}
    for end in ends:
        session = session_of(end)
        start = max([0, FIRST[session] - 1, *(other for other in ends if other < end)])
        found[end] = expected(rows, start, end, RANKS[session])
    return found


def compared(run: Any) -> dict[str, Comparison]:
    plan = reconcile.plan(run.info, run.columns, run.metrics(), run.recorded_in)
    return {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}


def mismatches(run: Any) -> list[Finding]:
    (result,) = check(run, [rules()["RLD801"]]).results
    return list(result.findings)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_each_step_is_judged_by_the_ranks_it_was_trained_on(tmp_path: Path, every: int) -> None:
    rows = made()
    log = honest(every, rows)
    run = trl(tmp_path / "run", log, rows)
    pack(run, tmp_path / "run.parquet")
    for opened in (run, open_run(tmp_path / "run.parquet")):
        assert [opened.recorded_in[step] for step in range(1, STEPS + 1)] == [1, 1, 1, 1, 2, 2, 3]
        found = compared(opened)
        assert set(found) == {name for values in log.values() for name in values}
        np.testing.assert_array_equal(found["loss"].steps, list(log))
        np.testing.assert_array_equal(found["reward"].steps, [end for end, values in log.items() if "reward" in values])
        for item in found.values():
            np.testing.assert_allclose(item.recomputed, item.logged, rtol=1e-6, atol=1e-9, err_msg=item.name)
        assert mismatches(opened) == []


@pytest.mark.parametrize("changed", [{"beta": 0.3}, {"gradient_accumulation_steps": 4, "steps_per_generation": 4}])
def test_each_step_is_judged_by_the_configuration_it_was_trained_with(tmp_path: Path, changed: dict[str, Any]) -> None:
    rows = made()
    for row in rows:
        row.keys["grad_accumulation"] = 2
    log = honest(1, [row for row in rows if session_of(row.keys["step"]) == 1])
    last = {step: {"entropy": 1.0} for step in range(5, STEPS + 1)}
    run = trl(tmp_path / "run", {step: log[step] for step in range(1, 5)} | last, rows, {2: changed, 3: changed})
    assert "config" in run.info.sessions[0]
    assert "config" not in run.info.sessions[1]
    (loss,) = (item for item in compared(run).values() if item.name == "loss")
    np.testing.assert_array_equal(loss.steps, [1, 2, 3, 4])
    np.testing.assert_allclose(loss.recomputed, loss.logged, rtol=1e-6)
    assert [finding for finding in mismatches(run) if "entropy" not in finding.message] == []


def test_a_wrong_number_of_an_earlier_session_is_found_and_explained(tmp_path: Path) -> None:
    rows = made()
    log = honest(1, rows)
    for step, values in log.items():
        values["loss"] *= RANKS[session_of(step)]
    run = trl(tmp_path / "run", log, rows)
    (found,) = mismatches(run)
    assert "loss" in found.message
    assert "is multiplied by the number of ranks, 1 or 2 or 3" in str(found.cause)


def test_one_wrong_session_is_enough(tmp_path: Path) -> None:
    rows = made()
    log = honest(1, rows)
    for step, values in log.items():
        values["kl"] *= 1.5 if session_of(step) == 1 else 1.0
    (found,) = mismatches(trl(tmp_path / "run", log, rows))
    assert "kl" in found.message


def test_a_rank_that_is_missing_in_an_earlier_session_is_not_compared(tmp_path: Path) -> None:
    rows = made()
    kept = [row for row in rows if not (row.keys["step"] == 2 and row.keys["rank"] == 1)]
    found = compared(trl(tmp_path / "run", honest(1, rows), kept))
    np.testing.assert_array_equal(found["kl"].steps, [1, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(found["loss"].steps, [1, 3, 4, 5, 6, 7])


def test_steps_of_an_unknown_number_of_ranks_are_not_compared(tmp_path: Path) -> None:
    rows = made()
    run = trl(tmp_path / "run", honest(1, rows), rows)
    first, *rest = run.info.sessions
    unknown = {name: value for name, value in first.items() if name != "world_size"}
    lost = replace(run, info=replace(run.info, sessions=(unknown, *rest)))
    np.testing.assert_array_equal(compared(lost)["kl"].steps, [5, 6, 7])
    assert mismatches(lost) == []
    nowhere = replace(run, recorded_in={})
    assert compared(nowhere) == {}
    plan = reconcile.plan(nowhere.info, nowhere.columns, nowhere.metrics(), {})
    assert "settings of the sessions" in plan.reason


def test_windows_that_mix_sessions_are_not_compared() -> None:
    info = RunInfo(world_size=1, sessions=({"session": 1, "world_size": 1}, {"session": 2, "world_size": 1}))
    sessions = Sessions.of(info, {1: 1, 2: 1, 3: 2, 4: 2, 5: 1, 6: 1})
    assert sessions.resumed_after().tolist() == [2]
    starts, ends = np.array([0, 2, 2, 4, 3, 0]), np.array([2, 4, 5, 6, 5, 3])
    assert sessions.mixed(starts, ends).tolist() == [False, False, True, False, True, True]
    assert not Sessions().mixed(starts, ends).any()


def test_steps_with_rows_of_fewer_ranks_than_the_session_had_are_not_compared() -> None:
    run = relogged(KINDS["two_epochs"](0))
    run.arrays["rank"] = np.zeros(len(run.arrays["step"]), np.int64)
    steps = np.unique(run.arrays["step"])
    cuts = np.array_split(steps, 3)
    recorded = {int(step): number for number, part in enumerate(cuts, 1) for step in part}
    sessions = tuple({"session": session, "world_size": ranks} for session, ranks in RANKS.items())
    info = replace(run.info, world_size=3, writing_ranks=(0, 1, 2, 3), sessions=sessions)
    resumed = replace(run, info=info, recorded_in=recorded)
    (alone,) = [cuts[session - 1] for session, ranks in RANKS.items() if ranks == 1]
    own = compared(replace(run, info=replace(run.info, writing_ranks=None)))
    found = compared(resumed)
    assert set(found) == set(own)
    for name, item in found.items():
        kept = np.isin(own[name].steps, alone)
        np.testing.assert_array_equal(item.steps, own[name].steps[kept], err_msg=name)
        np.testing.assert_array_equal(item.recomputed, own[name].recomputed[kept], err_msg=name)
    assert mismatches(resumed) == []
    first = np.isin(steps, alone)
    wrong = resumed.relog("actor/ppo_kl", lambda _, values: np.where(first, values + 0.1, values))
    (finding,) = mismatches(wrong)
    assert "actor/ppo_kl" in finding.message
