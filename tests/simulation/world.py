"""A small, honest post-training run: every number in it is the true one of the policy versions concerned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.schema import REWARD_COMPONENT_PREFIX, ROLES, RunConfig, RunInfo
from tests.simulation.critic import Critic, generalised, whitened
from tests.simulation.logs import relogged
from tests.simulation.policy import Floats, Ints, Law, Weights, as_bfloat16, first_weights, law
from tests.simulation.run import SimulatedRun, is_token
from tests.simulation.sampling import Responses, sample
from tests.simulation.settings import BEGIN, END, PAD, VOCABULARY, Settings
from tests.simulation.training import Tokens, advantages, make_task, rewards, update

_DTYPES = {"token_id": np.int32, "turn": np.int32, "response_mask": np.bool_, "role": np.int8, "token_version": np.int64}
_LOST = 3
"""Generation batches that a killed run had trained on since its last checkpoint."""
_INT32 = (
    "epoch", "minibatch", "microbatch", "rank", "prompt_length", "response_length", "stored_length", "prompt_loss_tokens",
    "turns",
)  # fmt: skip


def simulate(settings: Settings) -> SimulatedRun:
    """Train for ``settings.steps`` generation batches and record all of it."""
    return _Trainer(settings).run()


class _Trainer:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rng = np.random.default_rng(settings.seed)
        self.weights = self.reference = first_weights(settings, self.rng)
        self.critic = Critic.first(settings) if settings.estimator == "gae" else None
        self.task = make_task(settings, self.rng)
        self.engine: deque[Floats] = deque(maxlen=max(settings.lag, 1 if settings.partial else 0) + 1)
        self.past: deque[Weights] = deque(maxlen=settings.old_lag + 1)
        self.parts: list[dict[str, NDArray[Any]]] = []
        self.lengths: list[Ints] = []
        self.updates = 0

    def run(self) -> SimulatedRun:
        s, again = self.settings, 0
        if s.resumed_at is not None:
            again = max(s.resumed_at - _LOST, 1)
            self._train_through(range(again))
            checkpoint, recorded = (self.weights, self.critic, self.updates), len(self.parts)
            self._train_through(range(again, s.resumed_at))
            self.weights, self.critic, self.updates = checkpoint
            del self.parts[recorded:], self.lengths[recorded:]
            self.engine.clear()
            self.past.clear()
        self._train_through(range(again, s.steps))
        arrays = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        lengths = np.concatenate(self.lengths)
        arrays["sequence"] = np.arange(len(lengths))
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sessions = {int(step): int(step >= self._logged_step(again)) for step in np.unique(arrays["step"])} if again else {}
        return relogged(SimulatedRun(describe(s), arrays, splits, recorded_in=sessions))

    def _train_through(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._generation(step)
            if 2 * step >= self.settings.steps:
                self.weights = self.weights.distorted(self.settings.sharpening, self.settings.lengthening)

    def _generation(self, step: int) -> None:
        s, rng = self.settings, self.rng
        noise = s.engine_noise * rng.standard_normal(self.weights.base.shape)
        served = self.reference if s.frozen_engine else self.weights
        self.engine.appendleft(served.table() + noise)
        self.past.appendleft(self.weights)
        kind, source = self._prompts(step)
        kind = np.repeat(kind, s.group_size)
        lag = np.minimum(rng.integers(0, s.lag + 1, len(kind)), len(self.engine) - 1)
        responses = sample(s, list(self.engine), self.weights.ending, kind, lag, rng)
        parts = rewards(s, self.task, kind, responses)
        score = np.sum(list(parts.values()), axis=0)
        if s.dynamic:
            kept = _differing(score.reshape(-1, s.group_size), s.prompts)
            kind, score, responses = kind[kept], score[kept], responses.take(kept)
            source = None if source is None else source[kept[:: s.group_size] // s.group_size]
            parts = {name: values[kept] for name, values in parts.items()}
        group = np.repeat(np.arange(s.prompts), s.group_size)
        n = len(kind)
        length = responses.stored.sum(1)
        rows: dict[str, NDArray[Any]] = {
            "rollout_step": np.full(n, self._logged_step(step)),
            "uid": np.array([f"{step}.{i}" for i in range(n)], object),
            "group": np.array([f"{step}.{i}" for i in group], object),
            "prompt_length": 4 + kind % 5,
            "response_length": length,
            "stored_length": length,
            "prompt_loss_tokens": np.zeros(n),
            "finish_reason": responses.finish,
            "reward": score.copy(),
            "score": score,
            "weight_version": step - np.where(responses.stored, responses.version_lag, 0).max(1),
            "policy_version": np.full(n, step),
        }
        if s.tools:
            rows["turns"] = responses.turn.max(1) + 1
        if source is not None:
            rows["data_source"] = np.repeat(source, s.group_size)
        rows |= {REWARD_COMPONENT_PREFIX + name: values for name, values in parts.items()}
        if s.estimator == "gae":
            self._train(step, rows, responses, _flat(responses, kind, np.zeros(n)))
        else:
            self._train(step, rows, responses, _flat(responses, kind, advantages(s.estimator, score, group)))

    def _logged_step(self, step: int) -> int:
        return step * self.settings.epochs * self.settings.minibatches if self.settings.count_updates else step

    def _prompts(self, step: int) -> tuple[Ints, NDArray[Any] | None]:
        """Prompts of a generation batch and their data sources."""
        s = self.settings
        n = s.prompts * (2 if s.dynamic else 1)
        if not s.sources:
            return self.rng.integers(0, s.prompt_kinds, n), None
        share = s.prompt_kinds // len(s.sources)
        chosen = self.rng.integers(0, len(s.sources), n)
        if s.staged:
            chosen = np.minimum(chosen, step * len(s.sources) // s.steps)
        kind = chosen * share + self.rng.integers(0, share, n)
        return kind, np.array([source.name for source in s.sources], object)[chosen]

    def _pass(self, weights: Weights, tokens: Tokens) -> Law:
        """A forward pass of the trainer, with its numeric noise."""
        s = self.settings
        found = law(weights.logits(tokens.kind, tokens.previous, tokens.position), tokens.token, s.trained_at)
        logprob = found.logprob
        if s.trainer_noise:
            rows = tokens.sequence.max(initial=0) + 1
            noisy = (self.rng.random(rows) < 0.2)[tokens.sequence]
            logprob = np.minimum(logprob + noisy * s.trainer_noise * self.rng.standard_normal(len(logprob)), 0.0)
        if s.bfloat16:
            logprob = as_bfloat16(logprob).astype(np.float64)
        return Law(logprob.astype(np.float32).astype(np.float64), found.entropy, found.probabilities)

    def _train(self, step: int, rows: dict[str, NDArray[Any]], responses: Responses, tokens: Tokens) -> None:
        s = self.settings
        n = len(rows["uid"])
        old = self._pass(self.past[-1], tokens)
        reference = self._pass(self.reference, tokens).logprob
        reported = responses.logprob[responses.stored]
        of_critic: dict[str, Floats] = {}
        if self.critic is not None:
            tokens, of_critic = self._valued(self.critic, tokens, rows, old.logprob - reference)
        weight = np.ones(len(reported))
        if s.correction:
            weight = np.where(tokens.mask, np.minimum(np.exp(old.logprob - reported), 2.0), 1.0)
        per_token = {
            "token_id": tokens.token, "response_mask": tokens.mask, "old_logprob": old.logprob, "ref_logprob": reference,
            "rollout_logprob": reported, "advantage": np.where(tokens.mask, tokens.advantage, 0.0), "old_entropy": old.entropy,
            "token_version": step - responses.version_lag[responses.stored],
        }  # fmt: skip
        if s.tools:
            per_token["turn"] = responses.turn[responses.stored]
            per_token["role"] = np.where(tokens.mask, ROLES.index("assistant"), ROLES.index("tool"))
        if s.correction:
            per_token["is_weight"] = weight
        per_token |= of_critic
        splits = np.concatenate([[0], np.cumsum(responses.stored.sum(1))])
        for epoch in range(s.epochs):
            for minibatch, chosen in enumerate(np.array_split(self.rng.permutation(n), s.minibatches)):
                index = np.concatenate([np.arange(splits[i], splits[i + 1]) for i in chosen])
                lengths = np.diff(splits)[chosen]
                part = Tokens(
                    tokens.token[index], tokens.kind[index], tokens.previous[index], tokens.position[index],
                    np.repeat(np.arange(len(chosen)), lengths), tokens.mask[index], tokens.advantage[index], weight[index],
                )  # fmt: skip
                fresh = epoch == 0 and minibatch == 0 and not s.trainer_noise and not s.old_lag
                current = self._pass(self.weights, part)
                if fresh:
                    current = Law(old.logprob[index], current.entropy, current.probabilities)
                rate = s.rate(step, self.updates)
                self.weights, norm = update(s, self.weights, part, current, old.logprob[index], reference[index], rate)
                number = self.updates if s.count_updates else step
                extra = {"logprob": current.logprob, "entropy": current.entropy}
                if self.critic is not None:
                    extra["value"] = self.critic.values(part)
                    self.critic = self.critic.moved(s, part, of_critic["old_value"][index], of_critic["return"][index])
                place: dict[str, Any] = {"step": number, "epoch": epoch, "minibatch": minibatch}
                place |= _dealt(len(chosen), s.ranks, s.microbatches)
                place |= {"grad_norm": norm, "learning_rate": s.learning_rate * rate}
                self._record(place, rows, per_token, chosen, index, extra, lengths)
                self.updates += 1

    def _valued(
        self, critic: Critic, tokens: Tokens, rows: dict[str, NDArray[Any]], ahead: Floats
    ) -> tuple[Tokens, dict[str, Floats]]:
        """The tokens with the advantages of a critic, and what is recorded of it; ``ahead`` is the log-ratio to the reference."""
        s = self.settings
        paid = -s.kl_coef * ahead if s.kl_in_reward else np.zeros(len(tokens.token))
        paid[np.searchsorted(tokens.sequence, np.arange(len(rows["score"])), side="right") - 1] += rows["score"]
        value = critic.values(tokens)
        advantage, returns = generalised(s, paid, value, tokens.sequence)
        rows["reward"] = np.bincount(tokens.sequence, paid)
        of_critic = {"token_reward": paid, "old_value": value, "return": returns}
        return replace(tokens, advantage=whitened(advantage)), of_critic

    def _record(
        self, place: dict[str, Any], rows: dict[str, Any], per_token: dict[str, Any], chosen: Ints, index: Ints,
        extra: dict[str, Any], lengths: Ints,
    ) -> None:  # fmt: skip
        part = {name: values[chosen] for name, values in rows.items()}
        part |= {name: np.broadcast_to(value, len(chosen)) for name, value in place.items()}
        part |= {name: values[index] for name, values in per_token.items()} | extra
        self.parts.append({name: _typed(name, values) for name, values in part.items()})
        self.lengths.append(lengths)


def _differing(score: Floats, wanted: int) -> Ints:
    """Rows of the first ``wanted`` groups whose scores ``[groups, size]`` differ, filled up with others."""
    groups = np.argsort(np.ptp(score, axis=1) == 0.0, kind="stable")[:wanted]
    return (groups[:, None] * score.shape[1] + np.arange(score.shape[1])).ravel()


def _dealt(rows: int, ranks: int, microbatches: int) -> dict[str, Any]:
    """Micro-batch of each row of a mini-batch, and its rank where there are several."""
    place = np.arange(rows) * ranks * microbatches // max(rows, 1)
    dealt: dict[str, Any] = {"microbatch": place % microbatches}
    return dealt | ({"rank": place // microbatches} if ranks > 1 else {})


def _flat(responses: Responses, kind: Ints, advantage: Floats) -> Tokens:
    n, width = responses.token.shape
    stored = responses.stored
    previous = np.concatenate([np.full((n, 1), BEGIN), responses.token[:, :-1]], 1)[stored]
    row = np.repeat(np.arange(n), stored.sum(1))
    position = np.tile(np.arange(width), (n, 1))[stored]
    mask = responses.sampled[stored]
    token = responses.token[stored]
    return Tokens(token, kind[row], previous, position, row, mask, advantage[row], np.ones(len(row)))


def _typed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if name in _DTYPES:
        return values.astype(_DTYPES[name])
    if name in _INT32:
        return values.astype(np.int32)
    return values.astype(np.float32) if is_token(name) else values


def describe(settings: Settings) -> RunInfo:
    """What ``run.json`` would say."""
    s = settings
    gae = s.estimator == "gae"
    sessions = tuple({"session": number, "world_size": s.ranks} for number in range(0 if s.resumed_at is None else 2))
    config = RunConfig(
        clip_low=s.clip_low, clip_high=s.clip_high, kl_coef=s.kl_coef, kl_estimator="k1" if s.kl_in_reward else "k3",
        kl_in_reward=s.kl_in_reward, entropy_coef=0.0, loss_agg="token-mean", adv_estimator=s.estimator,
        adv_eps=1e-6 if s.estimator == "grpo" else None, adv_ddof=1 if s.estimator == "grpo" else None,
        gamma=s.gamma if gae else None, lam=s.lam if gae else None, value_clip=s.value_clip if gae else None,
        temperature=s.temperature, top_p=s.top_p, max_response_length=s.max_length, group_size=s.group_size, epochs=s.epochs,
        minibatches=s.minibatches, max_grad_norm=s.max_grad_norm, is_correction="tis" if s.correction else None,
    )  # fmt: skip
    return RunInfo(
        run_id=f"simulated-{s.seed}", trainer="verl", trainer_version="0.9.1", algorithm="ppo" if gae else s.algorithm,
        status="complete", world_size=s.ranks, writing_ranks=tuple(range(s.ranks)), pad_token_id=PAD, eos_token_ids=(END,),
        logprob_dtype="bfloat16" if s.bfloat16 else "float32", vocab_size=VOCABULARY, config=config, sessions=sessions,
    )  # fmt: skip
