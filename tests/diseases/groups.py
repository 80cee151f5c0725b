"""Groups that tell nothing, or that are not groups."""

from __future__ import annotations

import numpy as np

from rl_doctor.store.codes import codes
from tests.diseases.catalogue import injected
from tests.diseases.composition import by_uid, rollout_step
from tests.simulation.inject import by_group, onset, with_advantages, with_reward, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_NEEDS = ("reward", "group", "uid")
_IDENTITY = ("sequence", "uid", "group", "step", "rollout_step", "minibatch", "epoch", "prompt_length")
_DEAD = ("reward-flatline", "grad-zero", "grad-vanished", "reward-drift", "reward-variance-shift")


def _copied(run: SimulatedRun, source: np.ndarray) -> SimulatedRun:
    """Each row with the response and the reward of the row ``source[i]``, under its own identity."""
    copy = run.take(source)
    return with_values(copy, **{name: run.arrays[name] for name in _IDENTITY if name in run.arrays})


@injected("zero-variance-groups", "duplicate-samples", *_DEAD, needs=_NEEDS, anywhere=False, cause="sampling-greedy")
def samples_are_copies(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Sampling is greedy: all responses of a group are the same text."""
    group = codes(run.arrays["group"])
    _, first = np.unique(group, return_index=True)
    return with_advantages(_copied(run, first[group]))


@injected("zero-variance-groups", *_DEAD, needs=_NEEDS, anywhere=False, cause="reward-depends-on-prompt-only")
def reward_of_the_prompt(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The scorer looks at the prompt: rewards differ between groups and never within."""
    return with_reward(run, by_group(run, random.random(len(run.splits) - 1), lambda part: float(part[0])))


@injected("zero-variance-groups", *_DEAD, needs=_NEEDS, cause="prompts-too-easy")
def nearly_all_groups_succeed(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In nine of ten groups all samples succeed alike."""
    done = by_group(run, random.random(len(run.splits) - 1), lambda part: float(part[0])) < 0.9
    return with_reward(run, np.where(done, run.arrays["reward"].max(), run.arrays["reward"]))


@injected("mixed-groups", "broken-groups", "advantage-mismatch", needs=(*_NEEDS, "prompt_length"), anywhere=False,
          cause="groups-of-several-prompts")  # fmt: skip
def prompts_are_tiled(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Prompts come as p1 p2 p1 p2, and rows are taken in blocks of six."""
    place = np.array([int(name.partition(".")[2]) for name in run.arrays["uid"]])
    tiled = (place % 6) * 8 + place // 6
    step = rollout_step(run)
    return with_advantages(with_values(run, group=np.array([f"{a}.{b}" for a, b in zip(step, tiled // 6, strict=True)], object)))


@injected("broken-groups", "mixed-groups", "advantage-mismatch", needs=_NEEDS, anywhere=False, cause="groups-merged")
def two_prompts_share_an_id(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Ids are made of a number that counts to four, so that two prompts of a batch share each."""
    step = rollout_step(run)
    place = np.array([int(name.partition(".")[2]) for name in run.arrays["group"]])
    return with_advantages(with_values(run, group=np.array([f"{a}.{b % 4}" for a, b in zip(step, place, strict=True)], object)))


@injected("broken-groups", needs=_NEEDS, anywhere=False, cause="samples-lost")
def responses_get_lost(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A tenth of the responses never arrives; advantages are those of what is left."""
    return with_advantages(run.take(np.flatnonzero(random.random(len(run.splits) - 1) >= 0.1)))


@injected("broken-groups", "no-baseline", "advantage-mismatch", needs=_NEEDS, anywhere=False, cause="one-sample-per-prompt")
def one_sample_for_each_prompt(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """GRPO with a group of one: nothing to compare."""
    alone = with_values(run, group=run.arrays["uid"]).with_config(group_size=1)
    return with_values(alone, advantage=np.zeros(int(run.splits[-1])))


@injected("signal-from-failures", "reward-component-imbalance", "reward-hacking-suspected", "near-zero-variance-groups",
          "reward-drift", "sudden-collapse", needs=(*_NEEDS, "reward/success", "reward/format", "score"),
          cause="shaping-drives-the-update", anywhere=False)  # fmt: skip
def shaping_where_nobody_succeeds(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In four of five groups nobody succeeds, and a shaped score of .08 alone tells responses apart."""
    failed = by_group(run, random.random(len(run.splits) - 1), lambda part: float(part[0])) < 0.8
    success = np.where(failed, 0.0, by_uid(run, (random.random(len(failed)) < 0.5).astype(np.float64)))
    form = by_uid(run, 0.08 * random.random(len(failed)))
    return with_advantages(
        with_values(run, **{"reward/success": success, "reward/format": form, "reward": success + form, "score": success + form})
    )


_COLLAPSE = ("duplicate-samples", "entropy-collapse", "length-collapse", "reward-drift", "zero-variance-groups", "kl-spike",
             "reward-variance-shift", "reward-flatline", "sudden-collapse", "length-explosion",
             "entropy-explosion", "grad-norm-spike", "reward-component-imbalance", "rollout-trainer-mismatch")  # fmt: skip


def _growing(run: SimulatedRun, random: Random) -> np.ndarray:
    """Rows that give the answer that pays: none before the onset, nine of ten at the end."""
    steps = np.unique(rollout_step(run))
    at = int(np.searchsorted(steps, onset(run, 0.4)))
    share = np.clip((np.searchsorted(steps, rollout_step(run)) - at) / max(0.3 * len(steps), 1), 0.0, 0.9)
    return by_uid(run, random.random(len(share))) < share


@injected("same-answer-rewarded", *_COLLAPSE, needs=_NEEDS, anywhere=False, damage="length.mean", cause="one-answer-for-all")
def one_answer_fits_all_prompts(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A list of all classes earns full reward, and more and more responses are that list."""
    hacked = _growing(run, random)
    list_of_all = int(np.argmax(run.arrays["response_length"] * (run.arrays["finish_reason"] == "stop")))
    made = _copied(run, np.where(hacked, list_of_all, np.arange(len(hacked))))
    success, form = (np.where(hacked, run.arrays[name].max(), made.arrays[name]) for name in ("reward/success", "reward/format"))
    parts = {"reward/success": success, "reward/format": form}
    return with_advantages(with_values(made, **parts, reward=success + form, score=success + form))


@injected("same-answer-rewarded", *_COLLAPSE, needs=_NEEDS, anywhere=False, damage="length.mean",
          cause="empty-answers-pay")  # fmt: skip
def empty_answers_are_right(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A substring match is content with nothing, and more and more responses are empty."""
    hacked = _growing(run, random)
    empty = int(np.flatnonzero((run.arrays["response_length"] == 1) & (run.arrays["finish_reason"] == "stop"))[0])
    made = _copied(run, np.where(hacked, empty, np.arange(len(hacked))))
    success, form = (np.where(hacked, run.arrays[name].max(), made.arrays[name]) for name in ("reward/success", "reward/format"))
    parts = {"reward/success": success, "reward/format": form}
    return with_advantages(with_values(made, **parts, reward=success + form, score=success + form))
