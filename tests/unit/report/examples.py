"""Reports with every kind of content, built by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from rl_doctor.report.model import (
    Diagnosis,
    Evidence,
    Failure,
    Finding,
    Reconciled,
    Report,
    Result,
    RunSummary,
    Sample,
    Sign,
)

MISMATCH = Finding(
    "RLD102", "rollout-train-mismatch", "error",
    "Mean |trainer - engine| rises from 0.011 to 0.036 nat at step 388 and stays.",
    (
        Evidence("mismatch.abs", 388, 612, 0.0361, 0.0110, 0.02, "nat", 352_000_000, {"rank": 1}),
        Evidence("mismatch.corr", 388, 612, 0.93, n=225),
    ),
    "The engine samples with stale weights after a weight synchronisation that failed.",
    ("Repeat step 388 with a learning rate of 0: if it still grows, it is the engine.", "Record weight_version for each sample."),
    ("another temperature: the slope is 1.00",),
    ("staleness: needs weight_version",),
    "00112233445566aa",
)  # fmt: skip
GROUPS = Finding(
    "RLD401", "zero-variance-groups", "warning",
    "The share of groups without reward variance rises from 0.31 to 0.68.",
    (Evidence("group.zero_std_frac", 240, 612, 0.68, 0.31, unit="1", n=96),),
    "The prompts are too easy for this policy.",
    ("Filter solved prompts or sample dynamically.",),
    fingerprint="0011",
)  # fmt: skip
INFINITE = Finding(
    "RLD001", "non-finite", "error",
    "logprob is infinite at step 3.",
    (Evidence("logprob", 3, 3, -math.inf, limit=math.nan, unit="nat", where={"share": math.inf, "row": 5}),),
    "The engine sampled a token that the trainer gives no probability.",
    ("Look at the row.",),
    fingerprint="0012",
)  # fmt: skip
SATURATED = Finding(
    "RLD201", "ratio-saturation", "info",
    "43% of the tokens have a ratio outside [0.8, 1.2].",
    (Evidence("policy.outside_frac", 390, 400, 0.43, 0.01, 0.25, n=2_189, interval=(0.41, 0.45)),),
    "Too many updates.",
    ("Lower the learning rate.",),
    fingerprint="0013",
)  # fmt: skip
STALE = Diagnosis(
    "weights-not-synchronised",
    "The engine samples with weights that fall behind.",
    "error",
    (replace(MISMATCH, suspect="weights-not-synchronised", samples=(Sample(390, 7, "390.1", "mismatch.worst_rows", 4.25),)),),
    (SATURATED,),
    (Sign("the difference grows with the updates, from 0.011 to 0.036 nat", 388), Sign("the slope is 1.00")),
    (Sign("rollout_logprob is no nearer to the reference than to the trainer"),),
    (Sign("the lag itself: needs weight_version, policy_version"),),
    ("the trainer leaves out the temperature: the slope is 1.00",),
    ("the engine reuses a stale prefix cache (to tell them apart: group)",),
    ("Repeat step 388 with a learning rate of 0: if it still grows, it is the engine.",),
)
RUN = RunSummary(
    "runs/grpo-7b-v3", "verl", "0.7.0", "grpo", 0, 612, 19_584, 1_030_000_000,
    skipped_parts=("tokens-s0-r1-7.parquet: torn (no footer)",),
    unknown_columns=("router_ids", "foo"),
    notes=("sessions 0 and 1 overlap in steps 100-120; session 1 is used",),
    renamed_columns=("old_log_probs -> old_logprob", "completion_mask -> response_mask"),
    reconciled=(
        Reconciled("actor/ppo_kl", "policy.kl_old_k1", 0, 612, 613, 0),
        Reconciled("actor/pg_loss", "policy.loss_pg", 0, 612, 613, 613),
        Reconciled("training/rollout_probs_diff_max", None, 100, 612, 500, 7),
    ),
    not_recomputed=(
        ("actor/entropy", "needs old_entropy"), ("actor/kl_loss", "no step has rows of all 4 ranks"),
        ("critic/vf_loss", "needs value"), ("rollout_corr/kl", "it depends on the version of verl (unknown)"),
    ),
    not_recomputable=12, undefined=1,
)  # fmt: skip
RESULTS = (
    Result("RLD001", "non-finite", "found", findings=(INFINITE,), seconds=0.5),
    Result("RLD003", "duplicate-rows", "passed", measures=False),
    Result("RLD101", "stale-old-logprob", "crashed", reason="ValueError", detail="operands could not be broadcast"),
    Result("RLD102", "rollout-train-mismatch", "found", findings=(MISMATCH,), seconds=0.25),
    Result("RLD201", "ratio-saturation", "skipped", missing=("config.clip_low",), reason="config"),
    Result("RLD205", "kl-flatline", "skipped", missing=("ref_logprob",), reason="column"),
    Result("RLD207", "wrong-reference", "skipped", missing=("ref_logprob",), reason="column"),
    Result("RLD301", "entropy-collapse", "skipped", reason="length", detail="12 steps are measured, and 24 are needed"),
    Result("RLD401", "zero-variance-groups", "found", findings=(GROUPS,)),
    Result("RLD601", "grad-vanished", "passed"),
)

FULL = Report(RUN, RESULTS, "0.1.0", 1, "2030-01-02T03:04:05+00:00")
EXPLAINED = replace(
    FULL,
    results=(
        replace(RESULTS[3], findings=STALE.findings),
        Result("RLD201", "ratio-saturation", "found", findings=(SATURATED,)),
        Result("RLD401", "zero-variance-groups", "found", findings=(GROUPS,)),
    ),
    diagnosis=(STALE,),
)
CLEAN = replace(
    FULL,
    run=RunSummary("healthy.parquet", None, None, None, 1, 1, 8, 64),
    results=(Result("RLD601", "grad-vanished", "passed"), Result("RLD602", "grad-norm-spike", "passed")),
)
BLANK = replace(
    CLEAN,
    run=RunSummary("blank.parquet", None, None, None, None, None, 0, 0),
    results=(RESULTS[1], *RESULTS[4:8]),
)
UNREADABLE = Report(
    RunSummary("torn.parquet", None, None, None, None, None, 0, 0), (), "0.1.0", 1, FULL.created_at,
    failure=Failure("torn.parquet: truncated: the footer is missing; copy the file again", 2),
)  # fmt: skip
