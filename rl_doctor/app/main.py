"""The app: ``main`` is run once for each click of each reader."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import streamlit as st

from rl_doctor.app import link as links
from rl_doctor.app.context import Context
from rl_doctor.app.decoding import of_environment
from rl_doctor.app.following import Shared, following
from rl_doctor.app.link import Link
from rl_doctor.app.look import STYLE
from rl_doctor.app.pulse import BODY, DRAWN, LISTED, pulse, state
from rl_doctor.app.runs import SIGNS, Runs, label, listing
from rl_doctor.app.shown import plain
from rl_doctor.errors import DoctorError, NothingToJudgeError
from rl_doctor.i18n.speaker import LANGUAGES, Language, Speaker
from rl_doctor.views.age import gone

if TYPE_CHECKING:
    from rl_doctor.live.listing import Listing

ORDER: Final = ("diagnosis", "run", "distributions", "groups", "rollouts", "tokens", "compare", "recompute", "data")
"""Pages in the order of the menu; those that have no module are left out. The first one answers at the app's own address."""
_LANGUAGES: Final = {"en": "English", "zh": "中文"}
_SIDEBAR_PIXELS: Final = 248
_VERDICTS: Final = 8
"""Verdicts at most that stand under the list of runs."""
_SHOWN: Final = "shown"
"""Key in the session's state: the path of the page that was shown last."""
_FIRST: Final = "first"
"""Key in the session's state: the run that is shown where the address names none; None as long as there is none."""
_ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0072B2"/>'
    '<path d="M4 17h6l3-9 5 16 4-11 2 4h4" fill="none" stroke="#fff" stroke-width="2.6" stroke-linejoin="round"/></svg>'
)
"""An icon of streamlit's own would be fetched from outside."""


