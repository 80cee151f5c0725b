"""A recording of which one part was cut short, as by a full disk."""

from pathlib import Path

from rl_doctor import Recorder

for attempt in range(2):
    with Recorder("example") as recorder:
        recorder.log_batch(step=attempt, reward=[0.0, 1.0])
part = max(Path("example").glob("sequences-*.parquet"))
part.write_bytes(part.read_bytes()[:-20])
