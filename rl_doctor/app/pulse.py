"""Looks for what a run has got since, while somebody looks at it, and draws the page's content anew only if there is more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import streamlit as st

from rl_doctor.app.following import Shared
from rl_doctor.errors import DoctorError
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.age import Age, Condition, age, gone

if TYPE_CHECKING:
    from rl_doctor.live.listing import Listing

BODY: Final = "body"
PULSE: Final = "pulse"
DRAWN: Final = "drawn"
"""Key in the session's state: what the page's content was last drawn of, see ``state``; None where it could not be."""
LISTED: Final = "listed"
"""Key in the session's state: the names that the picker was last drawn of."""
HEART: Final = "heart"
_ZOOMS: Final = "zooms"

_OFTEN_SECONDS: Final = 1.0
_RARELY_SECONDS: Final = 30.0
_COLOURS: Final[Mapping[Condition, str]] = {
    "gone": "red", "live": "green", "stalled": "orange", "complete": "gray", "detached": "orange", "unknown": "gray",
}  # fmt: skip
_ICONS: Final[Mapping[Condition, str]] = {
    "live": ":material/sensors:", "stalled": ":material/sensors_off:", "complete": ":material/task_alt:",
    "detached": ":material/link_off:", "gone": ":material/delete:", "unknown": ":material/description:",
}  # fmt: skip

# One beat is under way at most: the next one is timed when the answer to the last has come. A hidden tab has none. Streamlit
# makes a chart anew when its data change, and tells nobody how far it was zoomed in: that is listened for, and drawn again.
_SCRIPT: Final = r"""
export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  const stop = () => {
    clearTimeout(parentElement.beat);
    clearInterval(parentElement.ears);
    document.removeEventListener("visibilitychange", parentElement.seen);
  };
  stop();
  const beat = () => document.hidden || setTriggerValue("beat", data.number);
  parentElement.seen = () => document.hidden || beat();
  parentElement.beat = setTimeout(() => {
    if (document.hidden) document.addEventListener("visibilitychange", parentElement.seen, { once: true });
    else beat();
  }, data.seconds * 1000);
  const zooms = parentElement.zooms ??= { ...data.zooms };
  const zoomed = (plot, change) => {
    const holder = plot.closest("[class*=st-key-]");
    const key = [...(holder?.classList ?? [])].find((name) => name.startsWith("st-key-"));
    const ranges = { ...zooms[`${data.run} ${key}`] };
    let told = false;
    for (const [field, value] of Object.entries(change)) {
      const found = /^([xy]axis\d*)\.(?:range(?:\[([01])\])?|(autorange))$/.exec(field);
      if (!found) continue;
      const [, axis, end, whole] = found;
      told = true;
      if (whole) delete ranges[axis];
      else if (end === undefined) ranges[axis] = value;
      else {
        ranges[axis] = [...(ranges[axis] ?? plot._fullLayout[axis].range)];
        ranges[axis][Number(end)] = value;
      }
    }
    if (!told) return;
    zooms[`${data.run} ${key}`] = ranges;
    setStateValue("zooms", { ...zooms });
  };
  parentElement.ears = setInterval(() => {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) {
      if (plot.heard || !plot.on) continue;
      plot.heard = true;
      plot.on("plotly_relayout", (change) => zoomed(plot, change));
    }
  }, 300);
  return stop;
}
"""


def pulse(listing: Listing, followed: Shared | None, speaker: Speaker, run: str) -> None:
    """Say whether the run still grows, and look for more of it, and for further runs, as long as the page is seen.

    Args:
        listing: what the app was started with.
        followed: the run; None if there is none.
        speaker: speaks the reader's language.
        run: its name in the picker.
    """
    st.fragment(_beat, key=PULSE)(listing, followed, speaker, run)


def state(followed: Shared) -> tuple[object, str]:
    """What a page is drawn of: what is known of the run, and in which condition it is."""
    known = followed.known
    if known is None:
        return None, "gone" if gone(followed.path) else ""
    return known, age(known, time.time(), followed.stalled).condition


def _beat(listing: Listing, followed: Shared | None, speaker: Speaker, run: str) -> None:
    known = None if followed is None else followed.known
    found = None if followed is None or known is None else age(known, time.time(), followed.stalled)
    if found is not None:
        _tell(found, speaker)
    number = st.session_state["beats"] = st.session_state.get("beats", 0) + 1
    often = found is None or found.growing or bool(listing.folders)
    heart = st.components.v2.component("rl_doctor_pulse", js=_SCRIPT)
    heart(
        key=HEART,
        data={
            "number": number, "seconds": _OFTEN_SECONDS if often else _RARELY_SECONDS, "run": run,
            "zooms": st.session_state.get(HEART, {}).get(_ZOOMS, {}),
        },
        default={_ZOOMS: {}},
        height=0,
        on_beat_change=lambda: _look(listing, followed),
        on_zooms_change=lambda: None,
    )  # fmt: skip


def zoom(run: str, key: str) -> Mapping[str, Any]:
    """How far the reader has zoomed into a chart: name of each axis that is not as it was drawn -> its range."""
    found: Mapping[str, Any] = st.session_state.get(HEART, {}).get(_ZOOMS, {}).get(f"{run} st-key-{key}", {})
    return found


def _look(listing: Listing, followed: Shared | None) -> None:
    """Read what is new; only if there is more than what was drawn, draw the content of the page anew, or all of it."""
    if set(listing.runs()) != st.session_state.get(LISTED):
        st.rerun()
    if followed is None:
        return
    with suppress(DoctorError):
        followed.refresh()
    now, drawn = state(followed), st.session_state.get(DRAWN)
    if now != drawn and (drawn is not None or now[0] is not None):
        st.rerun([BODY, PULSE])


def _tell(found: Age, speaker: Speaker) -> None:
    st.markdown(f"{condition(speaker, found.condition)}  \n:small[{written(speaker, found)}]")


def condition(speaker: Speaker, name: Condition) -> str:
    """Whether a run still grows, as icon, word and colour."""
    return f":{_COLOURS[name]}-badge[{_ICONS[name]} {speaker.say(f'app.{name}')}]"


def written(speaker: Speaker, found: Age) -> str:
    """How far a run is, and when it was last written to."""
    step = "" if found.last_step is None else speaker.say("app.last_step", step=found.last_step)
    return f"{step}{speaker.say('app.written', quiet=speaker.duration(found.quiet))}"