@dataclass(frozen=True)
class App:
    """What one run of the script shows.

    Attributes:
        listing: what it was started with.
        modules: of the pages, by name.
        speaker: speaks the reader's language.
        pages: as streamlit knows them; "" is the first one.
    """

    listing: Listing
    modules: Mapping[str, ModuleType]
    speaker: Speaker
    pages: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> Runs:
        """The runs that are there now."""
        return Runs(self.listing.runs())

    def register(self) -> None:
        """Make streamlit's pages of the modules."""
        for name in self.modules:
            path = "" if name == ORDER[0] else name
            title = f"{self.speaker.say(f'app.page_{name}')} · rl-doctor"
            self.pages[path] = st.Page(self._function(name, path), title=title, url_path=path or None, default=not path)

    def _function(self, name: str, path: str) -> Callable[[], None]:
        """What shows a page, under a name of its own, by which streamlit tells pages apart."""

        def page() -> None:
            self.show(name, path)

        page.__name__ = page.__qualname__ = name
        return page

    def show(self, name: str, path: str) -> None:
        """Show a page of the chosen run, or say why it cannot be shown; as a part that is drawn anew by itself."""
        st.fragment(self._show, key=BODY)(name, path)

    def _show(self, name: str, path: str) -> None:
        here, runs = self.here(path or None), self.runs
        st.session_state[DRAWN] = None
        followed = self.chosen(here)
        if followed is None:
            self._lost(here)
            return
        lost = gone(followed.path)
        if lost:
            st.error(self.speaker.say("app.gone_run", path=plain(str(followed.path))), icon=":material/link_off:")
        try:
            if followed.known is None and not lost:
                self._wait_for(followed)
                if len(runs) > 1:
                    st.rerun()  # the list of runs was drawn before its verdict was known
            st.session_state[DRAWN] = state(followed)
            if followed.known is not None:
                self.modules[name].show(Context(followed, here, self.speaker, runs, self.go, self.pages, of_environment()))
        except Exception as error:
            if lost and isinstance(error, DoctorError | FileNotFoundError):
                return
            if not isinstance(error, DoctorError) and os.environ.get("RL_DOCTOR_TRACEBACK") == "1":
                raise
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Say why a page cannot be shown."""
        say = self.speaker.say
        if isinstance(error, NothingToJudgeError):
            st.info(f"**{say('app.nothing')}**  \n{plain(self.speaker.tell(str(error)))}", icon=":material/hourglass_empty:")
        elif isinstance(error, DoctorError):
            st.error(f"**{say('app.unreadable')}**  \n{plain(str(error))}", icon=":material/error:")
        else:
            told = plain(f"{type(error).__name__}: {error}")
            st.error(f"**{say('app.internal')}**  \n{told}", icon=":material/bug_report:")

    def _lost(self, here: Link) -> None:
        """Say that there is no run to show."""
        if here.run is not None:
            st.warning(self.speaker.say("app.no_such_run", run=plain(here.run)))
            return
        folders = ", ".join(plain(str(path)) for path in self.listing.folders)
        left = f" {self.speaker.say('app.left_out', n=self.listing.left_out)}" if self.listing.left_out else ""
        st.info(f"{self.speaker.say('app.waiting', folders=folders)}{left}", icon=":material/hourglass_empty:")

    def _wait_for(self, followed: Shared) -> None:
        """Open a run, and say how far that is."""
        told = st.empty()
        with told.container(), st.spinner(self.speaker.say("app.reading"), show_time=True):
            bar = st.empty()
            for share in followed.open():
                if share > 0:
                    bar.progress(share)
        told.empty()
        _ = followed.opened

    def here(self, page: str | None) -> Link:
        """Where the reader is. While an address without a run is open, its run stays the same, whatever becomes the first."""
        told = links.read(st.query_params.to_dict(), page)
        if st.session_state.get(_FIRST) is None:
            st.session_state[_FIRST] = self.listing.first
        return told if told.run is not None else told.at(run=st.session_state[_FIRST])

    def chosen(self, here: Link) -> Shared | None:
        """The run that the address names, or the one that is opened without; None if there is or was none of that name."""
        path = None if here.run is None else self.listing.path(here.run)
        return None if path is None else following(str(path))

    def go(self, link: Link) -> None:
        """Change the address and show what is there."""
        st.switch_page(self.pages[link.page or ""], query_params=link.query())

    def sidebar(self, here: Link) -> None:
        """The picker of runs, the menu, and the language."""
        st.markdown("#### rl-doctor")
        self._picker(here)
        kept = Link(run=here.run, other=here.other, lang=here.lang).query()
        for name, module in self.modules.items():
            label = self.speaker.say(f"app.page_{name}")
            st.page_link(self.pages["" if name == ORDER[0] else name], label=label, icon=module.ICON, query_params=kept)
        st.session_state["lang"] = self.speaker.language
        st.segmented_control(
            self.speaker.say("app.language"), LANGUAGES, key="lang", format_func=_LANGUAGES.__getitem__,
            on_change=_choose_language, required=True, label_visibility="collapsed",
        )  # fmt: skip

    def _picker(self, here: Link) -> None:
        """The list of runs, in which none is chosen where the address names one that is not in it."""
        runs, say = self.runs, self.speaker.say
        names = list(runs)
        st.session_state[LISTED] = set(names)
        if len(names) > 1 or (here.run is not None and here.run not in names):
            st.session_state["run"] = here.run if here.run in names else None
            levels = runs.levels()
            st.selectbox(
                say("app.run"), names, key="run", on_change=_choose_run, index=None, placeholder=say("app.choose"),
                help=say("app.run_order"), format_func=lambda name: label(name, levels),
            )  # fmt: skip
            told = [f"{SIGNS[level]} {say(f'diagnosis.level_{level}')} · {plain(name)}" for name, level in levels.items()]
            if told:
                st.caption("  \n".join(told[:_VERDICTS]))
            if self.listing.left_out:
                st.caption(self.speaker.say("app.left_out", n=self.listing.left_out))


def main() -> None:
    """Show the page that the address names."""
    st.set_page_config("rl-doctor", _ICON, "wide", _SIDEBAR_PIXELS)
    st.html(STYLE)
    app = App(listing(tuple(sys.argv[1:])), modules_of_pages(), Speaker(_language()))
    app.register()
    current = st.navigation(list(app.pages.values()), position="hidden")
    here = app.here(current.url_path or None)
    _tell_address(current.url_path)
    with st.sidebar:
        app.sidebar(here)
        condition = st.container()
    current.run()
    with condition:
        pulse(app.listing, app.chosen(here), app.speaker, here.run or "")


def _tell_address(path: str) -> None:
    """Have the browser's address say what is shown: streamlit itself changes it only where a link leads to another page."""
    if st.session_state.get(_SHOWN) == path:
        st.query_params.from_dict(st.query_params.to_dict())
    st.session_state[_SHOWN] = path


def modules_of_pages() -> dict[str, ModuleType]:
    """The modules of the pages that there are, by name, in the order of the menu."""
    files = {entry.name for entry in resources.files("rl_doctor.app.pages").iterdir()}
    return {name: importlib.import_module(f"rl_doctor.app.pages.{name}_page") for name in ORDER if f"{name}_page.py" in files}


def _language() -> Language:
    """What the address says, else what the browser prefers, else English."""
    told = st.query_params.get("lang") or (st.context.locale or "").split("-")[0]
    return next((language for language in LANGUAGES if language == told), LANGUAGES[0])


def _choose_run() -> None:
    """Write the chosen run into the address, without what belongs to the one before."""
    here = links.read(st.query_params.to_dict(), None)
    if st.session_state["run"] is None:
        return
    st.query_params.from_dict(Link(run=st.session_state["run"], metric=here.metric, lang=here.lang).query())


def _choose_language() -> None:
    """Write the chosen language into the address."""
    here = links.read(st.query_params.to_dict(), None)
    st.query_params.from_dict(here.at(lang=st.session_state["lang"]).query())
