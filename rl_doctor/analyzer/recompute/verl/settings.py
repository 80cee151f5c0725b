"""What of verl's configuration its logged numbers depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rl_doctor.analyzer.recompute.native import Native, Pair, contradictions
from rl_doctor.analyzer.recompute.variations.ranges import Range, canonical_range
from rl_doctor.analyzer.recompute.verl.versions import Era, eras_of
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunConfig, RunInfo

_ACTOR: Final = "actor_rollout_ref.actor"
_KL: Final[Mapping[str, str]] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_BYPASS: Final = "bypass_mode"
_SAME: Final[tuple[Pair, ...]] = (
    ((f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio"), "clip_low"),
    ((f"{_ACTOR}.clip_ratio_high", f"{_ACTOR}.clip_ratio"), "clip_high"),
    ((f"{_ACTOR}.clip_ratio_c",), "dual_clip"),
    ((f"{_ACTOR}.entropy_coeff",), "entropy_coef"),
    ((f"{_ACTOR}.loss_agg_mode",), "loss_agg"),
    (("critic.cliprange_value",), "value_clip"),
)
_CORRECTIONS: Final = ("algorithm.rollout_correction", f"{_ACTOR}.policy_loss.rollout_correction")


@frozen
class Correction:
    """``algorithm.rollout_correction``: how the distance from the engine that sampled is corrected for.

    ``weights`` is the level of the importance weights, token or sequence; ``lower`` and ``upper`` bound them, and where ``drops``
    weights outside become 0. ``rejection`` and ``thresholds`` are the criteria for leaving tokens out, as they are configured.
    """

    bypass: bool
    loss_type: str
    weights: str | None
    lower: float | None
    upper: float
    drops: bool
    normalised: bool
    rejection: str | None
    thresholds: str | None


@frozen
class Settings:
    """The policy loss, its aggregation, its bounds, and how the driver summarises a batch; None where it is not known.

    ``loss_agg`` is how the policy loss is aggregated, ``configured_agg`` how all else is: some losses have their own way.
    ``jagged`` is whether the driver pads responses to the longest of the batch, not to the configured limit. ``substeps`` is how
    many updates, each on a part of the batch, are logged as one step, 0 where it is not known. ``actor_entropy`` is whether the
    actor computes one, None where that is not known. ``canonical_range`` is the clip range of the canonical configuration where
    that is another.
    """

    era: Era
    loss_mode: str
    loss_agg: str | None
    configured_agg: str | None
    low: float | None
    high: float | None
    dual_clip: float | None
    entropy_coef: float | None
    kl_coef: float | None
    kl_type: str | None
    reward_kl_type: str | None
    tau_positive: float | None
    tau_negative: float | None
    dro_beta: float | None
    correction: Correction | None
    jagged: bool | None
    substeps: int
    response_limit: int | None
    prompt_limit: int | None
    value_clip: float | None
    value_agg: str | None
    actor_entropy: bool | None
    canonical_range: Range | None

    @classmethod
    def of(cls, info: RunInfo, era: Era, native: Native | None = None) -> Settings:
        """Read the settings from the native configuration where it was recorded, else from its canonical form."""
        config = info.config
        native = Native(config.native) if native is None else native
        mode = _loss_mode(info, native)
        configured = aggregation = native.word(f"{_ACTOR}.loss_agg_mode", config.loss_agg)
        if mode == "sapo" or (mode == "gspo" and era.gspo_configured is False):
            aggregation = "seq-mean-token-mean"
        elif mode == "gspo" and era.gspo_configured is None:
            aggregation = None
        in_loss = native.word(f"{_ACTOR}.kl_loss_type", None if config.kl_in_reward else config.kl_estimator)
        in_reward = native.word("algorithm.kl_penalty", config.kl_estimator if config.kl_in_reward else None)
        place = next((one for one in _CORRECTIONS if one in native), _CORRECTIONS[0])
        correction = _correction(native, place)
        if era.minor >= (0, 7) and (mode == _BYPASS or (not era.engine and correction is not None and correction.bypass)):
            mode = _bypassed(correction)
        elif era.minor < (0, 7) and native.flag("algorithm.rollout_correction.use_policy_gradient"):
            mode = "rollout_correction"
        entropy_coef = native.number(f"{_ACTOR}.entropy_coeff", config.entropy_coef)
        low, high = _bound(native, "low", config.clip_low), _bound(native, "high", config.clip_high)
        version_one, nine = native.flag("trainer.use_v1"), era.minor >= (0, 9)
        return cls(
            era=era,
            loss_mode=mode,
            loss_agg=aggregation,
            configured_agg=configured,
            low=low,
            high=high,
            dual_clip=native.number(f"{_ACTOR}.clip_ratio_c", config.dual_clip),
            entropy_coef=entropy_coef,
            kl_coef=_kl_coef(config, native),
            kl_type=_estimator(in_loss),
            reward_kl_type=_estimator(in_reward),
            tau_positive=native.number(f"{_ACTOR}.tau_pos"),
            tau_negative=native.number(f"{_ACTOR}.tau_neg"),
            dro_beta=native.number(f"{_ACTOR}.policy_loss.dro_beta"),
            correction=correction,
            jagged=version_one if nine else False,
            substeps=_substeps(native) if _settled(native, place) else 0,
            response_limit=config.max_response_length,
            prompt_limit=native.whole("data.max_prompt_length"),
            value_clip=native.number("critic.cliprange_value", config.value_clip),
            value_agg=native.word("critic.loss_agg_mode"),
            actor_entropy=True
            if native.flag(f"{_ACTOR}.calculate_entropy")
            else None
            if entropy_coef is None
            else entropy_coef != 0,
            canonical_range=canonical_range(config, low, high),
        )

    @property
    def overwrites_entropy(self) -> bool | None:
        """Whether the actor's entropy takes the place of the driver's; None where that is not known."""
        return self.actor_entropy if self.era.current_entropy else False

    @property
    def bypasses(self) -> bool:
        """Whether the loss itself compares the policy with the engine that sampled."""
        return self.correction is not None and self.correction.bypass


def doubts(info: RunInfo) -> Iterator[str]:
    """What of the configuration does not fit, or says two things."""
    native = Native(info.config.native)
    for era in eras_of(info.trainer_version, info.config.native or {}, ()):
        Settings.of(info, era, native)
    yield from native.told()
    yield from contradictions(native, info.config, _SAME)


def _loss_mode(info: RunInfo, native: Native) -> str:
    """The policy loss: as configured; else GSPO's where that is the algorithm. "" where it is not known."""
    section = f"{_ACTOR}.policy_loss"
    if native.section(section) is None:
        return ""
    named = next((path for path in (f"{section}.loss_mode", "loss_mode") if path in native), None)
    if named is not None:
        return native.word(named) or ""
    algorithm = (info.algorithm or "").lower()
    return algorithm if algorithm in {"gspo", "cispo", "sapo", "gpg"} else "vanilla"


