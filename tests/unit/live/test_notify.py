"""Alerts through apprise, to a server of our own; addresses are secrets."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("apprise")

from rl_doctor.errors import UsageError
from rl_doctor.live.channels import NotSentError
from rl_doctor.live.notify import addresses, channels
from rl_doctor.live.words import Message
from tests.unit.live.server import received

MESSAGE = Message("error", "ERROR in a: b", "first line\nsecond *line* <b>&amp;</b> \\n {x}")
SECRET = "TIiajkdnlazkcOXrIdevi7FQ"  # noqa: S105 - of nobody


def test_a_message_arrives_as_it_is() -> None:
    with received() as server:
        (channel,) = channels([server.url()])
        channel.send(MESSAGE)
        channel.send(Message("info", "a writes again", "x"))
    assert [(each["title"], each["message"], each["type"]) for each in server.got] == [
        (MESSAGE.title, MESSAGE.body, "failure"),
        ("a writes again", "x", "info"),
    ]


def test_a_refusal_is_told_with_its_status_and_without_the_address(capfd: pytest.CaptureFixture[str]) -> None:
    with received() as server:
        server.status = 404
        (channel,) = channels([server.url(SECRET)])
        with pytest.raises(NotSentError, match=r"^HTTP 404$") as raised:
            channel.send(MESSAGE)
    with pytest.raises(NotSentError, match="no answer"):
        channel.send(MESSAGE)
    out, err = capfd.readouterr()
    assert SECRET not in f"{out}{err}{raised.value}{channel.name}{channel.ident}"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"slack://T1JJ3T3L2/A1BRTD4JD/{SECRET}/#general", "Slack"),
        (f"https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}", "Slack"),
        (f"feishu://{SECRET}", "Feishu"),
        (f"lark://{SECRET}", "Lark (Feishu)"),
        (f"dingtalk://{SECRET}", "DingTalk"),
        ("wecombot://12345678-1234-1234-1234-123456789012", "WeCom Bot"),
        (f"mailto://user:{SECRET}@gmail.com", "E-Mail"),
    ],
)
def test_what_is_known(url: str, name: str) -> None:
    (channel,) = channels([url])
    assert channel.name == name
    assert [each.name for each in channels([url, "json://localhost"])] == [f"{name} (address 1)", "JSON (address 2)"]


@pytest.mark.parametrize("url", [f"nope://{SECRET}", SECRET, f"slack://{SECRET}", f"json://:{SECRET}", f"{SECRET}://x", " "])
def test_an_address_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match="address 2 of 2") as raised:
        channels(["json://localhost", url])
    assert SECRET not in str(raised.value)


def test_addresses_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_DOCTOR_NOTIFY", " json://a/b,c \n feishu://x ")
    assert addresses(["json://d", "feishu://x"]) == ["json://d", "feishu://x", "json://a/b,c"]
    monkeypatch.delenv("RL_DOCTOR_NOTIFY")
    assert addresses([]) == []


def test_without_apprise_the_command_that_installs_it_is_told() -> None:
    program = (
        "import sys; sys.modules['apprise'] = None\n"
        "from rl_doctor.cli.main import main; main(['watch', 'nowhere', '--notify', 'json://localhost'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rl-doctor: error: --notify needs apprise: pip install 'rl-doctor[notify]'\n"
