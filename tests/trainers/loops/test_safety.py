"""A recorder inside a PyTorch loop, in whatever mode: what is recorded is right, nothing is kept alive, nothing changes."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import random
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]

ROWS, WIDTH, VOCABULARY = 4, 6, 11
Loss = Callable[..., Any]


class Policy(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, 8)
        self.inner = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, ids: Any) -> Any:
        logits = self.head(torch.tanh(self.inner(self.embed(ids)))).float()
        return torch.log_softmax(logits, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


class Probe:
    """Something that weak references can be made to."""


def ids_of(step: int) -> Any:
    return torch.randint(0, VOCABULARY, (ROWS, WIDTH), generator=torch.Generator().manual_seed(step))


class Loop:
    """A policy-gradient loop whose loss logs what it computed; ``logged`` keeps what the recorder should have."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self.policy = Policy()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-2)
        self.logged: dict[int, Any] = {}

    def loss(self, policy: Any, step: int) -> Any:
        ids = ids_of(step)
        advantage = torch.linspace(-1, 1, ROWS).unsqueeze(-1).expand(ROWS, WIDTH)
        logprob = policy(ids)
        self.log(step, ids, logprob, advantage)
        return -(torch.exp(logprob - logprob.detach()) * advantage).mean()

    def log(self, step: int, ids: Any, logprob: Any, advantage: Any) -> None:
        if self.recorder is not None:
            self.recorder.log_batch(
                step=step, microbatch=0, token_id=ids, logprob=logprob, advantage=advantage,
                response_mask=torch.ones_like(ids).bool(), response_length=[WIDTH] * ROWS,
                uid=[f"{step}-{row}" for row in range(ROWS)],
            )  # fmt: skip

    def step(self, step: int, policy: Any = None, loss: Loss | None = None) -> None:
        value = (loss or self.loss)(self.policy if policy is None else policy, step)
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.recorder is not None:
            self.recorder.log_metrics(step, {"loss": value})
            self.recorder.end_step(step)

    def weights(self) -> str:
        state = hashlib.sha256()
        for tensor in self.policy.state_dict().values():
            state.update(tensor.numpy().tobytes())
        return state.hexdigest()


def states() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), kind, np.asarray(keys).tobytes(), rest


def logprobs(folder: Path) -> dict[int, Any]:
    """Recorded log-probabilities by step, ``[ROWS, WIDTH]``, each row there once."""
    found: dict[int, Any] = {}
    for batch in open_run(folder).batches(["logprob", "uid"]):
        assert batch.columns["uid"].tolist() == [f"{batch.step}-{row}" for row in range(ROWS)]
        found[batch.step] = batch.columns["logprob"].reshape(ROWS, WIDTH)
    return found


def plain(steps: range, change: Callable[[Loop], dict[str, Any]] = lambda _: {}) -> tuple[dict[int, Any], str]:
    """Log-probabilities and final weights of the same training without a recorder."""
    loop = Loop(None)
    seen: dict[int, Any] = {}
    loop.log = lambda step, _ids, logprob, _advantage: seen.__setitem__(step, logprob.detach().clone())  # type: ignore[method-assign]
    options = change(loop)
    for step in steps:
        loop.step(step, **options)
    return {step: value.float().numpy() for step, value in seen.items()}, loop.weights()


def recorded(folder: Path, steps: range, change: Callable[[Loop], dict[str, Any]] = lambda _: {}) -> str:
    with Recorder(folder) as recorder:
        loop = Loop(recorder)
        options = change(loop)
        for step in steps:
            loop.step(step, **options)
    assert recorder.guard.reason is None
    return loop.weights()


