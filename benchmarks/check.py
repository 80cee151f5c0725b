"""How fast a run is judged: tokens per CPU second and peak memory, beside what others need for the same metrics.

Writes a run folder with the package's own writer, then runs every contender in a process of its own, several times in turn, and
takes medians of the CPU seconds (user and system, start-up included) and of the peak resident memory. The competitors compute
the core metrics of ``CORE`` from the same files and must agree with ours, else the benchmark stops. The decode floor reads
the same columns with pyarrow on one thread and does nothing with them.

    python benchmarks/check.py [million tokens] [--repeats N] [--only 'NAME;...'] [--lengths M,M,...] [--keep FOLDER]
"""

from __future__ import annotations

import json
import math
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve()
ROW_COLUMNS: Final = ("step", "reward", "response_length", "group")
TOKEN_COLUMNS: Final = (
    "step", "logprob", "old_logprob", "ref_logprob", "rollout_logprob", "advantage", "entropy", "response_mask",
)  # fmt: skip
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
CORE: Final = (
    "policy.ratio_mean", "policy.ratio_min", "policy.ratio_max", "policy.ratio_p01", "policy.ratio_p50", "policy.ratio_p99",
    "policy.clip_frac_low", "policy.clip_frac_high", "policy.kl_old_k1", "policy.kl_old_k2", "policy.kl_old_k3",
    "policy.loss_pg_token_mean", "policy.entropy", "ref.kl_k1", "ref.kl_k2", "ref.kl_k3", "adv.mean", "adv.std", "adv.min",
    "adv.max", "mismatch.abs", "mismatch.k3", "mismatch.exp_mean", "reward.mean", "reward.std", "reward.min", "reward.max",
    "length.mean", "length.min", "length.max", "group.zero_std_frac",
)  # fmt: skip
QUANTILES: Final = {"policy.ratio_p01": 0.01, "policy.ratio_p50": 0.5, "policy.ratio_p99": 0.99}
QUANTILE_ERROR: Final = 0.01
"""Of the log-ratio: our histogram promises .004, and by others' definitions of a quantile it may lie a rank further. Others take
exact quantiles; DuckDB's approximate one is slower and 4% off."""
SEQUENCES: Final = 1024
GROUP: Final = 8
MEAN_LENGTH: Final = 650


# The run


