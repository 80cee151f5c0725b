from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from rl_doctor.html.writing import page_of
from rl_doctor.i18n.speaker import Speaker
from tests.unit.html.planted import CANARY, FIRST_ID, SCRIPT, write

DEMO = Path(__file__).parents[3] / "rl_doctor" / "demo"


class Seen(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def charts(self) -> dict[str, Any]:
        told = next(text for text in self.texts if text.startswith('{"figures"'))
        return dict(json.loads(told)["figures"])


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("planted") / f"{CANARY}Folder" / f"{CANARY}-run")


@pytest.fixture(scope="module")
def stale() -> str:
    return page_of(DEMO / "stale-old-logprob.parquet", Speaker())


def own(page: str) -> str:
    """A page without plotly's code, which is none of a run."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_nothing_is_loaded_and_no_other_script_runs(stale: str) -> None:
    seen = Seen(stale)
    policy = next(meta for meta in seen.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")["content"] or ""
    assert {"default-src 'none'", "connect-src 'none'", "form-action 'none'", "base-uri 'none'"} <= set(policy.split("; "))
    scripts = policy.split("script-src ")[1].split(";")[0].split()
    assert len(scripts) == 2
    assert all(source.startswith("'sha256-") for source in scripts)
    assert not seen.all("link")
    assert not seen.all("img")
    assert all(set(script) <= {"type", "id"} for script in seen.all("script"))
    assert all((link["href"] or "").startswith("#") for link in seen.all("a"))
    assert "url(" not in own(stale)
    assert stale.startswith("<!DOCTYPE html>")


def test_every_chart_has_a_sentence_and_a_table(stale: str) -> None:
    seen = Seen(stale)
    plots = [one for one in seen.all("div") if one.get("class") == "plot"]
    assert {one["id"] for one in plots} == set(seen.charts)
    assert len(plots) > 15
    assert all(one["role"] == "img" and len(one["aria-label"] or "") > 20 for one in plots)
    assert own(stale).count("<figure") == len(
        re.findall(r"<details class=\"table\">.*?</details>\s*</figure>", own(stale), re.DOTALL)
    )
    places = {one["id"] for _, one in seen.elements if one.get("id")}
    assert {(link["href"] or "")[1:] for link in seen.all("a")} <= places
    assert seen.all("html")[0]["lang"] == "en"


def test_it_says_what_check_says(stale: str) -> None:
    for told in ("old_logprob is computed with outdated weights", "RLD101 stale-old-logprob", "5 of 6 signs seen", "Ruled out"):
        assert told in stale
    assert "This file holds the path of the run" in stale
    assert "Redacted" not in stale


def test_chinese() -> None:
    page = page_of(DEMO / "padding-in-mask.parquet", Speaker("zh"))
    assert '<html lang="zh-CN">' in page
    assert "掩码与补齐后的 batch 一样宽" in page
    assert "本文件包含训练任务的路径" in page


def test_texts_of_a_run_are_text(tmp_path: Path) -> None:
    page = page_of(write(tmp_path / "run", "uid", script=SCRIPT), Speaker())
    seen = Seen(page)
    assert len(seen.all("script")) == 3
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    assert "sample-1" in page
    assert "8675" in page


def test_nothing_of_a_run_is_left_when_it_is_redacted(planted: Path) -> None:
    kept, page = page_of(planted, Speaker()), page_of(planted, Speaker(), redact=True)
    assert len(re.findall(CANARY, kept, re.IGNORECASE)) > 100
    assert str(FIRST_ID)[:4] in own(kept)
    found = [page[max(0, one.start() - 60) : one.end() + 20] for one in re.finditer(CANARY, page, re.IGNORECASE)]
    assert found == []
    assert re.findall(rf"\D{str(FIRST_ID)[:5]}\d\d\D", page) == []
    assert str(planted.parents[1]) not in page
    assert "Redacted" in page
    assert "sample-1" in page
    assert page.count("h_") > 20


def test_hashes_are_the_same_in_a_file_and_differ_between_files(planted: Path) -> None:
    pages = [page_of(planted, Speaker(), redact=True) for _ in range(2)]
    hashes = [re.findall(r"h_[0-9a-f]{8}", page) for page in pages]
    assert not set(hashes[0]) & set(hashes[1])
    assert len(set(hashes[0])) < len(hashes[0])


@pytest.mark.parametrize("redact", [False, True])
def test_a_log(tmp_path: Path, redact: bool) -> None:
    path = tmp_path / f"{CANARY}.jsonl"
    path.write_text("".join(json.dumps({"step": step, "actor/kl_loss": 0.1, f"{CANARY}/x": 1.0}) + "\n" for step in range(40)))
    page = page_of(path, Speaker(), redact=redact)
    assert (CANARY in page) is not redact
    assert len(page) < 8e6
    assert "Groups are not known" in page


@pytest.mark.parametrize("redact", [False, True])
def test_a_run_without_anything_to_judge(tmp_path: Path, redact: bool) -> None:
    from rl_doctor import Recorder

    path = tmp_path / f"{CANARY}-empty"
    with Recorder(path, info={"trainer": "custom"}):
        pass
    page = page_of(path, Speaker(), redact=redact)
    assert "Nothing to judge" in page
    assert (CANARY in page) is not redact
    assert len(page) < 100_000