def same(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for step, values in expected.items():
        np.testing.assert_array_equal(found[step], values)


def checkpointed(use_reentrant: bool) -> Callable[[Loop], dict[str, Any]]:
    from torch.utils.checkpoint import checkpoint

    def change(loop: Loop) -> dict[str, Any]:
        anchor = torch.zeros(1, requires_grad=True)  # the reentrant kind needs an input that does

        def loss(policy: Any, step: int) -> Any:
            return checkpoint(lambda zero: loop.loss(policy, step) + zero.sum(), anchor, use_reentrant=use_reentrant)

        return {"loss": loss}

    return change


def in_bfloat16(loop: Loop) -> dict[str, Any]:
    def loss(policy: Any, step: int) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loop.loss(policy, step)

    return {"loss": loss}


def compiled_policy(backend: str) -> Callable[[Loop], dict[str, Any]]:
    return lambda loop: {"policy": torch.compile(loop.policy, backend=backend)}


@pytest.mark.parametrize(
    "change",
    [lambda _: {}, checkpointed(True), checkpointed(False), in_bfloat16, compiled_policy("eager"), compiled_policy("aot_eager")],
    ids=["plain", "checkpoint reentrant", "checkpoint", "bfloat16", "compiled", "compiled ahead of time"],
)
def test_records_each_row_once_and_changes_nothing(tmp_path: Path, change: Callable[[Loop], dict[str, Any]]) -> None:
    expected, weights = plain(range(1, 7), change)
    assert recorded(tmp_path / "run", range(1, 7), change) == weights
    same(logprobs(tmp_path / "run"), expected)
    assert open_run(tmp_path / "run").facts.repeated_rows == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inside_of_what_is_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str) -> None:
    """What is compiled records nothing; that is said once, and the training is the same with as without."""
    caplog.set_level(logging.WARNING)
    ends = []
    for folder in (None, tmp_path / "run"):
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            loop = Loop(None if folder is None else Recorder(folder))
            compiled = torch.compile(loop.loss, backend=backend)
            for step in range(1, 5):
                loop.step(step, loss=compiled)
        ends.append(loop.weights())
    assert loop.recorder is not None
    loop.recorder.close()
    assert loop.recorder.guard.reason is None
    assert ends[0] == ends[1]
    run = open_run(tmp_path / "run")
    assert run.metrics().series("loss")[0].tolist() == [1, 2, 3, 4]
    said = [record.getMessage() for record in caplog.records if record.name == "rl_doctor"]
    if "logprob" in run.columns:
        assert sorted(logprobs(tmp_path / "run")) == [1, 2, 3, 4]
    else:
        assert len(said) == 1
        assert "compile" in said[0]


def test_inference_tensors(tmp_path: Path) -> None:
    policy, expected = Policy(), {}
    with Recorder(tmp_path / "run") as recorder:
        loop = Loop(recorder)
        for step in (1, 2):
            with torch.inference_mode():
                logprob = policy(ids_of(step))
                expected[step] = logprob.numpy().copy()
                loop.log(step, ids_of(step), logprob, torch.zeros(ROWS, WIDTH))
                logprob.zero_()
    assert recorder.guard.reason is None
    same(logprobs(tmp_path / "run"), expected)


def test_what_was_logged_may_be_overwritten_at_once(tmp_path: Path) -> None:
    expected = {}
    with Recorder(tmp_path / "run") as recorder:
        loop = Loop(recorder)
        buffer = torch.empty(ROWS, WIDTH)
        for step in range(1, 20):
            buffer.copy_(torch.full((ROWS, WIDTH), -float(step)))
            expected[step] = buffer.numpy().copy()
            loop.log(step, ids_of(step), buffer, buffer)
            buffer.fill_(-1e9)
    same(logprobs(tmp_path / "run"), expected)


def test_nothing_is_kept_alive(tmp_path: Path) -> None:
    """Neither tensors nor their graphs, by whichever thread; and the number of tensors does not grow over 500 steps."""
    gone: list[bool] = []
    with Recorder(tmp_path / "run") as recorder:
        loop = Loop(recorder)
        counts = []
        for step in range(1, 501):
            logprob = loop.policy(ids_of(step))
            probe = Probe()
            logprob.grad_fn.metadata["probe"] = probe  # lives as long as the graph does
            node, tensor = weakref.ref(probe), weakref.ref(logprob)
            loop.log(step, ids_of(step), logprob, torch.zeros(ROWS, WIDTH))
            recorder.log_metrics(step, {"loss": logprob.mean()})
            recorder.end_step(step)
            del logprob, probe
            gone.append(tensor() is None and node() is None)
            if step % 100 == 0:
                assert recorder.flush()
                gc.collect()
                counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
        assert all(gone)
        # What other tests left behind may still go in the first hundred steps.
        assert len(set(counts[1:])) == 1, counts
        assert counts[0] >= counts[1], counts
    assert len(logprobs(tmp_path / "run")) == 500


