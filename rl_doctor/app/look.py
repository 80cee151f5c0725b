"""How the app's server and its pages are set up: what streamlit is told on its command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_BOTH: Final = {
    "font": "sans-serif",
    "baseFontSize": "15",
    "metricValueFontSize": "1.35rem",
    "baseRadius": "6px",
    "codeFontSize": ".88rem",
    "chartCategoricalColors": "['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00']",
}
_LIGHT: Final = {
    "primaryColor": "#0B6AA8", "backgroundColor": "#FFFFFF", "secondaryBackgroundColor": "#F5F6F8", "textColor": "#1D2430",
    "linkColor": "#0B6AA8", "borderColor": "#E1E4E9", "redColor": "#D55E00", "redBackgroundColor": "#FCE9DE",
    "redTextColor": "#9A4100", "orangeColor": "#E69F00", "orangeBackgroundColor": "#FDF2D9", "orangeTextColor": "#7A5200",
    "blueColor": "#56B4E9", "blueBackgroundColor": "#E3F2FC", "blueTextColor": "#0B5C91", "greenColor": "#009E73",
    "greenBackgroundColor": "#DDF3EC", "greenTextColor": "#006B4E", "grayColor": "#8A8F98", "grayBackgroundColor": "#EEF0F3",
    "grayTextColor": "#5B626E",
}  # fmt: skip
_DARK: Final = {
    "primaryColor": "#56B4E9", "backgroundColor": "#12161C", "secondaryBackgroundColor": "#1B2029", "textColor": "#E4E7EC",
    "linkColor": "#7CC4F0", "borderColor": "#2E3541", "redColor": "#D55E00", "redBackgroundColor": "#43230F",
    "redTextColor": "#FFA26B", "orangeColor": "#E69F00", "orangeBackgroundColor": "#3C2F0F", "orangeTextColor": "#F5C252",
    "blueColor": "#56B4E9", "blueBackgroundColor": "#14324A", "blueTextColor": "#8CCBF2", "greenColor": "#009E73",
    "greenBackgroundColor": "#0F3429", "greenTextColor": "#5CD3AE", "grayColor": "#8A8F98", "grayBackgroundColor": "#272D37",
    "grayTextColor": "#A6AEBB",
}  # fmt: skip

OPTIONS: Final[Mapping[str, str]] = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "full" if os.environ.get("RL_DOCTOR_TRACEBACK") == "1" else "type",
    "client.showErrorLinks": "false",
    "client.showSidebarNavigation": "false",
    "runner.magicEnabled": "false",
    "logger.level": "error",
    "logger.hideWelcomeMessage": "true",
    **{f"theme.{name}": value for name, value in _BOTH.items()},
    **{f"theme.light.{name}": value for name, value in _LIGHT.items()},
    **{f"theme.dark.{name}": value for name, value in _DARK.items()},
}
"""Options that do not depend on where the app is served. Colours tell severities apart for the colour-blind too."""

STYLE: Final = """<style>
[data-testid="stMainBlockContainer"] { padding: 2.6rem 2.4rem 3rem; max-width: 1560px; }
.stApp:has([data-testid="stExpandSidebarButton"]) [data-testid="stMainBlockContainer"] { padding-top: 3.9rem; }
[data-testid="stTable"] :is(td, th), [data-testid="stTable"] :is(td, th) * {
  overflow-wrap: anywhere !important; white-space: normal !important; }
[data-testid="stSidebarHeader"] { height: 2.2rem; padding-bottom: 0; margin-bottom: 0; }
h1, h2 { font-size: 1.5rem !important; padding: 0 0 .3rem !important; }
h2 small, h2 .stMarkdownColoredText { font-weight: 400; }
h3, h4 { font-size: 1.12rem !important; padding: .5rem 0 .3rem !important; }
h5 { font-size: 1rem !important; padding: .4rem 0 .2rem !important; }
[data-testid="stPageLink"] p { white-space: normal !important; overflow: visible !important; }
[class*="st-key-unmarked-"] ul { list-style: none; padding-left: 0; margin-left: 0; }
[class*="st-key-unmarked-"] li { margin: 0 0 .25rem; padding-left: 1.25rem; text-indent: -1.25rem; }
[class*="st-key-unmarked-"] li * { text-indent: 0; }
[data-testid="stSidebar"] [data-testid="stHeading"], [data-testid="stSidebar"] h4 { margin-bottom: .4rem !important; }
[data-testid="stSidebar"] [role="combobox"] { text-overflow: ellipsis; font-size: .9rem; padding-right: 0; }
[data-testid="stSidebar"] button[aria-label="Clear value"] { display: none; }
[data-trigger="ComboBox"] { min-width: min(26rem, 90vw); }
[data-testid="stHeaderActionElements"] { display: none; }
.st-key-panels .modebar-container, .st-key-compare-grid .modebar-container { display: none; }
.st-key-facts, [class*="st-key-cards-"], [class*="st-key-beside-"] {
  display: flex !important; flex-flow: row wrap !important; align-items: stretch; gap: .8rem; }
.st-key-facts > * { flex: 1 1 10.5rem !important; width: auto !important; }
[class*="st-key-cards-"] > * { flex: 1 1 25rem !important; width: auto !important; min-width: 0; }
[class*="st-key-beside-"] { gap: 1rem 2rem; }
[class*="st-key-beside-"] > * { flex: 1 1 22rem !important; width: auto !important; min-width: 0; }
[class*="st-key-proofs-"] {
  display: grid !important; gap: .1rem 1rem; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
.st-key-causes [data-testid="stColumn"] { min-width: min(14rem, 100%); }
.st-key-causes [data-testid="stColumn"] ~ [data-testid="stColumn"] { min-width: min(28rem, 100%); }
@media (min-width: 1060px) { [data-testid="stColumn"]:has(> * > * > .st-key-causes-menu) {
  position: sticky; top: 4rem; align-self: flex-start; max-height: calc(100vh - 5rem); overflow-y: auto; } }
.st-key-unmarked-ruled_out ul, .st-key-unmarked-ruled_out-rest ul, .st-key-unmarked-also_fits ul {
  columns: 26rem; column-gap: 2rem; }
.st-key-unmarked-ruled_out li, .st-key-unmarked-ruled_out-rest li, .st-key-unmarked-also_fits li { break-inside: avoid; }
:is(a, button, summary):focus-visible, [data-baseweb="select"]:focus-within, [data-testid="stPageLink"] a:focus-visible {
  outline: 2px solid #1A85CC !important; outline-offset: 2px; }
[class*="st-key-evidence-"] [data-testid="stPageLink"] a { padding: .05rem .4rem; }
</style>"""
"""What streamlit's own options do not reach."""
