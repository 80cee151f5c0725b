"""The token that ends responses: whether it is there to be learnt."""

from __future__ import annotations

from collections.abc import Iterable

from rl_doctor.report.model import Hit
from rl_doctor.rules.masks import settings
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import above
from rl_doctor.rules.view import View


@rule(
    "RLD030",
    "stop-without-eos",
    severity="info",
    needs=("mask.stop_without_eos_frac",),
    optional=("turns.mean", "mask.observation_frac"),
    limits={"share": 0.3, "rows": 32},
    cause="The end token is stripped from the responses before they are trained on, or it has another id than the one recorded.",
    advice=(
        "Print the last tokens of a few responses that stopped: is the end token there, and which id has it?",
        "Keep the end token that the engine returns (some strip it with the stop reason), and train on it.",
        "If responses are meant to end at a stop string, nothing is wrong: ignore this rule.",
    ),
    avoids=(
        "conversations of several turns, whose turns may end at a marker",
        "stop strings that stand in the trainer's configuration",
        "responses that were cut",
    ),
    source="an engine that stops at EOS returns it as the last token, unless it is told to stop at other ids or strings",
    since="0.2.0",
)
def stop_without_eos(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Responses stopped by themselves, and do not hold the token that says so.

    What is not in the response cannot be trained: the decision to stop gets no gradient, and lengths drift to the limit.

    Of the responses whose finish_reason is stop those are counted that have no EOS id among their last two tokens. A share of
    more than ``share``, of at least ``rows`` responses, is info: responses may be meant to end at a stop string, which is not
    recorded.

    Limits: needs token ids, finish reasons, lengths and the EOS ids of the run.
    """
    if (turns := view.get("turns.mean")) is not None and float(turns.values.max()) > 1.0:
        yield Skip("data", "responses have several turns, which may end at other tokens")
        return
    if (observed := view.get("mask.observation_frac")) is not None and observed.values.any():
        yield Skip("data", "responses hold text of tools, before which they may end at other tokens")
        return
    if any(name.lower().startswith("stop") and value for name, value in settings(view.config.native or {})):
        yield Skip("config", "responses may end at stop strings or stop tokens, as is configured")
        return
    found = above(view.series("mask.stop_without_eos_frac"), limits["share"])
    if found is None or found.n < limits["rows"]:
        return
    message = f"{found.items:.0f} of {found.n} responses that stopped by themselves ({found.value:.0%}) hold no EOS {found.when}"
    yield Hit(message, "info", (found.evidence(),), None, ("truncation: only responses with finish_reason stop are counted",))