def test_no_call_touches_a_random_state(tmp_path: Path) -> None:
    before = states()
    recorder = Recorder(tmp_path / "run", sampling=0.5)
    calls: list[Callable[[], object]] = [
        lambda: Loop.log(loop, 1, ids_of(1), torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)),
        lambda: recorder.log_metrics(1, {"loss": torch.tensor(0.5), "reward": 1.0}),
        lambda: recorder.end_step(1),
        lambda: recorder.retry_step(1),
        recorder.flush,
        lambda: recorder.session,
        recorder.close,
        lambda: recorder.log_batch(step=2),
    ]
    torch.set_rng_state(torch.from_numpy(np.frombuffer(before[0], np.uint8).copy()))
    loop = Loop.__new__(Loop)
    loop.recorder = recorder
    assert states() == before
    for number, call in enumerate(calls):
        call()
        assert states() == before, number


def test_a_step_that_fails_and_is_tried_again(tmp_path: Path) -> None:
    """Out of memory in the middle of step 3, caught by the loop, which repeats the step: its rows are there once."""
    expected, weights = plain(range(1, 6))
    with Recorder(tmp_path / "run") as recorder:
        loop = Loop(recorder)
        for step in range(1, 6):
            for attempt in range(2):
                try:
                    value = loop.loss(loop.policy, step)
                    if step == 3 and attempt == 0:
                        raise torch.OutOfMemoryError("CUDA out of memory")  # noqa: TRY301
                except torch.OutOfMemoryError:
                    recorder.retry_step(step)
                    continue
                value.backward()
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                break
            recorder.end_step(step)
    assert loop.weights() == weights
    same(logprobs(tmp_path / "run"), expected)
    assert not [finding for finding in check(open_run(tmp_path / "run")).findings if finding.code == "RLD003"]


def test_steps_that_a_scaler_skips(tmp_path: Path) -> None:
    """A step whose gradients are not finite changes no weight; its rows and its norm are recorded as any other's."""
    with Recorder(tmp_path / "run") as recorder:
        loop = Loop(recorder)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for step in range(1, 6):
            before = loop.weights()
            scaler.scale(loop.loss(loop.policy, step) * (float("inf") if step == 3 else 1.0)).backward()
            scaler.unscale_(loop.optimizer)
            norm = torch.nn.utils.clip_grad_norm_(loop.policy.parameters(), 1.0)
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.zero_grad()
            recorder.log_metrics(step, {"grad_norm": norm})
            recorder.end_step(step)
            assert (loop.weights() == before) == (step == 3)
    assert sorted(logprobs(tmp_path / "run")) == [1, 2, 3, 4, 5]
    norms = open_run(tmp_path / "run").metrics().series("grad_norm")[1]
    assert np.isfinite(norms).tolist() == [True, True, False, True, True]


WORKERS = """
import sys
import torch
from rl_doctor import Recorder
from tests.trainers.loops.test_safety import Loop, ROWS, WIDTH, ids_of

class Prompts(torch.utils.data.Dataset):
    def __init__(self, recorder): self.recorder = recorder
    def __len__(self): return 8
    def __getitem__(self, index):
        self.recorder.log_batch(step=99, reward=[1.0])
        assert not self.recorder.flush()
        return index

if __name__ == "__main__":
    recorder = Recorder(sys.argv[1])
    loop = Loop(recorder)
    for step in (1, 2)[: 2 if sys.argv[2] == "fork" else 1]:
        data = torch.utils.data.DataLoader(Prompts(recorder), num_workers=1, multiprocessing_context=sys.argv[2], timeout=100)
        assert sum(int(item) for item in data) == 28
        loop.step(step)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run"), method], capture_output=True, text=True, timeout=200,
        check=False, cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(logprobs(tmp_path / "run")) == ([1, 2] if method == "fork" else [1])
    assert open_run(tmp_path / "run").info.status == "complete"
