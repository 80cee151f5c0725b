"""Small logs in the form of every importer, and ways in which files go wrong."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STEPS: Final = 40
VERL: Final = (
    "actor/pg_loss", "actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac", "actor/grad_norm", "actor/lr", "critic/score/mean",
    "critic/rewards/mean", "critic/advantages/max", "response_length/mean", "response_length/clip_ratio",
)  # fmt: skip
TRL: Final = (
    "loss", "grad_norm", "learning_rate", "reward", "reward_std", "frac_reward_zero_std", "kl", "entropy",
    "completions/mean_length", "completions/clipped_ratio", "rewards/accuracy/mean",
)  # fmt: skip


def rows(names: tuple[str, ...], seed: int = 0) -> list[dict[str, float]]:
    """A run that goes about its business, one row per step."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(0.1, 1.0, len(names))
    made = []
    for step in range(1, STEPS + 1):
        values = level * (1 + 0.002 * step) + 0.02 * rng.standard_normal(len(names))
        made.append({"step": float(step), **dict(zip(names, values.round(6).tolist(), strict=True))})
    return made


def _verl() -> list[dict[str, float]]:
    return [{**row, "step": int(row["step"])} for row in rows(VERL)]


def _values(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "step"}


def _table(records: Sequence[Mapping[str, object]], delimiter: str = ",", *, quoted: bool = False) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), delimiter=delimiter, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def _lines(records: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _trl_state() -> bytes:
    history = [{"epoch": row["step"] / STEPS, **row} for row in rows(TRL)]
    return json.dumps({"global_step": STEPS, "is_world_process_zero": True, "log_history": history}, indent=2).encode()


def _trl_console() -> bytes:
    bars = [f"{step}/{STEPS} [00:01<00:10, 1.0it/s]" for step in range(1, STEPS + 1)]
    dictionaries = [str({**_values(row), "epoch": round(row["step"] / STEPS, 3)}) for row in rows(TRL)]
    return "".join(f"\r {bar}\n{row}\n" for bar, row in zip(bars, dictionaries, strict=True)).encode()


def _chart() -> bytes:
    return _table(
        [
            {
                "Step": row["step"],
                "run - actor/ppo_kl": row["actor/ppo_kl"],
                "run - actor/ppo_kl__MIN": row["actor/ppo_kl"] - 1,
                "run - actor/ppo_kl__MAX": row["actor/ppo_kl"] + 1,
            }
            for row in rows(VERL)
        ],
        quoted=True,
    )


def _runs_table() -> bytes:
    return b'"Name","State","Runtime","_step","loss"\n"a","finished","100","500","0.1"\n"b","crashed","7","9","0.2"\n'


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(_verl()), sink)
    return sink.getvalue()


def varint(value: int) -> bytes:
    """An integer as protobuf writes it."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def field(number: int, body: bytes) -> bytes:
    """A field of protobuf that holds bytes."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def _wandb() -> bytes:
    data = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for row in rows(TRL):
        named = {f"train/{name}": value for name, value in _values(row).items()}
        named |= {"train/global_step": row["step"], "_step": row["step"] - 1}
        items = b"".join(
            field(1, field(2, name.encode()) + field(16, json.dumps(value).encode())) for name, value in named.items()
        )
        record = field(2, items)
        data += struct.pack("<IHB", zlib.crc32(b"\x01" + record), len(record), 1) + record
    return data


