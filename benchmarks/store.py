"""Encodings of the token table and the forms of a run, side by side: bytes per token, write and read speed.

Log-probabilities are those of tokens sampled from a softmax over random logits, once with all float32 bits and once rounded
to bfloat16, as trainers that compute in it hand them over. Ratios hold better than figures.

    python benchmarks/store.py [million tokens]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rl_doctor.schema import RunInfo
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.run import open_run
from rl_doctor.store.writer import RunWriter

FLOATS = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "advantage", "entropy")
VOCABULARY = 64
MEAN_LENGTH = 700
REPEATS = 3


def tokens(n: int, *, bf16: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Flat token columns ``[n]`` of one step."""
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(np.log(MEAN_LENGTH), 0.6, n // MEAN_LENGTH).astype(np.int64) + 1
    n = int(lengths.sum())
    sampled, entropy = np.empty(n), np.empty(n)
    for start in range(0, n, 1 << 16):
        logits = generator.normal(0, 3.5, (min(1 << 16, n - start), VOCABULARY))
        logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        chosen = np.argmax(logp + generator.gumbel(size=logp.shape), axis=1)
        sampled[start : start + len(logp)] = logp[np.arange(len(logp)), chosen]
        entropy[start : start + len(logp)] = -(np.exp(logp) * logp).sum(axis=1)
    noise = {"logprob": 0.02, "old_logprob": 0.0, "rollout_logprob": 0.01, "ref_logprob": 0.1}
    columns = {
        name: _single(sampled + scale * generator.normal(size=n) * np.abs(sampled), bf16=bf16) for name, scale in noise.items()
    }
    columns["entropy"] = _single(entropy, bf16=bf16)
    columns["advantage"] = np.repeat(generator.normal(size=len(lengths)), lengths).astype(np.float32)
    columns["response_mask"] = generator.random(n) < 0.97
    columns["token_id"] = (generator.zipf(1.3, n) % 150_000).astype(np.int32)
    columns["sequence"] = np.repeat(np.arange(len(lengths)), lengths)
    columns["step"] = np.full(n, 17)
    return columns


def _single(values: np.ndarray[Any, Any], *, bf16: bool) -> np.ndarray[Any, Any]:
    single = values.astype(np.float32)
    return (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if bf16 else single


def cpu(function: Callable[[], Any]) -> float:
    """Median CPU seconds of a call."""
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return float(np.median(taken))


KEYS = ["step", "sequence"]
SPLIT = dict.fromkeys(FLOATS, "BYTE_STREAM_SPLIT")
DELTA = dict.fromkeys(("token_id", *KEYS), "DELTA_BINARY_PACKED")
ENCODINGS: dict[str, dict[str, Any]] = {
    "plain, none": {"compression": "none", "use_dictionary": KEYS},
    "plain, lz4": {"compression": "lz4", "use_dictionary": KEYS},
    "dictionary, snappy (default)": {},
    "split, none": {"compression": "none", "use_dictionary": KEYS, "column_encoding": SPLIT},
    "split, lz4": {"compression": "lz4", "use_dictionary": KEYS, "column_encoding": SPLIT},
    "split, zstd": {"compression": "zstd", "use_dictionary": KEYS, "column_encoding": SPLIT},
    "split, delta ids and keys, lz4": {"compression": "lz4", "use_dictionary": False, "column_encoding": SPLIT | DELTA},
    "split floats and ids, lz4": {
        "compression": "lz4",
        "use_dictionary": KEYS,
        "column_encoding": SPLIT | {"token_id": "BYTE_STREAM_SPLIT"},
    },
}


def encodings(columns: dict[str, np.ndarray[Any, Any]], folder: Path) -> None:
    """Print one line per encoding of the flat token table, with the share of each kind of column."""
    n = len(columns["step"])
    fields = pa.schema([pa.field(name, pa.from_numpy_dtype(values.dtype), nullable=False) for name, values in columns.items()])
    table = pa.Table.from_arrays([pa.array(values) for values in columns.values()], schema=fields)
    for name, settings in ENCODINGS.items():
        file = folder / "tokens.parquet"
        write = cpu(lambda: pq.write_table(table, file, row_group_size=1 << 20, **settings))  # noqa: B023
        read = cpu(lambda: pq.read_table(file, columns=list(FLOATS), use_threads=False))  # noqa: B023
        everything = cpu(lambda: pq.read_table(file, use_threads=False))  # noqa: B023
        metadata = pq.read_metadata(file)
        size = dict.fromkeys(("floats", "ids", "keys"), 0)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                path = chunk.path_in_schema
                size["floats" if path in FLOATS else "ids" if path == "token_id" else "keys"] += chunk.total_compressed_size
        per_token = ", ".join(f"{kind} {value / n:5.2f}" for kind, value in size.items())
        print(
            f"  {name:34} {file.stat().st_size / n:6.2f} B/token ({per_token})  write {n / write / 1e6:6.1f}  "
            f"read floats {n / read / 1e6:6.1f}  all {n / everything / 1e6:6.1f} Mtok/s"
        )


def forms(columns: dict[str, np.ndarray[Any, Any]], folder: Path) -> None:
    """Print size and speed of a run folder and of the run file packed from it, through the public reader."""
    lengths = np.bincount(columns["sequence"])
    flat = {name: values for name, values in columns.items() if name not in KEYS}
    rows = Rows({**flat, "step": np.full(len(lengths), 17)}, splits_of(lengths))
    n = rows.n_tokens
    made = iter(range(1000))
    write = cpu(lambda: RunWriter(folder / f"run{next(made)}", RunInfo()).write_part(rows, completes=[17]))
    run = open_run(folder / "run0")
    packing = cpu(lambda: pack(run, folder / "run.parquet"))
    for name, path, seconds in (("run folder", folder / "run0", write), ("run file", folder / "run.parquet", packing)):
        opened = open_run(path)
        size = sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
        read = cpu(lambda: [batch.n_tokens for batch in opened.batches(FLOATS)])  # noqa: B023
        print(f"  {name:34} {size / n:6.2f} B/token  write {n / seconds / 1e6:6.1f}  read floats {n / read / 1e6:6.1f} Mtok/s")


def main() -> None:
    n = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 1_000_000
    print(f"{os.cpu_count()} cores, numpy {np.__version__}, pyarrow {pa.__version__}; CPU seconds, medians of {REPEATS}")
    for bf16 in (False, True):
        columns = tokens(n, bf16=bf16)
        print(f"{'bfloat16-valued' if bf16 else 'full float32'} log-probabilities, {len(columns['step'])} tokens")
        with tempfile.TemporaryDirectory() as folder:
            encodings(columns, Path(folder))
            forms(columns, Path(folder))


if __name__ == "__main__":
    main()
