"""The heat map of tokens in a real browser: what a response holds stays text, whatever it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.app.browser import served
from tests.integration.app.written import IMAGE, LONG, SCRIPT, STEPS, VOCABULARY, write, write_tokenizer

pytest.importorskip("streamlit")

PATIENCE = 60_000
"""Milliseconds that a busy machine may take to show a page."""
STUB = """
import json
class Tokenizer:
    @classmethod
    def from_file(cls, path):
        made = cls()
        made.texts = {at: text for text, at in json.loads(open(path).read())["model"]["vocab"].items()}
        return made
    def decode(self, ids, skip_special_tokens=True):
        return "".join(self.texts[one] for one in ids)
"""
"""Stands for the library where it is not installed: the browser is what is tested here."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("map")
    run, tokenizer = write(folder / "run"), write_tokenizer(folder / "tokenizer.json")
    environment = {}
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        (folder / "stub").mkdir()
        (folder / "stub" / "tokenizers.py").write_text(STUB)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder / "stub"), os.environ.get("PYTHONPATH")]))
    with served(run, "--tokenizer", tokenizer, cwd=folder, environment=environment) as found:
        yield found.rstrip("/")


@pytest.fixture
def told() -> list[str]:
    """Dialogs and errors of the page."""
    return []


@pytest.fixture
def page(browser: Any, told: list[str]) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1400, "height": 1000}, locale="en-US")
    opened.set_default_timeout(PATIENCE)
    opened.on("dialog", lambda dialog: (told.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    opened.on("pageerror", lambda error: told.append(f"error: {error}"))
    yield opened
    opened.close()


def test_markup_in_a_response_is_shown_as_characters(page: Any, address: str, told: list[str]) -> None:
    page.goto(f"{address}/tokens?step=2")
    page.locator(".map span").first.wait_for()
    assert page.locator(".map span").nth(0).text_content() == SCRIPT
    assert page.locator(".map span").nth(1).text_content() == IMAGE
    assert page.locator(".map span").count() == 40
    for name in ("script", "img", "a", "strong"):
        assert page.locator(f".tokens {name}").count() == 0
    page.locator(".map span").nth(1).hover()
    assert page.locator(".told dd").nth(1).text_content() == IMAGE
    page.goto(f"{address}/rollouts?step=2")
    page.get_by_text(SCRIPT).first.wait_for()
    assert page.locator("img[src='x']").count() == 0
    assert told == []


def test_hovering_tells_all_numbers_and_masked_tokens_have_no_colour(page: Any, address: str, told: list[str]) -> None:
    page.goto(f"{address}/tokens?step=2&metric=mismatch.abs")
    spans = page.locator(".map span")
    spans.nth(12).hover()
    terms, values = (page.locator(f".told {name}").all_text_contents() for name in ("dt", "dd"))
    numbers = dict(zip(terms, values, strict=True))
    assert numbers["position"] == "12"
    assert numbers["old_logprob"] == "-999"
    assert numbers["token"].replace("⏎", "") in VOCABULARY
    assert {"token_id", "ratio", "entropy", "rollout_logprob", "ref_logprob", "advantage"} <= numbers.keys()
    assert "masked" in spans.nth(12).get_attribute("class")
    assert spans.nth(12).get_attribute("style") is None
    assert "unknown" not in (spans.nth(3).get_attribute("class") or "")
    assert "rgba" in spans.nth(3).get_attribute("style")
    page.goto(f"{address}/tokens?step=2&metric=policy.ratio_mean")
    page.locator(".map span.unknown").first.wait_for()
    assert spans.nth(5).get_attribute("class") == "unknown"
    assert told == []


def test_keys_move_and_enter_keeps_the_token_in_the_address(page: Any, address: str, told: list[str]) -> None:
    page.goto(f"{address}/tokens?step={STEPS}&position=5000")
    page.locator(".map span.at").wait_for()
    place = page.locator(".told dd").first
    assert place.text_content() == "5000"
    assert page.locator(".map span").count() == 4_000
    box, map_box = page.locator(".map span.at").bounding_box(), page.locator(".map").bounding_box()
    assert map_box["y"] <= box["y"] <= map_box["y"] + map_box["height"]
    page.locator(".map").focus()
    for key, expected in (("ArrowRight", "5001"), ("ArrowLeft", "5000"), ("End", "7999"), ("Home", "4000")):
        page.keyboard.press(key)
        assert place.text_content() == expected
    page.keyboard.press("ArrowDown")
    below = int(place.text_content())
    assert below > 4000
    page.keyboard.press("ArrowUp")
    assert int(place.text_content()) < below
    page.keyboard.press("PageDown")
    page.keyboard.press("Enter")
    position = place.text_content()
    page.wait_for_url(re.compile(f"position={position}(&|$)"))
    page.reload()
    page.locator(".map span.at").wait_for()
    assert place.text_content() == position
    assert told == []


def test_pages_of_a_long_response(page: Any, address: str, told: list[str]) -> None:
    page.goto(f"{address}/tokens?step={STEPS}")
    page.get_by_text(f"Tokens 0 to 3999 of {LONG}").wait_for()
    page.get_by_role("link", name="later tokens").click()
    page.get_by_text(f"Tokens 4000 to 7999 of {LONG}").wait_for()
    page.locator(".map span.at").wait_for()
    page.get_by_role("link", name="later tokens").click()
    page.get_by_text(f"Tokens 8000 to {LONG - 1} of {LONG}").wait_for()
    page.wait_for_url("**position=8000**")
    assert told == []


def test_the_colour_goes_into_the_address(page: Any, address: str, told: list[str]) -> None:
    page.goto(f"{address}/tokens?step=2")
    page.get_by_role("radio", name="entropy").or_(page.get_by_role("button", name="entropy")).first.click()
    page.wait_for_url("**metric=policy.entropy**")
    page.reload()
    page.get_by_text("Entropy of the policy at the token").wait_for()
    assert told == []


def test_from_a_response_of_the_group_to_its_tokens(page: Any, address: str, told: list[str]) -> None:
    page.goto(f"{address}/rollouts?step=2")
    page.get_by_role("link", name="tokens", exact=True).last.click()
    page.locator(".map span").first.wait_for()
    page.wait_for_url(re.compile(r"/tokens\?.*sequence=\d+"))
    page.get_by_role("link", name="its group side by side").click()
    page.get_by_text("Worth looking at").wait_for()
    assert told == []
