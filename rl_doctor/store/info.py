"""``RunInfo`` to and from the JSON of ``run.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, Final

from rl_doctor.errors import InputError, suggestion
from rl_doctor.schema import MEMBERS, SCHEMA_VERSION, SETTINGS, RunConfig, RunInfo, Setting
from rl_doctor.store.members import IMPORTED_MEMBER, STOP_MEMBER

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
_NEAR: Final = 0.8
_NEAR_WORD: Final = 0.75
_SHOWN: Final = 5
_PLAIN: Final[tuple[type[Any], ...]] = (bool, int, float, str)


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


def described(info: RunInfo | Mapping[str, Any] | None) -> tuple[RunInfo, tuple[str, ...]]:
    """Read a description that a program hands over, and leave nothing in it that JSON cannot hold.

    Args:
        info: a description, or a mapping like ``run.json``, whose values may be of any type.

    Returns:
        The description, and one sentence for each value that was left out or is kept as a text.

    Raises:
        InputError: its schema version is newer, or none.
    """
    document = info_to_json(info) if isinstance(info, RunInfo) else dict(info or {})
    told: list[str] = []
    config = document.pop("config", None)
    found = {str(name): _storable(str(name), value, told) for name, value in document.items()}
    if isinstance(config, Mapping):
        found["config"] = {str(name): _storable(f"config.{name}", value, told) for name, value in config.items()}
    elif config is not None:
        told.append(f"config in the run's description must be a mapping, not {type(config).__name__}; it is left out")
    if _is_number(found.get("eos_token_ids")):
        found["eos_token_ids"] = [found["eos_token_ids"]]
    for name in [name for name in _INFO_FIELDS if name != "schema_version" and found.get(name) is not None]:
        _keep_if_right(found, name, partial(_info_value, name, found[name], "info"), told)
    given = found.get("config", {})
    for field in fields(RunConfig):
        if given.get(field.name) is not None:
            check = partial(_checked, f"config.{field.name}", given[field.name], str(field.type), "info")
            _keep_if_right(given, field.name, check, told)
    return info_from_json(found, "info"), tuple(told)


def _keep_if_right(values: dict[str, Any], name: str, check: Callable[[], object], told: list[str]) -> None:
    """Leave a value out that its check refuses."""
    try:
        check()
    except InputError as error:
        del values[name]
        told.append(f"{str(error).removeprefix('info: ')}; it is left out of the run's description")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _storable(name: str, value: Any, told: list[str]) -> Any:
    """A value as JSON can hold it: a number of numpy or PyTorch as that number, an array as a list, anything else as its text."""
    if value is None or type(value) in _PLAIN:
        return value
    for kind in _PLAIN:
        if isinstance(value, kind):  # one of numpy's, or an enumeration
            return str.__str__(value) if kind is str else kind(value)
    if isinstance(value, Mapping):
        return {str(key): _storable(f"{name}.{key}", item, told) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(name, item, told) for item in value]
    try:
        listed = value.tolist()
        if listed is None or isinstance(listed, bool | int | float | str | list):
            return _storable(name, listed, told)
    except Exception:  # noqa: BLE001, S110 - whatever has no plain form has a text
        pass
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a text is the caller's code
        text = type(value).__name__
    line = f"{name} in the run's description is a {type(value).__name__}, which JSON cannot hold: it is taken as {text[:80]!r}"
    if line not in told:
        told.append(" ".join(line.split()))
    return text.encode(errors="backslashreplace").decode()


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
    """What the description says in vain: members that nothing reads, and values that make no sense. One sentence each."""
    members = [*_INFO_FIELDS, "config", *(f"config.{name}" for name in _CONFIG_FIELDS)]
    told, foreign = [], []
    for name in (
        *(name for name in info.extra or () if name not in {IMPORTED_MEMBER, STOP_MEMBER}),
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
    values = [(name, getattr(info, name), known) for name, known in MEMBERS.items()]
    values += [(f"config.{name}", getattr(info.config, name), known) for name, known in SETTINGS.items()]
    return (*told, *(doubt for name, value, known in values if (doubt := _doubt(name, value, known))))


def _doubt(name: str, value: Any, known: Setting) -> str | None:
    """What is wrong with a value, and the right one that is nearest to it."""
    if isinstance(value, str) and known.words:
        if value in known.words or (not known.closed and value.lower() in known.words):
            return None
        hint = suggestion(value, known.words, close=_NEAR_WORD)
        if known.closed and not hint:
            hint = f"; it may be {', '.join(known.words[:-1])} or {known.words[-1]}"
        return f"{name} is {value!r}, which is not known{hint}" if hint else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if known.least is not None and not value >= known.least:
        return f"{name} is {value:g}, which makes no sense; it must be at least {known.least:g}"
    if known.most is not None and value > known.most:
        return f"{name} is {value:g}, which makes no sense; it must be at most {known.most:g}"
    return None


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
