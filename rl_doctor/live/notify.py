"""Alerts through apprise: webhooks, Slack, Feishu, Lark, DingTalk, WeCom, e-mail and whatever else it knows."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rl_doctor.errors import UsageError
from rl_doctor.live.channels import NotSentError
from rl_doctor.live.words import Message

VARIABLE: Final = "RL_DOCTOR_NOTIFY"
"""Addresses, separated by white space: what stands on a command line can be read by every user of the machine."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15})://")
_STATUS: Final = re.compile(r"error[=: ]+(\d{3})\b")
_KIND: Final = {"error": "failure", "warning": "warning", "info": "info"}


def addresses(given: Iterable[str]) -> list[str]:
    """Addresses of the command line and of the environment, each once."""
    return list(dict.fromkeys([*given, *os.environ.get(VARIABLE, "").split()]))


def channels(urls: Sequence[str]) -> list[Address]:
    """A channel for each address.

    Raises:
        UsageError: apprise is not installed, or does not know what an address is; the address is not shown.
    """
    if not urls:
        return []
    try:
        with warnings.catch_warnings():  # of what it imports itself
            warnings.simplefilter("ignore")
            import apprise
    except ImportError as error:
        raise UsageError("--notify needs apprise: pip install 'rl-doctor[notify]'") from error
    logger = logging.getLogger("apprise")
    logger.propagate = False  # its lines may show an address
    logger.addHandler(logging.NullHandler())
    asset = apprise.AppriseAsset(app_id="rl-doctor", app_desc="rl-doctor", app_url="", async_mode=False)
    found = []
    for number, url in enumerate(urls, 1):
        service = apprise.Apprise(asset=asset)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = service.add(url) and len(service) > 0
        if not known:
            scheme = f", {match[1]}://..." if (match := _SCHEME.match(url)) else ""
            raise UsageError(
                f"--notify: address {number} of {len(urls)}{scheme} is none that apprise knows (not shown here: it may hold a "
                "secret); see https://appriseit.com/services"
            )
        found.append(Address(service, url, number if len(urls) > 1 else None))
    return found


class Address:
    """An address that apprise sends to.

    Args:
        service: apprise, with that address alone.
        url: the address, which is never shown.
        number: its place among several; None where it is the only one.
    """

    def __init__(self, service: Any, url: str, number: int | None) -> None:
        self._service = service
        self.name = str(service[0].service_name) + ("" if number is None else f" (address {number})")
        self.ident = hashlib.sha256(url.encode(errors="replace")).hexdigest()[:16]

    def send(self, message: Message) -> None:
        """As of ``Channel``."""
        heard = _Heard()
        logger = logging.getLogger("apprise")
        logger.addHandler(heard)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sent = self._service.notify(
                    title=message.title, body=message.body, notify_type=_KIND[message.severity], body_format="text"
                )
        finally:
            logger.removeHandler(heard)
        if not sent:
            raise NotSentError(f"HTTP {heard.status}" if heard.status else "no answer, or refused")


class _Heard(logging.Handler):
    """Listens for the one thing that is safe to repeat of what apprise logs: the status of a server's answer."""

    status = ""

    def emit(self, record: logging.LogRecord) -> None:
        if match := _STATUS.search(record.getMessage()):
            self.status = match[1]
