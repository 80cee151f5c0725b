"""A run file in which each of two ranks clips by the gradient norm of its own shard."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

rng = np.random.default_rng(0)
step, rank = np.repeat(np.arange(1, 21), 32), np.tile(np.repeat([0, 1], 16), 20)
shard = rng.lognormal(-1, 0.3, (21, 2))
columns = {"step": step, "rank": rank, "reward": rng.random(640), "grad_norm": shard[step, rank]}
pq.write_table(pa.table(columns), "example.parquet")