def _bound(native: Native, side: str, otherwise: float | None) -> float | None:
    """One side of the clip range, or of what the loss bounds instead of the ratio."""
    both = native.number(f"{_ACTOR}.clip_ratio", otherwise)
    return native.number(f"{_ACTOR}.clip_ratio_{side}", both)


def _kl_coef(config: RunConfig, native: Native) -> float | None:
    """Coefficient of the KL term of the loss; 0 where it has none."""
    switch = f"{_ACTOR}.use_kl_loss"
    if switch not in native:
        return 0.0 if config.kl_in_reward else config.kl_coef
    used = native.flag(switch)
    return None if used is None else native.number(f"{_ACTOR}.kl_loss_coef") if used else 0.0


def _substeps(native: Native) -> int:
    """How often the policy is updated, on a part of the batch each, before a step is logged; 0 where that is not known."""
    mode = native.word("trainer.v1.trainer_mode", "")
    if mode is None:
        return 0
    if mode != "separate_async":
        return 1
    return native.whole("trainer.v1.separate_async.parameter_sync_step", 1) or 0


def _bypassed(correction: Correction | None) -> str:
    """The loss that stands behind ``bypass_mode``; none of the known ones where it leaves tokens out or weighs them by itself."""
    if correction is None or correction.rejection:
        return _BYPASS
    if correction.loss_type == "reinforce":
        return _BYPASS if correction.weights else "reinforce"
    return "vanilla"


def _settled(native: Native, place: str) -> bool:
    """Whether all of the rollout correction that is there fits."""
    return not any(name.startswith(place) for name in native.doubts)


def _correction(native: Native, place: str) -> Correction | None:
    if not native.section(place):
        return None
    level = native.word(f"{place}.rollout_is")
    numbers = (native.parts(f"{place}.rollout_is_threshold", (2.0,)) if level else None) or (2.0,)
    drops = len(numbers) > 1
    return Correction(
        bypass=bool(native.flag(f"{place}.bypass_mode")),
        loss_type=native.word(f"{place}.loss_type") or "ppo_clip",
        weights=level or None,
        lower=numbers[0] if drops else None,
        upper=numbers[-1],
        drops=drops,
        normalised=bool(native.flag(f"{place}.rollout_is_batch_normalize")),
        rejection=native.word(f"{place}.rollout_rs") or None,
        thresholds=native.text(f"{place}.rollout_rs_threshold"),
    )


def _estimator(name: str | None) -> str | None:
    word = (name or "").removesuffix("+")
    return _KL.get(word, word) if _KL.get(word, word) in {"k1", "k2", "k3", "abs"} else None
