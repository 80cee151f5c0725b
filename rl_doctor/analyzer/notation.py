"""The letters and words of all formulas: those of metrics, and those of what trainers log."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

NOTATION: Final[Mapping[str, str]] = MappingProxyType({
    "logprob, old_logprob, rollout_logprob, ref_logprob, teacher_logprob": "log-probability of a sampled token, in nat, under "
    "the policy being trained, the policy as it was when the update began, the engine that sampled, the reference, the teacher",
    "new, old, rollout, ref, teacher": "the same, where a trainer's row would else be long; `engine` is `rollout`",
    "p, p_old, p_rollout": "exp(logprob), exp(old_logprob), exp(rollout_logprob)",
    "x, r": "logprob - old_logprob, exp(x); r is the ratio of a whole sequence or of other policies where a row says so",
    "y": "ref_logprob - logprob",
    "d": "logprob of the trainer (old_logprob, else logprob of the first mini-batch) - rollout_logprob",
    "k1(z), k2(z), k3(z)": "estimates of the KL divergence from a log-ratio z: -z, z^2 / 2, exp(z) - 1 - z",
    "A, A'": "advantage as recorded, as recomputed",
    "V, V_old, G": "value, old_value, return",
    "R, R_c, w_c": "reward; component c of it and its configured weight (default 1)",
    "w": "importance weight that corrects for the engine, 1 where nothing corrects",
    "L": "response_length",
    "low, high, dual": "distances of the clip bounds from 1; the constant of dual clip, the largest ratio that counts where A < "
    "0",
    "beta, gamma, lambda, tau, phi, delta": "constants of an algorithm under the names in its paper; the row says which is which",
    "m": "the tokens in the loss: the response mask, less what was taken out of it",
    "T, N, F, S": "the tokens trained on in a step, their number; those of the first mini-batch after sampling; those of later "
    "mini-batches",
    "i, Ti, g": "a sequence, its tokens trained on, a group of n_g sequences; each sequence of a generation batch counts once",
    "t": "a stored token, trained on (m = 1) or not; mean_t and sum_t are over the tokens in the loss of one sequence",
    "mean_T f": "sum of f over T / N; likewise over i and g. share_T[c] is the mean of 1 where c holds and 0 elsewhere",
    "1[c], [c]": "1 where c holds, else 0",
    "clip(z, a, b), clip(z, -+c), clip(z, b -+ c)": "z kept within [a, b], within [-c, c], within [b - c, b + c]",
    "clip20(z), clip(r)": "z kept within [-20, 20]; r kept within [1 - low, 1 + high]",
    "A_t, A_i1, V_old_t, V_old_i1, G_t, G_i1": "advantage, old_value and return of a token, of the first one of sequence i",
    "n_i": "a number of tokens of sequence i, which the row names",
    "|z|, abs(z)": "the absolute value",
    "row": "one sequence of a batch. A row's mean is over its tokens in the loss",
    "ddof": "what a variance's divisor subtracts from the number of values",
    "a, b": "the two logprobs that a metric compares",
    "z, n": "what the row says; n without that is a number of tokens or of responses",
})  # fmt: skip
"""Letters and words, with commas between those of a line -> what they stand for."""
