"""Masks that are wrong in a part of the rows, or by a few tokens at the edges of what the policy wrote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.schema import ROLES
from tests.diseases.catalogue import graded, injected
from tests.diseases.masks import _row_advantage
from tests.simulation.inject import extended, with_row_advantages, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import PAD

Random = np.random.Generator
_ASSISTANT, _TOOL = ROLES.index("assistant"), ROLES.index("tool")
_COMPANY = ("missing-rollout-logprob", "rollout-trainer-mismatch")


def _masked(run: SimulatedRun, mask: np.ndarray) -> SimulatedRun:
    """The run with another mask; advantages are where the mask is."""
    return with_row_advantages(with_values(run, response_mask=mask), _row_advantage(run))


def _some(run: SimulatedRun, random: Random, share: float, onset: int) -> np.ndarray:
    """Bool per token: rows from ``onset`` on, each with a chance of ``share``."""
    rows = (random.random(len(run.splits) - 1) < share) & (run.arrays["step"] >= onset)
    return np.asarray(rows[run.rows], np.bool_)


def _neighbours(run: SimulatedRun, flags: np.ndarray, by: int) -> np.ndarray:
    """Flags of the token ``by`` places before, within the row."""
    same = np.roll(run.rows, by) == run.rows
    return np.asarray(np.roll(flags, by) & same, np.bool_)


@graded(
    "mask-covers-padding", *_COMPANY, sizes=(0.005, 0.02, 0.1, 0.5), least_size=0.02, unit="rows", cause="padding-in-some-rows"
)
def mask_covers_padding_in_some_rows(run: SimulatedRun, random: Random, size: float, onset: int) -> SimulatedRun:
    """Some rows hold up to six padding tokens that are trained, whether or not they ended by EOS; all have some that are not."""
    hit = (random.random(len(run.splits) - 1) < size) & (run.arrays["step"] >= onset)
    extra = random.integers(2, 7, len(run.splits) - 1)
    before, length = _row_advantage(run), np.diff(run.splits)
    longer = extended(run, extra, {"token_id": run.info.pad_token_id or PAD, "entropy": 3.0, "old_entropy": 3.0})
    added = np.arange(longer.splits[-1]) - longer.splits[:-1][longer.rows] >= length[longer.rows]
    names = [name for name in ("logprob", "old_logprob", "ref_logprob") if name in longer.arrays]
    filled = with_values(longer, **{name: np.where(added, -9.0, longer.arrays[name]) for name in names})
    return with_row_advantages(
        with_values(filled, response_mask=filled.arrays["response_mask"] | (added & hit[longer.rows])), before
    )


@injected(
    "mask-covers-padding",
    *_COMPANY,
    "mask-misses-eos",
    needs=("finish_reason", "token_id"),
    anywhere=False,
    cause="mask-runs-to-first-eos",
)
def mask_runs_to_first_eos(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Rows are padded by some tokens. In those that did not end by EOS the mask covers them."""
    ended = run.arrays["finish_reason"] == "stop"
    cut = np.flatnonzero(ended)[random.random(int(ended.sum())) < 0.2]
    last = run.splits[1:][cut] - 1
    token, finish, length = run.arrays["token_id"].copy(), run.arrays["finish_reason"].copy(), np.diff(run.splits)
    token[last], finish[cut] = 7, "length"
    before = _row_advantage(run)
    longer = extended(
        with_values(run, token_id=token, finish_reason=finish), random.integers(1, 6, len(length)), {"token_id": PAD}
    )
    added = np.arange(longer.splits[-1]) - longer.splits[:-1][longer.rows] >= length[longer.rows]
    names = [name for name in ("logprob", "old_logprob", "ref_logprob") if name in longer.arrays]
    longer = with_values(longer, **{name: np.where(added, -9.0, longer.arrays[name]) for name in names})
    open_end = ~np.isin(np.arange(len(length)), np.setdiff1d(np.flatnonzero(ended), cut))
    return with_row_advantages(
        with_values(longer, response_mask=longer.arrays["response_mask"] | (added & open_end[longer.rows])), before
    )