def _masked_crc(data: bytes) -> int:
    """CRC-32C as TFRecords mask it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _tensorboard() -> bytes:
    events = [struct.pack("<Bd", 0x09, 1.7e9) + field(3, b"brain.Event:2")]
    for row in rows(TRL):
        for name in ("loss", "reward", "kl"):
            value = field(1, f"train/{name}".encode()) + struct.pack("<Bf", 2 << 3 | 5, row[name])
            event = struct.pack("<Bd", 0x09, 1.7e9) + b"\x10" + varint(int(row["step"])) + field(5, field(1, value))
            events.append(event)
    parts = []
    for event in events:
        length = struct.pack("<Q", len(event))
        parts += [length, struct.pack("<I", _masked_crc(length)), event, struct.pack("<I", _masked_crc(event))]
    return b"".join(parts)


def _trackio() -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        database.executemany(
            "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('', 'run', ?, ?)",
            [(int(row["step"]), json.dumps(_values(row))) for row in rows(TRL)],
        )
        database.commit()
        return database.serialize()


SEEDS: Final[Mapping[str, Callable[[], bytes]]] = {
    "csv": lambda: _table([{name.replace("/", "_"): value for name, value in row.items()} for row in _verl()]),
    "csv, decimal commas": lambda: _table(_verl(), ";").replace(b".", b","),
    "csv, long": lambda: _table(
        [{"step": row["step"], "name": name, "value": value} for row in _verl() for name, value in _values(row).items()]
    ),
    "wandb-chart": _chart,
    "wandb-runs": _runs_table,
    "tensorboard-curve": lambda: _table(
        [{"Wall time": 1.7e9 + row["step"], "Step": row["step"], "Value": row["reward"]} for row in rows(TRL)]
    ),
    "json": lambda: json.dumps(rows(TRL), indent=1).encode(),
    "json, columns": lambda: json.dumps({name: [row[name] for row in rows(TRL)] for name in ("step", *TRL)}).encode(),
    "json-lines": lambda: _lines([dict(row) for row in rows(TRL)]),
    "json-lines, nested": lambda: _lines([{"step": row["step"], "train": _values(row)} for row in rows(TRL)]),
    "trainer-state": _trl_state,
    "trl-console": _trl_console,
    "verl-console": lambda: "".join(
        f"(TaskRunner pid=7) step:{row['step']} - " + " - ".join(f"{name}:{value}" for name, value in _values(row).items()) + "\n"
        for row in _verl()
    ).encode(),
    "verl-file": lambda: _lines([{"step": row["step"], "data": _values(row)} for row in _verl()]),
    "parquet-history": _parquet,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "minimind-console": lambda: "".join(
        f"Epoch:[1/1]({step}/{STEPS}), Reward: {row['reward']:.4f}, KL_ref: {row['kl']:.4f}, Loss: {row['loss']:.4f}, LR: 1e-6\n"
        for step, row in enumerate(rows(TRL), 1)
    ).encode(),
    "slime-console": lambda: "".join(
        f"step {step}: {{'train/loss': {row['loss']}, 'train/grad_norm': {row['grad_norm']}}}\n"
        f"rollout {step}: {{'rollout/raw_reward': {row['reward']}}}\n"
        for step, row in enumerate(rows(TRL))
    ).encode(),
    "areal-console": lambda: "".join(
        f"Train step {step}/{STEPS} done.\n│ ppo_actor/loss/avg │ {row['loss']:.4e} │ ppo_actor/kl/avg │ {row['kl']:.4e} │\n"
        for step, row in enumerate(rows(TRL), 1)
    ).encode(),
    "roll-console": lambda: "".join(
        f'metrics_tag: {{"step": {row["step"]}, "metrics": {json.dumps(_values(row))}}}\n' for row in _verl()
    ).encode(),
    "nemo-rl-console": lambda: "".join(
        f"{'=' * 25} Step {step}/{STEPS} {'=' * 25}\n📊 Training Results:\n  • Loss: {row['loss']:.4f}\n"
        f"  • Avg Reward: {row['reward']:.4f}\n  • Mean Generation Length: {100 * row['kl']:.4f}\n\n"
        for step, row in enumerate(rows(TRL), 1)
    ).encode(),
    "openrlhf-console": lambda: "".join(
        f"Global step {step}: {{'policy_loss': {row['loss']}, 'reward': {row['reward']}, 'kl': {row['kl']}}}\n"
        for step, row in enumerate(rows(TRL), 1)
    ).encode(),
    "prime-rl-console": lambda: "".join(
        f"12:00:00 SUCCESS Step {step} | 12.3s | Loss {row['loss']:.4f} | Entropy {row['entropy']:.4f} | Grad. Norm 0.1\n"
        for step, row in enumerate(rows(TRL), 1)
    ).encode(),
    "llama-factory-log": lambda: _lines(
        [
            {"current_steps": row["step"], "total_steps": STEPS, "loss": row["loss"], "lr": 1e-6, "percentage": 1.0, "epoch": 0.1}
            for row in rows(TRL)
        ]
    ),
    "swift-log": lambda: _lines([{**_values(row), "global_step/max_steps": f"{row['step']:.0f}/{STEPS}"} for row in rows(TRL)]),
    "dict-log": lambda: "".join(f"12:00 INFO train: {_values(row) | {'step': int(row['step'])}}\n" for row in rows(TRL)).encode(),
    "text-log": lambda: "".join(
        f"INFO step {step}/{STEPS} | loss={row['loss']:.4f} | reward: {row['reward']:.4f} | kl: {row['kl']:.4f}\n"
        for step, row in enumerate(rows(TRL), 1)
    ).encode(),
}
"""Importer (and variant) -> a log in its form."""

WITHOUT_FILE: Final = frozenset({"folder-of-logs", "wandb-online"})
"""Importers of what is no single file."""


def _flip(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 5, 50))):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


def _cut(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return rng.choice((data[:end], data[start:], data[:start] + data[end:])) or data[:1]


def _double(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return data[:end] + data[start:end] * rng.choice((1, 2, 5)) + data[end:]


def _shuffle(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_ODD: Final = (
    b"1e308", b"-1e308", b"1e400", b"NaN", b"nan", b"-Infinity", b"inf", b"null", b"None", b'"text"', b"", b"9" * 5000,
    b"0", b"-1", b"1e18", b"10000000", b"0.5", b"-0.0", b"[1, 2]", b"{}", b"np.float64(nan)", b"1,5", b"1_000",
    b"9007199254740993", b"1e-320", b"9223372036854775808", b"true",
)  # fmt: skip


def _numbers(data: bytes, rng: random.Random) -> bytes:
    share, odd = rng.choice((0.01, 0.1, 1.0)), rng.sample(_ODD, 3)
    return _NUMBER.sub(lambda found: rng.choice(odd) if rng.random() < share else found[0], data)


def _one_number(data: bytes, rng: random.Random) -> bytes:
    """One number wherever it stands: a metric that never moves, or a step that never does."""
    seen = _NUMBER.findall(data)
    old, new = (rng.choice(seen), rng.choice(_ODD)) if seen else (b"0", b"1")
    return data.replace(old, new)


def _names(data: bytes, rng: random.Random) -> bytes:
    found = sorted(set(re.findall(rb"[A-Za-z_/]{3,}", data)))
    new = rng.choice((b"", b"step", b"loss", b" ", b"\xff", b"x" * 3000, b"_step", b"reward", b"value", b"name"))
    return data.replace(rng.choice(found), new) if found else data


def _nest(data: bytes, rng: random.Random) -> bytes:
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{'a': ", b"}"), (b'"', b'"'), (b"(", b")")))
    depth, at = rng.choice((3, 200, 900, 100_000)), rng.choice((0, rng.randrange(len(data))))
    found = _NUMBER.search(data, at)
    inner = found[0] if found else b"1"
    nested = opening * depth + inner + closing * rng.choice((depth, 0))
    return data[:at] + data[at:].replace(inner, nested, 1)


def _long_line(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return (
        data[:at]
        + rng.choice((b"x", b"1", b" ", b",", b"=" * 10, b"| ", b"a=1 ", b"{'", b'"')) * rng.choice((10_000, 300_000))
        + data[at:]
    )


def _one_line(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"", b" ", b"\r", b"\0")))


def _encode(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", errors="replace")
    return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-8-sig", "utf-32", "utf-7", "cp037")), errors="replace")


def _ends(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\n\r")))


def _zeros(data: bytes, rng: random.Random) -> bytes:
    at = rng.choice((0, rng.randrange(len(data)), len(data)))
    return data[:at] + b"\0" * rng.choice((1, 512, 70_000)) + data[at:]


def _steps(data: bytes, rng: random.Random) -> bytes:
    """Every number that can be a step, moved or scaled."""
    times, more = rng.choice(
        ((-1, 0), (1, 10**7), (10**7, 0), (10**15, 1), (0, 7), (1, 2**53), (10**18, 0), (0.5, 0.25), (10**4, 0))
    )
    return re.sub(rb"(?<![\d.e-])\d{1,2}(?![\d.e])", lambda found: str(int(found[0]) * times + more).encode(), data)


def _splice(data: bytes, rng: random.Random) -> bytes:
    other = _healthy(rng.choice(list(SEEDS)))
    at, to = rng.randrange(len(data)), rng.randrange(len(other))
    return data[:at] + other[to:]


MUTATIONS: Final = (
    _flip, _cut, _double, _shuffle, _numbers, _numbers, _one_number, _names, _nest, _long_line, _one_line, _encode, _ends, _zeros,
    _steps, _steps, _splice,
)  # fmt: skip


@cache
def _healthy(name: str) -> bytes:
    return SEEDS[name]()


def mutated(seed: int) -> tuple[str, bytes]:
    """A log gone wrong: what was done to what, and the bytes. The same seed gives the same bytes."""
    rng = random.Random(seed)
    name = list(SEEDS)[seed % len(SEEDS)]
    data, done = _healthy(name), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        mutation = rng.choice(MUTATIONS)
        data = mutation(data, rng) or b"\n"
        done.append(mutation.__name__.strip("_"))
    return f"{name}: {' + '.join(done)}", data
