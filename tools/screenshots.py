"""Make the pictures of the app's pages that the documentation shows: docs/images/<page>.png, of demo runs that have a fault.

Needs a Chromium and Playwright. The pictures are 1440 by 900 pixels; those in Chinese end in -zh, those on dark ground in -dark.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

IMAGES: Final = ROOT / "docs" / "images"
DEMO: Final = ROOT / "rl_doctor" / "demo"
SIZE: Final = {"width": 1440, "height": 900}
STALE: Final = "run=stale-old-logprob.parquet"
SHOTS: Final = (
    ("diagnosis", f"?{STALE}"),
    ("diagnosis-zh", f"?{STALE}&lang=zh"),
    ("diagnosis-dark", f"?{STALE}"),
    ("run", f"run?{STALE}"),
    ("run-metric", f"run?{STALE}&metric=mismatch.first_k3&code=RLD101&step=5"),
    ("distributions", f"distributions?{STALE}"),
    ("groups", "groups?run=healthy.parquet"),
    ("rollouts", f"rollouts?{STALE}&code=RLD101"),
    ("tokens", f"tokens?{STALE}&step=12"),
    ("compare", "compare?run=reward-unit.parquet&other=healthy.parquet"),
    ("recompute", "recompute?run=logged-kl.parquet"),
    ("data", f"data?{STALE}"),
)
"""Name of each picture, and the address that it is of."""


def main(chosen: list[str]) -> int:
    """Make the pictures, or those of the names given."""
    from playwright.sync_api import sync_playwright

    from tests.integration.app.browser import FLAGS, Reader, chromium, served

    path = chromium()
    if path is None:
        print("no Chromium found: install one, then make screenshots again")
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        runs = [Path(shutil.copy(run, place)) for run in sorted(DEMO.glob("*.parquet"))]
        with served(*runs, cwd=Path(place)) as base:
            browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
            for name, address in SHOTS:
                if not chosen or name in chosen:
                    _shoot(browser, Reader, base, name, address)
            browser.close()
    return 0


def _shoot(browser: Any, reader: Any, base: str, name: str, address: str) -> None:
    scheme = "dark" if name.endswith("-dark") else "light"
    context = browser.new_context(viewport=SIZE, locale="en-US", color_scheme=scheme)
    looking = reader(context.new_page(), base)
    looking.open(address)
    looking.page.wait_for_timeout(1500)
    looking.page.screenshot(path=IMAGES / f"{name}.png")
    print(f"docs/images/{name}.png", *looking.troubles())
    context.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
