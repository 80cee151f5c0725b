"""``RunInfo`` to and from the JSON of ``run.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from rl_doctor.errors import InputError, suggestion
from rl_doctor.schema import SCHEMA_VERSION, RunConfig, RunInfo
from rl_doctor.store.members import IMPORTED_MEMBER

_CONFIG_FIELDS: Final = tuple(field.name for field in fields(RunConfig))
_INFO_FIELDS: Final = tuple(field.name for field in fields(RunInfo) if field.name not in ("config", "extra"))
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "float": (int, float),
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
}
_ITEMS: Final[Mapping[type, str]] = {dict: "an object", int: "a whole number", str: "a text"}
_WORDS: Final = {"float": "a number", "int": "a whole number", "str": "a text", "bool": "true or false"}
_VOCABULARY: Final[Mapping[str, tuple[str, ...]]] = {
    "trainer": ("trl", "verl", "openrlhf", "nemo-rl", "slime", "areal", "skyrl", "torchtune", "custom"),
    "algorithm": (
        "grpo", "dr_grpo", "dapo", "gspo", "gmpo", "cispo", "sapo", "rloo", "ppo", "reinforce", "reinforce_plus_plus", "remax",
        "dpo", "ipo", "kto", "simpo", "opd", "sft",
    ),
    "config.kl_estimator": ("k1", "k2", "k3", "abs"),
    "config.loss_agg": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
    "config.adv_estimator": ("grpo", "dr_grpo", "rloo", "gae", "reinforce", "reinforce_plus_plus", "remax"),
    "config.adv_norm": ("group", "batch", "none"),
}  # fmt: skip
"""Words that are common in a text of the description; others are fine unless they look like a slip of one of these."""
_NEAR: Final = 0.8
_NEAR_WORD: Final = 0.75
_SHOWN: Final = 5


def info_to_json(info: RunInfo) -> dict[str, Any]:
    """The JSON-compatible form of ``run.json``; unknown (None) members are left out."""
    document: dict[str, Any] = {}
    for name in _INFO_FIELDS:
        value = getattr(info, name)
        if value is not None:
            document[name] = (
                [dict(item) if isinstance(item, Mapping) else item for item in value] if isinstance(value, tuple) else value
            )
    document["config"] = {
        name: _plain(getattr(info.config, name)) for name in _CONFIG_FIELDS if getattr(info.config, name) is not None
    }
    for name, value in (info.extra or {}).items():
        document.setdefault(name, value)
    return document


def info_from_json(document: Any, where: str) -> RunInfo:
    """Read the JSON of ``run.json``.

    Members that the schema does not know go to ``extra``, unknown members of ``config`` to ``config.native``; ``doubts`` says so.

    Args:
        document: the parsed JSON.
        where: what messages call it, e.g. the file's name.

    Raises:
        InputError: it is not an object, has a member of the wrong type, or a newer schema version.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: the run's description must be a JSON object, not {type(document).__name__}")
    version = document.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or isinstance(version, bool):
        raise InputError(f"{where}: schema_version must be a whole number, not {version!r}")
    if version > SCHEMA_VERSION:
        raise InputError(f"{where}: schema version {version} is newer than {SCHEMA_VERSION}; install a newer rl-doctor")
    values = {name: _info_value(name, document[name], where) for name in _INFO_FIELDS if document.get(name) is not None}
    extra = {name: value for name, value in document.items() if name not in _INFO_FIELDS and name != "config"}
    given = document.get("config") or {}
    config = config_from_json(given, where)
    if unknown := [name for name in given if name not in _CONFIG_FIELDS]:
        values["unknown_config"] = tuple(sorted({*values.get("unknown_config", ()), *map(str, unknown)}))
    return RunInfo(**values, config=config, extra=extra or None)


def config_from_json(document: Any, where: str) -> RunConfig:
    """Read the ``config`` member; see ``info_from_json``."""
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: config must be a JSON object, not {type(document).__name__}")
    values: dict[str, Any] = {}
    for field in fields(RunConfig):
        value = document.get(field.name)
        if value is None:
            continue
        values[field.name] = _checked(f"config.{field.name}", value, str(field.type), where)
    unknown = {name: value for name, value in document.items() if name not in _CONFIG_FIELDS}
    if unknown:
        values["native"] = {**unknown, **(values.get("native") or {})}
    return RunConfig(**values)


def doubts(info: RunInfo) -> tuple[str, ...]:
    """What the description says in vain: members that nothing reads, and words that are nearly known ones. One sentence each."""
    members = [*_INFO_FIELDS, "config", *(f"config.{name}" for name in _CONFIG_FIELDS)]
    told, foreign = [], []
    for name in (
        *(name for name in info.extra or () if name != IMPORTED_MEMBER),
        *(f"config.{name}" for name in info.unknown_config or ()),
    ):
        short = name.removeprefix("config.")
        elsewhere = next((known for known in (short, f"config.{short}") if known in members), None)
        hint = f"; did you mean {elsewhere}?" if elsewhere else suggestion(name, members, close=_NEAR)
        if hint:
            told.append(f"{name!r} in the run's description is not known and has no effect{hint}")
        else:
            foreign.append(name)
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        told.append(f"kept from the run's description, but without effect: {', '.join(foreign[:_SHOWN])}{more}")
    for name, known in _VOCABULARY.items():
        word = getattr(info.config, name.removeprefix("config.")) if name.startswith("config.") else getattr(info, name)
        if isinstance(word, str) and word.lower() not in known and (hint := suggestion(word, known, close=_NEAR_WORD)):
            told.append(f"{name} is {word!r}, which is not known{hint}")
    return tuple(told)


def parse_info(text: str | bytes, where: str) -> RunInfo:
    """Parse the text of ``run.json``.

    Raises:
        InputError: it is not JSON, or see ``info_from_json``.
    """
    return info_from_json(parse_json(text, where), where)


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON; a syntax error becomes an ``InputError`` that names ``where``."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error}); repair it or remove it") from error


def _info_value(name: str, value: Any, where: str) -> Any:
    annotation = {field.name: str(field.type) for field in fields(RunInfo)}[name]
    if annotation.startswith("tuple"):
        if not isinstance(value, list | tuple):
            raise InputError(f"{where}: {name} must be a list, not {value!r}")
        kind: type = dict if "Mapping" in annotation else str if "str" in annotation else int
        if bad := [item for item in value if not isinstance(item, kind) or isinstance(item, bool)]:
            raise InputError(f"{where}: {name} holds {bad[0]!r} where {_ITEMS[kind]} belongs")
        return tuple(value)
    return _checked(name, value, annotation, where)


def _checked(name: str, value: Any, annotation: str, where: str) -> Any:
    if annotation.startswith("Mapping"):
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: {name} must be a JSON object, not {value!r}")
        return dict(value)
    kind = annotation.partition(" ")[0]
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise InputError(f"{where}: {name} must be {_WORDS[kind]}, not {value!r}")
    number: Any = value
    return float(number) if kind == "float" else number


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
