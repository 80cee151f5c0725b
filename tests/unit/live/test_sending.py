"""What channels are told: once for each onset, by however many watches, in however many tries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.i18n.speaker import Speaker
from rl_doctor.live.channels import SPACING, Alerts, NotSentError
from rl_doctor.live.looking import Look
from rl_doctor.live.memory import Memory
from rl_doctor.live.sending import COOL_DOWN, SEVERAL, Told, after, due, messages, settled
from rl_doctor.live.sight import Sight
from rl_doctor.live.words import Message, Words
from tests.unit.live.sights import sight, sights, trouble

WORDS = Words(Speaker())


class Recorded:
    """A channel that keeps what it is told, and fails when it is asked to."""

    name = "test"

    def __init__(self, ident: str = "one") -> None:
        self.ident = ident
        self.got: list[Message] = []
        self.failing: BaseException | None = None

    def send(self, message: Message) -> None:
        if self.failing is not None:
            raise self.failing
        self.got.append(message)


class Watched:
    """Alerts on one channel, with a clock that is set by hand."""

    def __init__(self, folder: Path, channel: Recorded | None = None, at: Any = "error") -> None:
        self.channel = channel or Recorded()
        self.said: list[str] = []
        self.time = 1e6
        self.alerts = Alerts(self.channel, Memory(folder), WORDS, at, self.said.append, lambda: self.time)

    def see(self, seen: Sight, after: float = 60.0, **options: Any) -> list[str]:
        """Titles of what one more look sends."""
        self.time += after
        before = len(self.channel.got)
        self.alerts.take(Look(seen), **options)
        return [message.title for message in self.channel.got[before:]]


def test_a_cause_is_told_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.see(sight()) == []
    assert watched.see(sight(trouble())) == ["ERROR in a: a is wrong."]
    for step in range(10, 20):
        assert watched.see(sight(trouble(steps=(3, step)), step=step)) == []


def test_a_watch_that_is_started_again_tells_only_what_is_new(tmp_path: Path) -> None:
    Watched(tmp_path).see(sight(trouble("a", "1"), status="complete", ended=True))
    again = Watched(tmp_path)
    assert again.see(sight(trouble("a", "1"), status="complete", ended=True), last=True) == []
    assert Watched(tmp_path).see(sight(trouble("a", "1"), trouble("b", "2"))) == ["ERROR in a: b is wrong."]


def test_another_address_and_another_run_are_told_for_themselves(tmp_path: Path) -> None:
    assert len(Watched(tmp_path).see(sight(trouble()))) == 1
    assert len(Watched(tmp_path, Recorded("two")).see(sight(trouble()))) == 1
    assert len(Watched(tmp_path).see(sight(trouble(), key="another run at the same path"))) == 1


def test_recovery_is_quiet_and_a_cause_that_comes_and_goes_cools_down(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert len(watched.see(sight(trouble()))) == 1
    for _ in range(5):
        assert watched.see(sight()) == []
        assert watched.see(sight(trouble())) == []
    assert watched.see(sight()) == []
    assert len(watched.see(sight(trouble()), after=COOL_DOWN)) == 1


def test_what_gets_worse_is_told_though_it_has_not_cooled_down(tmp_path: Path) -> None:
    watched = Watched(tmp_path, at="warning")
    assert watched.see(sight(trouble(severity="warning"))) == ["WARNING in a: a is wrong."]
    assert watched.see(sight(trouble())) == ["Worse, now ERROR, in a: a is wrong."]
    assert watched.see(sight(trouble(severity="warning"))) == []
    assert watched.see(sight(trouble())) == []


def test_what_is_below_the_level_is_not_told_until_it_is_not(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.see(sight(trouble(severity="warning"))) == []
    assert len(watched.see(sight(trouble()))) == 1


def test_what_came_and_went_between_two_looks_is_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.see(sight())
    assert len(watched.see(sight(trouble(going_on=False)))) == 1
    assert "since step 3, not since step 9" in watched.channel.got[0].body
    assert watched.see(sight(trouble(going_on=False))) == []


def test_many_at_once_are_one_message(tmp_path: Path) -> None:
    many = [trouble(name, name) for name in "abcdef"]
    watched = Watched(tmp_path)
    assert len(watched.see(sight(*many[:SEVERAL]))) == SEVERAL
    assert watched.see(sight(*many[:SEVERAL])) == []
    assert watched.see(sight(*many, trouble("g", "g"))) == ["ERROR in a: 4 problems at once"]
    assert all(f"{name} is wrong." in watched.channel.got[-1].body for name in "defg")


def test_what_follows_soon_waits_and_is_told_together(tmp_path: Path) -> None:
    many = [trouble(name, name) for name in "abcdef"]
    watched = Watched(tmp_path)
    assert len(watched.see(sight(many[0]))) == 1
    for count in range(2, 6):
        assert watched.see(sight(*many[:count]), after=SPACING / 10) == []
    assert watched.see(sight(*many[:5]), after=SPACING) == ["ERROR in a: 4 problems at once"]
    assert len(watched.see(sight(*many), after=1.0, last=True)) == 1, "nothing waits for a look that does not come"


def test_the_dead_man_is_told_once_and_once_when_it_lives(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.see(sight())
    assert watched.see(sight(quiet=130.0)) == ["a stopped writing 2 min ago"]
    assert watched.see(sight(quiet=500.0)) == []
    assert Watched(tmp_path).see(sight(quiet=900.0)) == [], "also by a watch that was started again"
    assert watched.see(sight(step=10)) == ["a writes again"]
    assert watched.see(sight(step=11)) == []
    assert watched.see(sight(step=11, ended=True, status="complete")) == []


def test_a_run_that_hangs_before_its_first_step(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.see(sight(quiet=2000.0, step=None)) == ["a stopped writing 33 min ago"]
    assert "no step has been written" in watched.channel.got[0].body
    assert watched.see(sight(step=1)) == ["a writes again"]


def test_a_recording_that_stopped_is_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.see(sight(ended=True, status="detached"), last=True) == ["a is not recorded any more"]


def test_what_could_not_be_sent_is_sent_later(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.channel.failing = NotSentError("HTTP 503")
    assert watched.see(sight(trouble("a", "1"))) == []
    assert watched.said == ["alerts: could not be sent to test (HTTP 503); tried again in 10 s, then less often"]
    assert watched.see(sight(trouble("a", "1"), trouble("b", "2"))) == []
    assert len(watched.said) == 1, "said once"
    watched.channel.failing = None
    assert len(watched.see(sight(trouble("a", "1"), trouble("b", "2")), after=300.0)) == 2
    assert watched.said[1:] == ["alerts: test can be reached again"]
    assert watched.see(sight(trouble("a", "1"), trouble("b", "2"))) == []


def test_of_two_messages_the_one_that_was_sent_is_not_sent_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    send = watched.channel.send

    def fails_at_the_second(message: Message) -> None:
        if watched.channel.got:
            raise NotSentError("no answer")
        send(message)

    watched.channel.send = fails_at_the_second  # type: ignore[method-assign]
    assert len(watched.see(sight(trouble("a", "1"), trouble("b", "2")))) == 1
    watched.channel.send = send  # type: ignore[method-assign]
    assert watched.see(sight(trouble("a", "1"), trouble("b", "2")), after=300.0) == ["ERROR in a: b is wrong."]


def test_an_exception_of_a_channel_is_told_without_its_words(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.channel.failing = RuntimeError("https://hooks.example/SECRET")
    watched.see(sight(trouble()))
    assert "RuntimeError" in watched.said[0]
    assert "SECRET" not in watched.said[0]


def test_a_disk_that_cannot_be_written_is_said_once_and_forgets_nothing_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    watched = Watched(tmp_path / "file" / "below")
    assert len(watched.see(sight(trouble()))) == 1
    assert watched.see(sight(trouble())) == []
    assert watched.see(sight()) == []
    assert len(watched.said) == 1
    assert "cannot keep what was sent" in watched.said[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"one": 3}', b'{"one": {"sight": {}, "sent": [], "last": 0}}'])
def test_a_damaged_memory_is_none(tmp_path: Path, content: bytes) -> None:
    Watched(tmp_path).see(sight(trouble()))
    (kept,) = tmp_path.glob("*.json")
    kept.write_bytes(content)
    assert len(Watched(tmp_path).see(sight(trouble()))) == 1
    assert Watched(tmp_path).see(sight(trouble())) == []


@given(st.lists(st.tuples(sights(), st.floats(0, 4000)), min_size=1, max_size=8), st.sampled_from(["error", "warning"]))
def test_a_cause_is_never_told_twice_in_its_cool_down_unless_it_got_worse(looks: list[tuple[Sight, float]], at: Any) -> None:
    told: Told | None = None
    now = 0.0
    lately: list[tuple[float, str, str]] = []
    for seen, later in looks:
        now += later
        events = due(told, seen, now, at)
        for event in events:
            if event.trouble is None:
                continue
            assert event.kind != "recovered"
            assert event.trouble.severity in {"error", at}
            same = [severity for time, name, severity in lately if name == event.trouble.name and now - time < COOL_DOWN]
            assert "error" not in same
            assert event.trouble.severity not in same
        lately += [(now, event.trouble.name, event.trouble.severity) for event in events if event.trouble is not None]
        told = settled(after(told, events, seen, now), seen)
        assert due(told, seen, now, at) == ()
        assert due(Told.from_json(told.to_json()), seen, now, at) == ()


@given(sights())
def test_every_event_is_in_one_message(seen: Sight) -> None:
    events = due(None, seen, 0.0, "warning")
    told = messages(events, seen, WORDS)
    assert sorted(map(id, (event for group, _ in told for event in group))) == sorted(map(id, events))
    assert all(message.title and "\n" not in message.title and message.body for _, message in told)


def test_a_message_says_what_there_is_to_know() -> None:
    seen = replace(sight(trouble(steps=(3, 8))), path="runs/my run")
    ((_, message),) = messages(due(None, seen, 0.0, "error"), seen, WORDS)
    assert message.severity == "error"
    assert message.title == "ERROR in my run: a is wrong."
    assert message.body.splitlines() == [
        "since step 3, going on; the run is at step 9. Run: runs/my run",
        "a is wrong by 0.3",
        "Found by: RLD101 stale-old-logprob",
        "Numbers: mismatch.k3 0.3 nat",
        "Do first: mend it",
        "More: rl-doctor check 'runs/my run' · rl-doctor explain RLD101",
    ]


def test_a_message_in_chinese() -> None:
    seen = sight(trouble(), quiet=7300.0)
    (_, cause), (_, stalled) = messages(due(None, seen, 0.0, "error"), seen, Words(Speaker("zh")))
    assert cause.title.startswith("a 错误")
    assert stalled.title == "a 已停止写入 2 小时"
    assert "训练当前在第 9 步" in cause.body