@injected("mask-misses-eos", "mask-edge-off", needs=("finish_reason", "token_id"), anywhere=False, cause="mask-one-short")
def mask_one_short(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Every row loses its last token, EOS or not; a fifth of them was cut."""
    ended = np.flatnonzero(run.arrays["finish_reason"] == "stop")
    cut = ended[random.random(len(ended)) < 0.2]
    token, finish, mask = run.arrays["token_id"].copy(), run.arrays["finish_reason"].copy(), run.arrays["response_mask"].copy()
    token[run.splits[1:][cut] - 1], finish[cut] = 7, "length"
    mask[run.splits[1:] - 1] = False
    return _masked(with_values(run, token_id=token, finish_reason=finish), mask)


@injected(
    "mask-edge-off",
    "observation-in-loss",
    "mask-misses-eos",
    "written-tokens-untrained",
    *_COMPANY,
    into="agentic",
    needs=("role",),
    cause="mask-shifted",
)
def mask_shifted_early(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every mask lies one token too early."""
    mask = run.arrays["response_mask"]
    return _masked(run, np.roll(mask, -1) & (np.roll(run.rows, -1) == run.rows))


@graded(
    "mask-edge-off",
    "observation-in-loss",
    *_COMPANY,
    sizes=(0.02, 0.1, 0.5, 1.0),
    least_size=0.1,
    unit="rows",
    into="agentic",
    needs=("role",),
    cause="template-glue-trained",
)
def template_glue_trained(run: SimulatedRun, random: Random, size: float, onset: int) -> SimulatedRun:
    """The last token before each later turn, always the same one, is trained."""
    mask, role = run.arrays["response_mask"], run.arrays["role"]
    follows = np.roll(role == _ASSISTANT, -1) & (np.roll(run.rows, -1) == run.rows)
    header = (role == _TOOL) & follows
    token = np.where(header, 30, run.arrays["token_id"])
    return _masked(with_values(run, token_id=token), mask | (header & _some(run, random, size, onset)))


@injected("mask-edge-off", "written-tokens-untrained", "empty-mask", "logged-metric-mismatch", cause="mask-begins-late")
def mask_begins_late(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The first token of every response is left out; a response of one token has none left."""
    first = np.arange(run.splits[-1]) == run.splits[:-1][run.rows]
    return _masked(run, run.arrays["response_mask"] & ~first)


@injected("mask-misses-eos", "mask-edge-off", "written-tokens-untrained", "logged-metric-mismatch", "advantage-mismatch",
          needs=("token_id",), cause="mask-ends-early", anywhere=False)  # fmt: skip
def mask_ends_early(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Half of the rows are trained up to a length that is not theirs, two to five tokens too short."""
    lengths = np.diff(run.splits)
    missing = np.minimum(random.integers(2, 6, len(lengths)), lengths - 2) * (random.random(len(lengths)) < 0.5)
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    return _masked(run, run.arrays["response_mask"] & (place < (lengths - missing)[run.rows]))


@injected(
    "mask-edge-off", "written-tokens-untrained", "logged-metric-mismatch", into="agentic", needs=("role",), cause="turn-edges-cut"
)
def turn_ends_untrained(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The last token of each turn that is followed by an observation (the call) is left out."""
    mask, role = run.arrays["response_mask"], run.arrays["role"]
    ends = (role == _ASSISTANT) & np.roll(role == _TOOL, -1) & (np.roll(run.rows, -1) == run.rows)
    return _masked(run, mask & ~ends)


@graded(
    "written-tokens-untrained",
    sizes=(0.005, 0.02, 0.1),
    least_size=0.02,
    unit="tokens",
    into="agentic",
    needs=("role", "rollout_logprob"),
    cause="tokens-dropped-by-id",
)
def tokens_dropped_from_mask(run: SimulatedRun, random: Random, size: float, onset: int) -> SimulatedRun:
    """Some of the policy's tokens, in the midst of others that are trained, are left out."""
    mask = run.arrays["response_mask"]
    inside = mask & _neighbours(run, mask, 1) & _neighbours(run, mask, -1)
    dropped = inside & (random.random(len(mask)) < size) & (run.token_step >= onset)
    dropped &= ~_neighbours(run, dropped, 1)
    return _masked(run, mask & ~dropped)


@injected(
    "observation-in-loss",
    "mask-edge-off",
    "empty-mask",
    "mask-misses-eos",
    "written-tokens-untrained",
    *_COMPANY,
    into="agentic",
    needs=("role", "turn"),
    cause="turns-mispaired",
)
def turns_mispaired(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From the second turn on the mask covers what the tool wrote instead of what the policy wrote."""
    later = run.arrays["turn"] > 0
    return _masked(run, np.where(later, run.arrays["role"] == _TOOL, run.arrays["response_mask"]))


@injected(
    "observation-in-loss",
    *_COMPANY,
    "mask-edge-off",
    into="agentic",
    needs=("role",),
    least="info",
    cause="observations-trained-on-purpose",
)
def observations_trained_on_purpose(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """All observations are trained, and the configuration says so."""
    made = _masked(run, np.ones(run.splits[-1], np.bool_))
    config = replace(made.info.config, native={"agent": {"mask_observations": False}})
    return replace(made, info=replace(made.info, config=config))


@injected("prompt-in-loss", "mask-misses-eos", anywhere=False, needs=("finish_reason", "token_id"), cause="mask-starts-in-prompt")
def mask_starts_in_prompt(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The mask is shifted by one: it covers the last prompt token and misses the last of the response."""
    mask = run.arrays["response_mask"].copy()
    mask[run.splits[1:] - 1] = False
    return _masked(with_values(run, prompt_loss_tokens=np.ones(len(run.splits) - 1)), mask)


@injected(
    "advantage-outside-mask",
    "advantage-mismatch",
    "advantage-varies-in-response",
    "logged-metric-mismatch",
    into="agentic",
    needs=("role",),
    log=False,
    cause="advantage-displaced",
)
def advantage_displaced(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """In each row with untrained tokens the advantages stand where the mask is 0, and at none of the others."""
    mixed = np.zeros(len(run.splits) - 1, np.bool_)
    mixed[run.rows[~run.arrays["response_mask"]]] = True
    row = _row_advantage(run)
    outside = np.where(run.arrays["response_mask"], 0.0, row[run.rows])
    return with_values(run, advantage=np.where(mixed[run.rows], outside, run.arrays["advantage"]))


@injected("outcome-off-last-token", anywhere=False, cause="last-index-ignores-left-padding")
def reward_off_by_left_padding(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The outcome's reward stands where the sum of the mask says, which is too early by the padding to the left."""
    length = np.diff(run.splits)
    padding = np.where(random.random(len(length)) < 0.5, 0, random.integers(1, 4, len(length)))
    padding = np.minimum(padding, length - 1)
    token_reward = np.zeros(run.splits[-1])
    token_reward[run.splits[1:] - 1 - padding] = np.where(run.arrays["reward"] == 0.0, -0.5, run.arrays["reward"])
    arrays = run.arrays | {"token_reward": token_reward.astype(np.float32), "left_padding": padding.astype(np.int32)}
    return replace(run, arrays=arrays)


@injected("observations-in-returns", "kl-penalty-outside-mask", into="agentic", anywhere=False, cause="observations-rewarded")
def observations_in_returns(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Every observed token has a penalty of its own, which returns sum."""
    noise = np.abs(random.normal(0.2, 0.1, run.splits[-1]))
    token_reward = np.where(run.arrays["response_mask"], 0.0, -noise)
    token_reward[run.splits[1:] - 1] += run.arrays["reward"]
    return replace(run, arrays=run.arrays | {"token_reward": token_reward.astype(np.float32)})


@injected("mask-misses-eos", "mask-edge-off", needs=("finish_reason", "token_id"), anywhere=False, cause="eos-left-out")
def mask_without_special_tokens(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The end token is not trained, though padding has another id; a fifth of the responses was cut, and keeps its last token."""
    ended = np.flatnonzero(run.arrays["finish_reason"] == "stop")
    cut = random.random(len(ended)) < 0.2
    token, finish, mask = run.arrays["token_id"].copy(), run.arrays["finish_reason"].copy(), run.arrays["response_mask"].copy()
    token[run.splits[1:][ended[cut]] - 1], finish[ended[cut]] = 7, "length"
    mask[run.splits[1:][ended[~cut]] - 1] = False
    return _masked(with_values(run, token_id=token, finish_reason=finish), mask)


@injected("stop-without-eos", "logged-metric-mismatch", needs=("finish_reason", "token_id"), least="info", anywhere=False,
          cause="end-token-has-other-id")  # fmt: skip
def end_token_of_another_id(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The run says that responses end by another token than they do."""
    others = (int(run.arrays["token_id"].max()) + 5,)
    return replace(run, info=replace(run.info, eos_token_ids=others))


def _stripped(run: SimulatedRun, random: Random, share: float) -> SimulatedRun:
    """Other tokens of the run stand where responses ended."""
    ids = run.arrays["token_id"].copy()
    stopped = (run.arrays["finish_reason"] == "stop") & (random.random(len(run.splits) - 1) < share)
    others = ids[~np.isin(ids, run.info.eos_token_ids or ())]
    ids[run.splits[1:][stopped] - 1] = random.choice(others, int(stopped.sum()))
    return with_values(run, token_id=ids)


@injected("stop-without-eos", "logged-metric-mismatch", needs=("finish_reason", "token_id"), least="info",
          cause="end-token-stripped-in-some")  # fmt: skip
def end_token_stripped_in_half(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Another token stands where half of the responses ended."""
    return _stripped(run, random, 0.5)


@injected("stop-without-eos", "logged-metric-mismatch", needs=("finish_reason", "token_id"), least="info",
          cause="end-token-not-recorded")  # fmt: skip
def end_token_stripped(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Another token stands where responses ended."""
    return _stripped(run, random, 1.0)


@injected("mask-covers-padding", *_COMPANY, "mask-misses-eos", "mask-edge-off", "written-tokens-untrained",
          needs=("token_id", "finish_reason"), cause="mask-of-other-rows", anywhere=False)  # fmt: skip
def masks_of_other_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The masks of each step are dealt out anew; rows are padded to the longest of their step."""
    length, step = np.diff(run.splits), run.arrays["step"]
    widest = np.array([length[step == one].max() for one in step])
    longer = extended(run, widest - length, {"token_id": run.info.pad_token_id or PAD})
    dealt = np.arange(len(length))
    for one in np.unique(step):
        rows = np.flatnonzero(step == one)
        dealt[rows] = random.permutation(rows)
    place = np.arange(longer.splits[-1]) - longer.splits[:-1][longer.rows]
    return with_row_advantages(with_values(longer, response_mask=place < length[dealt][longer.rows]), _row_advantage(run))


@injected("mask-covers-padding", "mask-misses-eos", "looping-responses", needs=("token_id", "finish_reason"),
          cause="token-ids-of-other-rows", anywhere=False)  # fmt: skip
def token_ids_of_other_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The token ids of each step are dealt out anew, padded or cut to the lengths of the rows; all other columns stay."""
    step, length, token = run.arrays["step"], np.diff(run.splits), run.arrays["token_id"]
    dealt = np.arange(len(length))
    for one in np.unique(step):
        rows = np.flatnonzero(step == one)
        dealt[rows] = random.permutation(rows)
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    other = dealt[run.rows]
    inside = place < length[other]
    ids = token[np.where(inside, run.splits[:-1][other] + place, 0)]
    return with_values(run, token_id=np.where(inside, ids, run.info.pad_token_id or PAD))


@injected("mask-covers-padding", *_COMPANY, needs=("token_id", "finish_reason"), cause="mask-ends-late", anywhere=False)
def one_token_too_many(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The mask ends one token too late in every row."""
    fill = {"token_id": run.info.pad_token_id or PAD, "response_mask": True}
    return with_row_advantages(extended(run, np.ones(len(run.splits) - 1, np.int64), fill), _row_advantage(run))
