"""Every sentence of the source has its Chinese, with the same placeholders, numbers and names."""

from __future__ import annotations

import re
from collections import Counter

from rl_doctor.i18n.templates import entries, key_of, placeholders, sentences, terms
from tools import messages

_HOLE = re.compile(r"\{\d+#?\}")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CODE = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+)+|[a-z]{2,}\.[a-z_]{2,}|`[^`]+`|RLD\d+")
_CJK = re.compile("[\u3400-\u9fff]")


def test_every_template_of_the_source_has_chinese() -> None:
    found = messages.templates()
    assert len(found) > 3000
    told = messages.problems(found, sentences(), messages.catalogues())
    assert [line for line in told if "no Chinese" in line or "differ" in line] == [], "see docs/guide/languages.md"


def test_placeholders_are_the_same() -> None:
    assert not [key for key, text in sentences().items() if placeholders(key) != placeholders(text)]


def test_no_number_and_no_name_is_lost() -> None:
    for english, chinese in sentences().items():
        source, target = _HOLE.sub("", english), _HOLE.sub("", chinese)
        assert Counter(_NUMBER.findall(source)) == Counter(_NUMBER.findall(target)), english
        assert set(_CODE.findall(source)) <= set(_CODE.findall(target)), english


def test_sentences_are_translated() -> None:
    for english, chinese in sentences().items():
        words = [word for word in re.findall(r"[A-Za-z]+", _HOLE.sub("", english)) if word not in terms()]
        if len(words) > 3:
            assert _CJK.search(chinese), english


def test_the_extractor_reads_literals_forms_and_numbers(tmp_path) -> None:
    source = tmp_path / "rl_doctor" / "rules" / "made.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        '"""Not a sentence."""\n'
        "def rule(view):\n"
        '    """Nor this one."""\n'
        "    words = f\"{n:,} row{'s' if n > 1 else ''} of {name} differ\"\n"
        '    words += f"; {share:.0%} of them by much"\n'
        '    raise ValueError("an error is told elsewhere")\n'
        '    yield Hit(words, "error", told.format("x") + " at the end", measured("a", "it is {:.3g} nat"))\n',
        "utf-8",
    )
    assert [found.text for found in messages.templates(tmp_path)] == [
        "{0#} row⟨s|⟩ of {1} differ",
        "{0}; {1#} of them by much",
        "{0} at the end",
        "it is {0#} nat",
    ]


def test_catalogues_are_written_in_the_order_of_the_source() -> None:
    found = messages.templates()[:3]
    texts = messages.written(found, {})
    (name,) = texts
    assert name == messages.catalogue_of(found[0])
    assert [english for english, _ in entries(texts[name])] == [key_of(one.text) for one in found]
    assert all(not chinese for _, chinese in entries(texts[name]))
    assert "no Chinese" in messages.problems(found, {}, texts)[0]


def test_a_key_is_bare_and_small() -> None:
    assert key_of("; The policy moved. ") == "the policy moved"
    assert key_of("KL to the policy") == "KL to the policy"
    assert key_of("A mask.") == "a mask"
    assert key_of(".03 nat") == ".03 nat"
