"""What of verl's configuration its logged numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_doctor.analyzer.recompute.verl.versions import Era
from rl_doctor.schema import RunConfig, RunInfo

_ACTOR: Final = "actor_rollout_ref.actor"
_KL: Final[Mapping[str, str]] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_BYPASS: Final = "bypass_mode"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Settings:
    """The policy loss, its aggregation, its bounds, and how the driver summarises a batch; None where it is not known.

    ``loss_agg`` is how the policy loss is aggregated, ``configured_agg`` how all else is: some losses have their own way.
    ``jagged`` is whether the driver pads responses to the longest of the batch, not to the configured limit. ``substeps`` is how
    many updates, each on a part of the batch, are logged as one step. ``actor_entropy`` is whether the actor computes one.
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
    actor_entropy: bool

    @classmethod
    def of(cls, info: RunInfo, era: Era) -> Settings:
        """Read the settings from the native configuration where it was recorded, else from its canonical form."""
        config, native = info.config, info.config.native or {}
        mode = _loss_mode(info, native)
        configured = aggregation = _at(native, f"{_ACTOR}.loss_agg_mode") or config.loss_agg
        if mode == "sapo" or (mode == "gspo" and era.gspo_configured is False):
            aggregation = "seq-mean-token-mean"
        elif mode == "gspo" and era.gspo_configured is None:
            aggregation = None
        in_loss = _at(native, f"{_ACTOR}.kl_loss_type") or (None if config.kl_in_reward else config.kl_estimator)
        in_reward = _at(native, "algorithm.kl_penalty") or (config.kl_estimator if config.kl_in_reward else None)
        correction = _correction(
            _at(native, "algorithm.rollout_correction") or _at(native, f"{_ACTOR}.policy_loss.rollout_correction")
        )
        if era.minor >= (0, 7) and (mode == _BYPASS or (not era.engine and correction is not None and correction.bypass)):
            mode = _bypassed(correction)
        elif era.minor < (0, 7) and _at(native, "algorithm.rollout_correction.use_policy_gradient"):
            mode = "rollout_correction"
        entropy_coef = _number(_at(native, f"{_ACTOR}.entropy_coeff"), config.entropy_coef)
        version_one, nine = _at(native, "trainer.use_v1"), era.minor >= (0, 9)
        return cls(
            era=era,
            loss_mode=mode,
            loss_agg=aggregation,
            configured_agg=configured,
            low=_bound(native, "low", config.clip_low),
            high=_bound(native, "high", config.clip_high),
            dual_clip=_number(_at(native, f"{_ACTOR}.clip_ratio_c"), config.dual_clip),
            entropy_coef=entropy_coef,
            kl_coef=_kl_coef(config, native),
            kl_type=_estimator(in_loss),
            reward_kl_type=_estimator(in_reward),
            tau_positive=_number(_at(native, f"{_ACTOR}.tau_pos")),
            tau_negative=_number(_at(native, f"{_ACTOR}.tau_neg")),
            dro_beta=_number(_at(native, f"{_ACTOR}.policy_loss.dro_beta")),
            correction=correction,
            jagged=bool(version_one) if nine and version_one is not None else None if nine else False,
            substeps=_substeps(native),
            response_limit=config.max_response_length,
            prompt_limit=_at(native, "data.max_prompt_length"),
            value_clip=_number(_at(native, "critic.cliprange_value"), config.value_clip),
            value_agg=_at(native, "critic.loss_agg_mode"),
            actor_entropy=bool(_at(native, f"{_ACTOR}.calculate_entropy") or entropy_coef),
        )

    @property
    def overwrites_entropy(self) -> bool:
        """Whether the actor's entropy takes the place of the driver's."""
        return self.era.current_entropy and self.actor_entropy

    @property
    def bypasses(self) -> bool:
        """Whether the loss itself compares the policy with the engine that sampled."""
        return self.correction is not None and self.correction.bypass


def _loss_mode(info: RunInfo, native: Mapping[str, Any]) -> str:
    """The policy loss: as configured; else GSPO's where that is the algorithm."""
    algorithm = (info.algorithm or "").lower()
    named = _at(native, f"{_ACTOR}.policy_loss.loss_mode") or native.get("loss_mode")
    return str(named or (algorithm if algorithm in {"gspo", "cispo", "sapo", "gpg"} else "vanilla"))


def _bound(native: Mapping[str, Any], side: str, otherwise: float | None) -> float | None:
    """One side of the clip range, or of what the loss bounds instead of the ratio."""
    both = _number(_at(native, f"{_ACTOR}.clip_ratio"), otherwise)
    return _number(_at(native, f"{_ACTOR}.clip_ratio_{side}"), both)


def _kl_coef(config: RunConfig, native: Mapping[str, Any]) -> float | None:
    """Coefficient of the KL term of the loss; 0 where it has none."""
    used = _at(native, f"{_ACTOR}.use_kl_loss")
    if used is None:
        return 0.0 if config.kl_in_reward else config.kl_coef
    return _number(_at(native, f"{_ACTOR}.kl_loss_coef")) if used else 0.0


def _substeps(native: Mapping[str, Any]) -> int:
    """How often the policy is updated, on a part of the batch each, before a step is logged."""
    if _at(native, "trainer.v1.trainer_mode") != "separate_async":
        return 1
    return int(_at(native, "trainer.v1.separate_async.parameter_sync_step") or 1)


def _bypassed(correction: Correction | None) -> str:
    """The loss that stands behind ``bypass_mode``; none of the known ones where it leaves tokens out or weighs them by itself."""
    if correction is None or correction.rejection:
        return _BYPASS
    if correction.loss_type == "reinforce":
        return _BYPASS if correction.weights else "reinforce"
    return "vanilla"


def _correction(given: Any) -> Correction | None:
    if not isinstance(given, Mapping):
        return None
    bounds = given.get("rollout_is_threshold", 2.0)
    parts = [part for part in str(bounds).split("_") if part.strip()]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    drops = len(numbers) > 1
    level = given.get("rollout_is")
    return Correction(
        bypass=bool(given.get("bypass_mode")),
        loss_type=str(given.get("loss_type") or "ppo_clip"),
        weights=str(level) if level and numbers else None,
        lower=numbers[0] if drops else None,
        upper=numbers[-1] if numbers else 0.0,
        drops=drops,
        normalised=bool(given.get("rollout_is_batch_normalize")),
        rejection=given.get("rollout_rs") or None,
        thresholds=None if given.get("rollout_rs_threshold") is None else str(given["rollout_rs_threshold"]),
    )


def _estimator(name: Any) -> str | None:
    word = str(name or "").removesuffix("+")
    return _KL.get(word, word) if _KL.get(word, word) in {"k1", "k2", "k3", "abs"} else None


def _at(native: Mapping[str, Any], path: str) -> Any:
    value: Any = native
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _number(value: Any, otherwise: float | None = None) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known else otherwise