def write_run(folder: Path, tokens: int) -> int:
    """Write a run of about ``tokens`` tokens; returns how many it really has."""
    import numpy as np

    from rl_doctor.schema import RunConfig, RunInfo
    from rl_doctor.store.rows import Rows, splits_of
    from rl_doctor.store.writer import RunWriter

    config = RunConfig(
        clip_low=CLIP_LOW, clip_high=CLIP_HIGH, kl_coef=0.001, kl_estimator="k3", entropy_coef=0.0, loss_agg="token-mean",
        adv_estimator="grpo", adv_norm="group", adv_ddof=1, adv_eps=1e-6, epochs=1, minibatches=4, max_response_length=4096,
        group_size=GROUP, temperature=1.0,
    )  # fmt: skip
    info = RunInfo(trainer="custom", algorithm="grpo", eos_token_ids=(2,), pad_token_id=0, vocab_size=150_000, config=config)
    writer = RunWriter(folder, info)
    generator = np.random.default_rng(0)
    written = step = 0
    while written < tokens:
        step += 1
        wanted = min(SEQUENCES, max(GROUP, -(-(tokens - written) // MEAN_LENGTH) // GROUP * GROUP))
        lengths = np.clip(generator.lognormal(np.log(MEAN_LENGTH * 0.82), 0.65, wanted), 8, 4096).astype(np.int64)
        columns = _sequences(generator, step, lengths) | _tokens(generator, lengths)
        group = columns.pop("group_index")
        columns["advantage"] = np.repeat(_advantages(columns["reward"], group), lengths).astype(np.float32)
        writer.write_part(Rows(columns, splits_of(lengths)), completes=[step])
        written += int(lengths.sum())
    writer.close()
    return written


def _sequences(generator: Any, step: int, lengths: Any) -> dict[str, Any]:
    import numpy as np

    n = len(lengths)
    group = np.arange(n) // GROUP
    solved = np.repeat(np.clip(generator.normal(0.45, 0.35, group[-1] + 1), 0, 1), GROUP)
    long = lengths >= 4096
    return {
        "step": np.full(n, step), "rollout_step": np.full(n, step), "epoch": np.zeros(n, np.int32),
        "minibatch": (np.arange(n) * 4 // n).astype(np.int32), "group_index": group,
        "uid": np.array([f"{step}-{row}" for row in range(n)], object),
        "group": np.array([f"{step}-{row}" for row in group], object),
        "reward": (generator.random(n) < solved).astype(np.float64), "response_length": lengths.astype(np.int32),
        "prompt_length": generator.integers(50, 400, n).astype(np.int32),
        "finish_reason": np.where(long, "length", "stop").astype(object),
    }  # fmt: skip


def _tokens(generator: Any, lengths: Any) -> dict[str, Any]:
    """Log-probabilities with all bits of a float32: most tokens nearly certain, some not; noise in proportion to them."""
    import numpy as np

    n = int(lengths.sum())
    sure = generator.random(n) < 0.6
    size = np.where(sure, np.exp(generator.normal(-6, 2, n)), generator.exponential(1.1, n))
    minibatch = np.repeat(np.arange(len(lengths)) * 4 // len(lengths), lengths)
    noise = {"rollout_logprob": 0.01, "old_logprob": 0.0, "logprob": 0.002 + 0.03 * minibatch, "ref_logprob": 0.15}
    columns = {name: (-size * np.exp(scale * generator.normal(size=n))).astype(np.float32) for name, scale in noise.items()}
    columns["entropy"] = (size * np.exp(0.3 * generator.normal(size=n))).astype(np.float32)
    columns["token_id"] = (generator.zipf(1.3, n) % 149_000 + 10).astype(np.int32)
    columns["token_id"][np.cumsum(lengths) - 1] = 2
    # In one sequence of eight a tool wrote a stretch in the middle, which is not trained on.
    starts = np.cumsum(lengths) - lengths
    position = np.arange(n) - np.repeat(starts, lengths)
    first, last = (np.repeat((lengths * share).astype(np.int64), lengths) for share in (0.4, 0.7))
    tool = np.repeat(np.arange(len(lengths)) % 8 == 3, lengths) & (position >= first) & (position < last)
    columns["response_mask"] = ~tool
    for name in ("logprob", "old_logprob", "ref_logprob"):
        columns[name][tool] *= 3.0
    columns["rollout_logprob"][tool] = np.nan
    return columns


def _advantages(reward: Any, group: Any) -> Any:
    import numpy as np

    grouped = reward.reshape(-1, GROUP)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    return (centred / (grouped.std(axis=1, ddof=1, keepdims=True) + 1e-6)).reshape(-1)[: len(group)].astype(np.float32)


# The contenders: each returns {metric: values by step, in order}


def core(path: Path, *, numba: bool) -> dict[str, list[float]]:
    """The core metrics through the public analyzer."""
    from rl_doctor.analyzer.engine import analyze
    from rl_doctor.store.run import open_run

    _choose(numba=numba)
    found = analyze(open_run(path), CORE).series
    return {name: found[name].values.tolist() for name in CORE}


def full_check(path: Path, *, numba: bool) -> dict[str, list[float]]:
    """A check with every rule."""
    from rl_doctor import check, open_run

    _choose(numba=numba)
    check(open_run(path))
    return {}


def _choose(*, numba: bool) -> None:
    """Take the compiled passes or those of numpy, whatever the length of the run."""
    from rl_doctor.analyzer import kernels

    kernels.WORTH_COMPILING = 0 if numba else sys.maxsize


def floor(path: Path) -> dict[str, list[float]]:
    """Decode the columns of the core metrics, row group by row group."""
    import pyarrow.parquet as pq

    if path.is_file():
        names = [*dict.fromkeys([*TOKEN_COLUMNS, *ROW_COLUMNS])]
        _drain(pq.ParquetFile(path), names)
        return {}
    for table, names in (("tokens", TOKEN_COLUMNS[1:]), ("sequences", ROW_COLUMNS)):
        for file in sorted(path.glob(f"{table}-*.parquet")):
            _drain(pq.ParquetFile(file), names)
    return {}


def _drain(file: Any, names: Any) -> None:
    for group in range(file.num_row_groups):
        file.read_row_group(group, columns=list(names), use_threads=False)


def with_pandas(path: Path) -> dict[str, list[float]]:
    import numpy as np
    import pandas as pd

    def read(table: str, columns: tuple[str, ...]) -> Any:
        files = sorted(path.glob(f"{table}-*.parquet"))
        return pd.concat([pd.read_parquet(file, columns=list(columns)) for file in files], ignore_index=True)

    tokens = read("tokens", TOKEN_COLUMNS)
    tokens = tokens[tokens["response_mask"]]
    new, old = tokens["logprob"].astype("float64"), tokens["old_logprob"].astype("float64")
    advantage = tokens["advantage"].astype("float64")
    x, ref, d = new - old, tokens["ref_logprob"].astype("float64") - new, old - tokens["rollout_logprob"].astype("float64")
    ratio, ref_ratio, d_ratio = np.exp(x), np.exp(ref), np.exp(d)
    clipped = ratio.clip(1 - CLIP_LOW, 1 + CLIP_HIGH)
    terms = pd.DataFrame({
        "step": tokens["step"], "ratio": ratio, "low": (ratio < 1 - CLIP_LOW) & (advantage < 0),
        "high": (ratio > 1 + CLIP_HIGH) & (advantage > 0), "k1": -x, "k2": x * x / 2, "k3": ratio - 1 - x,
        "loss": np.maximum(-advantage * ratio, -advantage * clipped), "entropy": tokens["entropy"].astype("float64"),
        "r1": -ref, "r2": ref * ref / 2, "r3": ref_ratio - 1 - ref, "advantage": advantage,
        "abs": d.abs(), "m3": d_ratio - 1 - d, "m": d_ratio,
    })  # fmt: skip
    by_step = terms.groupby("step")
    means = by_step.mean()
    ends = by_step[["ratio", "advantage"]].agg(["min", "max"])
    quantiles = by_step["ratio"].quantile([0.01, 0.5, 0.99]).unstack()  # noqa: PD010
    rows = read("sequences", ROW_COLUMNS)
    reward = rows.groupby("step")["reward"].agg(["mean", "std", "min", "max"])
    length = rows.groupby("step")["response_length"].agg(["mean", "min", "max"])
    zero = (rows.groupby(["step", "group"])["reward"].std() == 0).groupby("step").mean()
    found = [
        means["ratio"], ends["ratio"]["min"], ends["ratio"]["max"], quantiles[0.01], quantiles[0.5], quantiles[0.99],
        means["low"], means["high"], means["k1"], means["k2"], means["k3"], means["loss"], means["entropy"], means["r1"],
        means["r2"], means["r3"], means["advantage"], by_step["advantage"].std(), ends["advantage"]["min"],
        ends["advantage"]["max"], means["abs"], means["m3"], means["m"], reward["mean"], reward["std"], reward["min"],
        reward["max"], length["mean"], length["min"], length["max"], zero,
    ]  # fmt: skip
    return {name: values.tolist() for name, values in zip(CORE, found, strict=True)}


SQL: Final = f"""
with terms as (
    select step, advantage::double as advantage, entropy::double as entropy, x, exp(x) as ratio, r, exp(r) as ref_ratio,
        d, exp(d) as d_ratio
    from (
        select step, advantage, entropy, logprob::double - old_logprob::double as x,
            ref_logprob::double - logprob::double as r, old_logprob::double - rollout_logprob::double as d
        from read_parquet($tokens) where response_mask
    )
)
select step, avg(ratio), min(ratio), max(ratio), quantile_disc(ratio, 0.01), quantile_disc(ratio, 0.5),
    quantile_disc(ratio, 0.99), avg((ratio < {1 - CLIP_LOW} and advantage < 0)::int),
    avg((ratio > {1 + CLIP_HIGH} and advantage > 0)::int), avg(-x), avg(x * x / 2), avg(ratio - 1 - x),
    avg(greatest(-advantage * ratio, -advantage * least(greatest(ratio, {1 - CLIP_LOW}), {1 + CLIP_HIGH}))), avg(entropy),
    avg(-r), avg(r * r / 2), avg(ref_ratio - 1 - r), avg(advantage), stddev_samp(advantage), min(advantage), max(advantage),
    avg(abs(d)), avg(d_ratio - 1 - d), avg(d_ratio)
from terms group by step order by step
"""  # noqa: S608 - constants
ROWS_SQL: Final = """
with groups as (
    select step, "group", stddev_samp(reward) as deviation from read_parquet($sequences) group by step, "group"
), zero as (select step, avg((deviation = 0)::int) as share from groups group by step)
select step, avg(reward), stddev_samp(reward), min(reward), max(reward), avg(response_length), min(response_length),
    max(response_length), any_value(zero.share)
from read_parquet($sequences) join zero using (step) group by step order by step
"""


def with_duckdb(path: Path) -> dict[str, list[float]]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    tokens = connection.execute(SQL, {"tokens": str(path / "tokens-*.parquet")}).fetchall()
    rows = connection.execute(ROWS_SQL, {"sequences": str(path / "sequences-*.parquet")}).fetchall()
    columns = [list(column) for table in (tokens, rows) for column in list(zip(*table, strict=True))[1:]]
    return {name: [float(value) for value in values] for name, values in zip(CORE, columns, strict=True)}


def with_polars(path: Path) -> dict[str, list[float]]:
    import polars as pl

    number = pl.Float64
    low, high = 1 - CLIP_LOW, 1 + CLIP_HIGH
    advantage, ratio, x, r, d = (pl.col(name) for name in ("advantage", "ratio", "x", "r", "d"))
    tokens = (
        pl.scan_parquet(path / "tokens-*.parquet")
        .filter(pl.col("response_mask"))
        .select(
            "step", advantage.cast(number), pl.col("entropy").cast(number),
            x=pl.col("logprob").cast(number) - pl.col("old_logprob").cast(number),
            r=pl.col("ref_logprob").cast(number) - pl.col("logprob").cast(number),
            d=pl.col("old_logprob").cast(number) - pl.col("rollout_logprob").cast(number),
        )
        .with_columns(ratio=x.exp(), ref_ratio=r.exp(), d_ratio=d.exp())
        .group_by("step")
        .agg(
            mean=ratio.mean(), min=ratio.min(), max=ratio.max(), p01=ratio.quantile(0.01), p50=ratio.quantile(0.5),
            p99=ratio.quantile(0.99), low=((ratio < low) & (advantage < 0)).mean(),
            high=((ratio > high) & (advantage > 0)).mean(), k1=(-x).mean(), k2=(x * x / 2).mean(), k3=(ratio - 1 - x).mean(),
            loss=pl.max_horizontal(-advantage * ratio, -advantage * ratio.clip(low, high)).mean(),
            entropy=pl.col("entropy").mean(), r1=(-r).mean(), r2=(r * r / 2).mean(), r3=(pl.col("ref_ratio") - 1 - r).mean(),
            advantage=advantage.mean(), advantage_std=advantage.std(), advantage_min=advantage.min(),
            advantage_max=advantage.max(), abs=d.abs().mean(), m3=(pl.col("d_ratio") - 1 - d).mean(), m=pl.col("d_ratio").mean(),
        )
        .sort("step")
    )  # fmt: skip
    reward, length = pl.col("reward"), pl.col("response_length")
    read = pl.scan_parquet(path / "sequences-*.parquet")
    zero = read.group_by("step", "group").agg(zero=reward.std() == 0).group_by("step").agg(pl.col("zero").mean())
    rows = read.group_by("step").agg(
        mean=reward.mean(), std=reward.std(), min=reward.min(), max=reward.max(), length=length.mean(),
        length_min=length.min(), length_max=length.max(),
    ).join(zero, on="step").sort("step")  # fmt: skip
    found = [frame.collect(engine="streaming") for frame in (tokens, rows)]
    columns = [column.to_list() for frame in found for column in frame.drop("step").get_columns()]
    return {name: [float(value) for value in values] for name, values in zip(CORE, columns, strict=True)}


CONTENDERS: Final = {
    "core": partial(core, numba=False),
    "core, numba": partial(core, numba=True),
    "check": partial(full_check, numba=False),
    "check, numba": partial(full_check, numba=True),
    "floor": floor,
    "pandas": with_pandas,
    "duckdb": with_duckdb,
    "polars": with_polars,
}
OURS: Final = ("core", "core, numba", "check", "check, numba")
ONE_THREAD: Final = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS"), "1")


# Measuring


CONTENDER: Final = "--contender"


def measure(name: str, path: Path) -> tuple[float, float, dict[str, list[float]]]:
    """CPU seconds, peak megabytes and what it found, of one contender in a process of its own."""
    import subprocess
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".json") as told:
        command = [sys.executable, str(HERE), CONTENDER, name, str(path), told.name]
        child = subprocess.Popen(command, env=os.environ | ONE_THREAD)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{name}: exit {child.returncode}")
        found, megabytes = json.loads(Path(told.name).read_text())
        return usage.ru_utime + usage.ru_stime, megabytes, found


def contend(name: str, path: str, told: str) -> None:
    """Run one contender; what only the measuring needs is not imported here, as its start would count for each of them."""
    sys.path.insert(0, str(HERE.parents[1]))
    found = CONTENDERS[name](Path(path))
    Path(told).write_text(json.dumps([found, _peak()]))


def _peak() -> float:
    """Peak memory of this process in MB; what is told of a child includes what its parent had when it started it."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def disagreements(mine: dict[str, list[float]], theirs: dict[str, list[float]]) -> list[str]:
    """Metrics that differ by more than 1e-6, quantiles by more than our histogram promises."""
    wrong = []
    for metric in CORE:
        for step, (a, b) in enumerate(zip(mine[metric], theirs[metric], strict=True)):
            if metric in QUANTILES:
                a, b = math.log(a), math.log(b)  # noqa: PLW2901
                near = abs(a - b) <= QUANTILE_ERROR * abs(b) + 1e-6
            else:
                near = math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
            if not near:
                wrong.append(f"{metric} of step {step + 1}: {a!r} and {b!r}")
    return wrong


def compare(path: Path, tokens: int, names: list[str], repeats: int) -> dict[str, tuple[float, float]]:
    """Run the contenders in turn and print one line each."""
    import statistics

    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for name in names:
            seconds, megabytes, found[name] = measure(name, path)
            taken[name].append((seconds, megabytes))
    for name in names:
        if "core" in names and found[name] and (wrong := disagreements(found["core"], found[name])):
            raise SystemExit(f"{name} computes something else: {'; '.join(wrong[:5])}")
    medians = {name: (statistics.median(s for s, _ in runs), max(m for _, m in runs)) for name, runs in taken.items()}
    head = f"  {'':20} {'CPU s':>8} {'Mtok/s':>8} {'peak MB':>8}"
    columns = [name for name in names if name not in OURS]
    print(head + "".join(f"{'x ' + name:>{len(name) + 4}}" for name in columns))
    for name, (seconds, megabytes) in medians.items():
        ratios = "".join(f"{medians[other][0] / seconds:{len(other) + 4}.2f}" for other in columns)
        print(f"  {name:20} {seconds:8.2f} {tokens / seconds / 1e6:8.2f} {megabytes:8.0f}{ratios}")
    return medians


def prepared(keep: Path, million: float) -> tuple[Path, int]:
    """A run folder of so many million tokens, and how many it really has; written unless it is there."""
    path, count = keep / f"run-{million:g}", keep / f"run-{million:g}.txt"
    if not count.exists():
        count.write_text(str(write_run(path, int(million * 1e6))))
    return path, int(count.read_text())


def packed(path: Path) -> Path:
    """The run file of a run folder; written unless it is there."""
    from rl_doctor.store.pack import pack
    from rl_doctor.store.run import open_run

    file = path.with_name(f"{path.name}.parquet")
    if not file.exists():
        pack(open_run(path), file)
    return file


def main() -> None:
    import argparse
    import tempfile

    parser = argparse.ArgumentParser()
    parser.add_argument("million", nargs="?", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=";".join(CONTENDERS), help="contenders, separated by semicolons")
    parser.add_argument(
        "--lengths", default="", help="million tokens of further runs on which only we and the floor are measured"
    )
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in, and to take them from if they are there")
    chosen = parser.parse_args()
    import numpy as np
    import pyarrow as pa

    print(
        f"{os.cpu_count()} cores, numpy {np.__version__}, pyarrow {pa.__version__}; medians of {chosen.repeats}, one thread each"
    )
    names = [name for name in CONTENDERS if name in chosen.only.split(";") and ("numba" not in name or find_spec("numba"))]
    ours = [name for name in names if name in (*OURS, "floor")]
    with tempfile.TemporaryDirectory() as temporary:
        keep = chosen.keep or Path(temporary)
        path, tokens = prepared(keep, chosen.million)
        if "core, numba" in names or "check, numba" in names:
            _warm_up(path)
        print(f"run folder of {tokens} tokens")
        compare(path, tokens, names, chosen.repeats)
        print("packed into a run file")
        compare(packed(path), tokens, ours, chosen.repeats)
        for text in chosen.lengths.split(",") if chosen.lengths else ():
            path, tokens = prepared(keep, float(text))
            print(f"run folder of {tokens} tokens")
            compare(path, tokens, ours, chosen.repeats)


def _warm_up(path: Path) -> None:
    """Let numba compile what is not compiled yet, and say what that takes."""
    seconds, megabytes, _ = measure("check, numba", path)
    print(f"first check with numba (it compiles what it has not compiled before): {seconds:.1f} s, {megabytes:.0f} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == [CONTENDER]:
        contend(*sys.argv[2:])
    else:
        main()
