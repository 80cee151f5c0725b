"""Numbers that are logged wrongly: nothing says that the training is wrong."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import Look, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found

_FINDS: Final = ("logged-metric-mismatch", "impossible-values")
_ALL: Final = "Until it is fixed, read the recomputed series: `rl-doctor metrics RUN --select <name>`."
_SOURCE: Final = "Fixing commits and issue threads of trainers whose metrics lied while the training was right"


def _mistake(name: str, label: str, words: str, advice: str, doc: str) -> None:
    """A cause that a rule has recognised in a logged number."""
    parts = [found(rule, words, suspect=name) for rule in _FINDS]

    def look(scene: Scene) -> Look:
        looks = [part.look(scene) for part in parts]
        return next((one for one in looks if one.there), next((one for one in looks if one.there is None), looks[0]))

    cause(name, label, explains=_FINDS, signs=(Sign(words, "needed", (), look),), advice=(advice, _ALL), source=_SOURCE, doc=doc)


_mistake(
    "kl-logged-as-minus-ratio",
    "the KL to the old policy is logged as minus the ratio; the training is right",
    "the logged KL is minus the mean ratio",
    "Log the mean of old_logprob - logprob, not of -exp(logprob - old_logprob).",
    """It reads about -1 at every step, whatever happens. An early stop at a limit on the KL never acts.""",
)
_mistake(
    "kl-logged-in-other-direction",
    "the KL is logged in the other direction",
    "the logged KL is that of the reversed log-ratio",
    "Check whether the differentiated term has the same direction: then it is more than the log.",
    """Samples from the current policy need x = reference - current. If only the log is turned, the training is right.""",
)
_mistake(
    "other-estimator-logged",
    "the log has another estimator of the same quantity; the training may be right",
    "the logged number is another estimator",
    "Name the estimator in the log, and compare runs by one of them only.",
    """k1, k2, k3 and the absolute log-ratio have other means and units; a limit that is right for one is not for another.""",
)
_mistake(
    "logged-with-opposite-sign",
    "the number is logged with the opposite sign",
    "the logged number has the opposite sign",
    "Check whether it is a loss (to be minimised) that is named as what it maximises.",
    """The size is right, the sign is not. If it is a term of the loss, its sign there is worth a look.""",
)
_mistake(
    "scaled-by-a-count",
    "the number is logged multiplied or divided by a count; the training is right",
    "the logged number is off by a number of micro-batches, mini-batches, epochs or ranks",
    "Average instead of adding, or divide by the same count as the loss: once.",
    """Numbers that are divided for gradient accumulation, and then averaged or summed once more. Shares and ratios of the same
    row are right, and gradients too, as far as this number tells.""",
)
_mistake(
    "mean-of-means-logged",
    "the log has a mean of means; the training is right",
    "the logged number is a mean of the means of parts",
    "Add up sums and counts over ranks and micro-batches, and divide once.",
    """Parts with few tokens weigh as much as those with many. The more unequal they are, the further it is off.""",
)
_mistake(
    "masked-tokens-in-metric",
    "the log counts tokens that are not trained on; the training may be right",
    "the logged number is over other tokens than the mask's",
    "Apply the mask of the loss to the metric; check that the loss itself has it.",
    """A plain mean over a padded batch counts padding, prompts or observations. If the loss uses the same tensor without a mask,
    it is more than the log.""",
)
_mistake(
    "part-of-step-logged",
    "the log has one part of the step for the whole; the training is right",
    "the logged number is that of one part alone",
    "Reduce over ranks and micro-batches before logging.",
    """One rank or one micro-batch stands for all. It is unbiased at best, and noisier.""",
)
_mistake(
    "logged-at-other-step",
    "the number is logged at another step than it belongs to; the training is right",
    "the logged number is that of a neighbouring step",
    "Log with the step of the batch, before the counter is raised.",
    """Everything that is held against it by step is off by one.""",
)
_mistake(
    "clip-share-counted-otherwise",
    "the clip share counts other tokens than its name says; the training is right",
    "the logged share counts other tokens as clipped",
    "Say which: outside the range whatever the advantage, or only where clipping binds.",
    """Trainers mean several things by the word: tokens outside the range, tokens whose gradient is clipped away, one side of it,
    and even responses cut at the length limit.""",
)
_mistake(
    "clip-share-mislogged",
    "the clip share and the KL of the same rows contradict each other: one is logged wrongly",
    "so many clipped tokens need a larger KL",
    "Compute both by hand on one micro-batch: clipped tokens outside a range of .2 have a k3 of .0157 or more each.",
    """With all tokens clipped there is no gradient; with a KL of 0 nothing is clipped. The one that the run's gradient norm
    contradicts is wrong.""",
)
_mistake(
    "share-in-per-cent",
    "the share is logged in per cent; the training is right",
    "the logged share goes up to 100",
    "Log a share from 0 to 1, or name the unit.",
    """A unit, no fault of the training.""",
)
_mistake(
    "entropy-mislogged",
    "the entropy is logged as a bonus, a sum or of a density, not as the entropy of a choice",
    "the logged entropy is below 0 or above that of any choice among tokens",
    "Log the mean over trained tokens of -sum p log p.",
    """A choice among n tokens has an entropy from 0 to log n.""",
)
_mistake(
    "kl-mislogged",
    "a KL that cannot be below 0 is logged below 0: with its sign turned, or under another estimator's name",
    "the logged KL is below 0 by an estimator that cannot be",
    "Check the sign with which the same tensor enters the loss.",
    """k2, k3 and the absolute log-ratio are never below 0. k1 may be, by chance, and by how responses are sampled.""",
)
_mistake(
    "metric-computed-otherwise",
    "the logged number is computed in another way than its definition; the training may be right",
    "another way of computing gives the logged number",
    "Compare the trainer's function with the definition, on one recorded micro-batch.",
    """Something known reproduces the log, and it is not the definition. The finding says what.""",
)
_mistake(
    "metric-unexplained",
    "the logged number is not what it is defined as, and no known mistake gives it",
    "the logged number is matched by none of the ways that were tried",
    "Compare the trainer's function with the definition, on one recorded micro-batch.",
    """Either the log, or what was recorded, is of something else. Which cannot be told from these columns.""",
)
_mistake(
    "rank-not-recorded",
    "the recording may lack a rank, so that the recomputed numbers are of a part of the batch",
    "numbers differ where groups, batches or ranks are incomplete",
    "Record every rank and tell world_size in run.json: steps that lack a rank are then not compared.",
    """The trainer logs a mean over all ranks. What is recomputed from some of them differs, and nothing is wrong.""",
)
_mistake(
    "not-a-number-logged",
    "the log has NaN or an infinity where the recorded tokens give a number: masked values leak into it",
    "NaN was logged where the recomputation is finite",
    "Select by the mask (torch.where, or indexing) before the sum: NaN times 0 is NaN.",
    """A value at a masked position that is not finite survives a multiplication with the mask. If the gradient norm is finite the
    update was not hit; if it is not, the loss has the same leak, and the weights are lost.""",
)
_mistake(
    "odd-steps-logged",
    "a few steps are logged differently: around a resume, or repeated; the training is right",
    "numbers differ at a few steps alone",
    "Look for what happened at these steps: a resume, a repeated step, a row of another step.",
    """All other steps agree to the last digit, so the definition is right.""",
)

cause(
    "number-mislogged", "a logged number is not what its name says; the training may be right",
    explains=("impossible-values",),
    signs=(found("impossible-values", "a number cannot be what its name says"),),
    advice=("Find the line of code that logs the number, and compute it by hand for one batch.",),
    source="Definitions",
    doc="""What cannot be is wrong in the log at least. It is wrong in the training if the same number is used there.""",
)  # fmt: skip
