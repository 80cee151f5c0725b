"""Columns of verl's batches: ragged or padded tensors become padded ones of the response, rows get their identity."""

from __future__ import annotations

import itertools
import re
import sys
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.verl_run import Entry
from rl_doctor.frozen import frozen
from rl_doctor.schema import MISSING_INT

ROW: Final = "rl_doctor_row"
"""Field that numbers the rows of an update on its way through mini-batches and micro-batches."""
_PADDING_UID: Final = re.compile(r"pad[0-9a-f]{32}")
_REASONS: Final[Mapping[str | None, str | None]] = {"aborted": "abort", "completed": None}
"""verl's words for why generation ended; it calls both an end and a cut completed."""
_VERSIONS: Final[Mapping[str, str]] = {"weight_version": "max_global_steps", "first_weight_version": "min_global_steps"}
"""Sequence column -> field of a batch, or of a row's ``extra_fields``, that holds it."""
_TOKENS: Final[Mapping[str, tuple[str, ...]]] = {
    "token_id": ("responses",),
    "loss_mask": ("loss_mask",),
    "old_logprob": ("old_log_probs",),
    "ref_logprob": ("ref_log_prob",),
    "rollout_logprob": ("rollout_log_probs",),
    "advantage": ("advantages",),
    "return": ("returns",),
    "old_value": ("values",),
    "token_reward": ("token_level_rewards", "rm_scores", "token_level_scores"),
    "is_weight": ("rollout_is_weights",),
    "old_entropy": ("entropy",),
}
"""Token column -> fields of a batch that hold it, the first one that is there."""
CRITIC_TOKENS: Final = ("token_id", "loss_mask", "return", "old_value", "token_reward")

Ints = NDArray[np.int64]


def plain(data: Any, name: str, default: Any = None) -> Any:
    """An entry of a batch that is no tensor: the value where it is one for the whole batch, or a list with one per row."""
    value = data.get(name, None)
    if value is None:
        return default
    if type(value).__name__ == "NonTensorData":
        return value.data
    return value.tolist() if hasattr(value, "tolist") else value


def per_row(data: Any, name: str) -> list[Any] | None:
    """An entry with one value per row, as a list; None where there is none."""
    value = data.get(name, None)
    values = value.tolist() if hasattr(value, "tolist") else value
    return list(values) if isinstance(values, (list, tuple)) and len(values) == len(data) else None


@frozen
class Lengths:
    """Tokens of the prompt and of the response of each row, ``[B]``, on the host."""

    prompt: Ints
    response: Ints

    def take(self, rows: Ints) -> Lengths:
        """Those of some rows."""
        return Lengths(self.prompt[rows], self.response[rows])


def lengths_of(data: Any) -> Lengths:
    """Lengths of a batch: of its ragged fields, or counted in its attention mask where it is padded.

    The batch is on the host, where verl's transfer queue and Ray leave it.
    """
    prompts, responses = data["prompts"], data["responses"]
    attention = data.get("attention_mask", None)
    if attention is None or attention.is_nested or prompts.is_nested or responses.is_nested:
        return Lengths(_counts(prompts), _counts(responses))
    attended, width = attention.cpu().numpy() != 0, prompts.shape[1]
    return Lengths(attended[:, :width].sum(axis=1), attended[:, width:].sum(axis=1))


def _counts(tokens: Any) -> Ints:
    """Tokens of each row of a ragged tensor, or of one whose rows are equally long."""
    if not tokens.is_nested:
        return np.full(tokens.shape[0], tokens.shape[1], np.int64)
    counts: Ints = np.diff(tokens.offsets().cpu().numpy()).astype(np.int64)
    return counts


class Padder:
    """Cuts the responses out of a micro-batch's tensors, on their device and without waiting for it.

    Args:
        lengths: those of the micro-batch's rows.
        width: padded width of the responses, as the loss sees it.
        device: where the tensors are.
    """

    def __init__(self, lengths: Lengths, width: int, device: Any) -> None:
        torch = sys.modules["torch"]
        position = np.arange(width)
        within = np.minimum(position, np.maximum(lengths.response - 1, 0)[:, None])
        total = lengths.prompt + lengths.response
        responses = _starts(lengths.response)[:, None] + within
        # A model's output at a position is about the token after it.
        outputs = (_starts(total) + lengths.prompt - 1)[:, None] + within
        self._width = width
        self._sizes = {int(lengths.response.sum()): responses, int(total.sum()): outputs}
        self._device = device
        self._torch = torch
        self._indices: dict[int, Any] = {}
        self.valid = torch.from_numpy(position < lengths.response[:, None]).to(device, non_blocking=True)

    def __call__(self, value: Any) -> Any:
        """``[B, width]`` of a field or of a model's output; None where it has another form."""
        if value is None or not hasattr(value, "detach"):
            return None
        value = value.detach()
        if not value.is_nested:
            return value if value.dim() == 2 and value.shape[1] == self._width else None
        values = value.values()
        size = int(values.shape[0])
        if values.dim() != 1 or size not in self._sizes:
            return None
        if size not in self._indices:
            index = np.clip(self._sizes[size], 0, max(size - 1, 0))
            self._indices[size] = self._torch.from_numpy(index).to(self._device, non_blocking=True)
        return values[self._indices[size]] if size else values.new_zeros((self.valid.shape[0], self._width))


def _starts(counts: Ints) -> Ints:
    starts: Ints = np.cumsum(counts) - counts
    return starts


def token_columns(data: Any, padder: Padder, names: tuple[str, ...]) -> dict[str, Any]:
    """Token columns of a micro-batch, ``[B, width]``, that its own fields hold."""
    keys = set(data.keys())
    found: dict[str, Any] = {}
    for name in names:
        field = next((field for field in _TOKENS[name] if field in keys), None)
        values = None if field is None else padder(data.get(field))
        if values is not None:
            found[name] = values.bool() & padder.valid if name == "loss_mask" else values
    if "token_id" in found:
        found["token_id"] = found["token_id"].int()
    mask = padder(data.get("response_mask", None))
    if mask is not None:
        found["response_mask"] = mask.bool() & padder.valid
    return found


ALL_TOKENS: Final = tuple(_TOKENS)


def sequence_columns(data: Any, lengths: Lengths, entry: Entry | None, rank: int) -> dict[str, Any]:
    """Sequence columns of a batch, one value per row.

    Args:
        data: a batch on the host; its rows may carry their number as ``ROW``.
        lengths: lengths of its rows.
        entry: what the driver told of it.
        rank: data-parallel rank, for the identity of rows that have none of their own.
    """
    groups = _texts(per_row(data, "uid"))
    sessions = _texts(per_row(data, "session_id"))
    columns: dict[str, Any] = {
        "prompt_length": lengths.prompt.astype(np.int32),
        "response_length": lengths.response.astype(np.int32),
        "group": groups,
        "session_id": sessions,
        "uid": _identities(data, groups, sessions, lengths, entry, rank),
        "turns": _whole(per_row(data, "num_turns") or per_row(data, "__num_turns__"), "int32"),
        "data_source": _texts(per_row(data, "data_source")),
        "reward": _sums(data, "token_level_rewards", "rm_scores", "token_level_scores"),
        "score": _sums(data, "rm_scores", "token_level_scores"),
        "is_padding": _padding(groups, sessions, entry),
    }
    extra = [fields if isinstance(fields, Mapping) else {} for fields in per_row(data, "extra_fields") or []]
    for name, field in _VERSIONS.items():
        found = _whole([fields.get(field) for fields in extra], "int64")
        columns[name] = _whole(per_row(data, field), "int64") if found is None else found
    if extra:
        columns["finish_reason"] = _texts([_REASONS.get(reason, reason) for reason in map(_reason, extra)])
        columns["reward_components"] = _components([fields.get("reward_extra_info") for fields in extra])
    return {name: values for name, values in columns.items() if values is not None}


def _reason(fields: Mapping[str, Any]) -> str | None:
    reason = fields.get("finish_reason", fields.get("stop_reason"))
    return None if reason is None else str(reason)


def _texts(values: list[Any] | None) -> NDArray[Any] | None:
    if values is None or all(value is None for value in values):
        return None
    return np.array([None if value is None else str(value) for value in values], np.object_)


def _whole(values: list[Any] | None, dtype: str) -> NDArray[Any] | None:
    """Whole numbers; what is none is missing."""
    if values is None or all(value is None for value in values):
        return None
    missing = MISSING_INT[dtype]
    return np.array([int(value) if isinstance(value, (int, np.integer)) else missing for value in values], dtype)


def _components(infos: list[Any]) -> dict[str, NDArray[np.float64]] | None:
    """Numbers that the reward function gave beside the reward, for each name that any row has."""
    rows = [info if isinstance(info, Mapping) else {} for info in infos]
    numbers = [
        {str(name): float(value) for name, value in row.items() if isinstance(value, (bool, int, float, np.number))}
        for row in rows
    ]
    names = sorted({name for row in numbers for name in row if name})
    return {name: np.array([row.get(name, np.nan) for row in numbers]) for name in names} or None


def _sums(data: Any, *names: str) -> NDArray[np.float64] | None:
    """Sum over the tokens of each row, in float64."""
    value = next((data.get(name) for name in names if name in data.keys()), None)  # noqa: SIM118 - a batch iterates over rows
    if value is None or not hasattr(value, "detach"):
        return None
    if not value.is_nested:
        return np.asarray(value.detach().double().sum(-1).cpu()) if value.dim() == 2 else None
    numbers = value.values().detach().double().cpu().numpy()
    bounds = itertools.pairwise(value.offsets().tolist())
    return np.array([float(numbers[start:stop].sum()) for start, stop in bounds])


def _identities(
    data: Any, groups: NDArray[Any] | None, sessions: NDArray[Any] | None, lengths: Lengths, entry: Entry | None, rank: int
) -> NDArray[Any]:
    """Identity of each sampled sequence: verl's own key where the row tells it, else by its number or its tokens."""
    rows = per_row(data, ROW)
    names = groups if groups is not None else [""] * len(data)
    if groups is None or sessions is None:
        marks = [_content(data, row) for row in range(len(data))] if rows is None else [f"{rank}.{row}" for row in rows]
        return np.array([f"{name}_{mark}" for name, mark in zip(names, marks, strict=True)], np.object_)
    several = {} if entry is None else entry.several
    found = []
    for row, (group, session) in enumerate(zip(groups, sessions, strict=True)):
        key = f"{group}_{session}"
        fitting = [
            index
            for index, prompt, response in several.get(key, ())
            if (prompt, response) == (lengths.prompt[row], lengths.response[row])
        ]
        index = 0 if key not in several else fitting[0] if len(fitting) == 1 else _content(data, row)
        found.append(f"{key}_{index}")
    if rows is not None and len(set(found)) < len(found):
        found = [f"{key}_{rank}.{row}" for key, row in zip(found, rows, strict=True)]
    return np.array(found, np.object_)


def _content(data: Any, row: int) -> str:
    """A sequence's tokens in short."""
    tokens = np.concatenate([np.asarray(data[name][row].cpu()).reshape(-1) for name in ("prompts", "responses")])
    return f"{zlib.crc32(tokens.astype('<i8').tobytes()):08x}"


def _padding(groups: NDArray[Any] | None, sessions: NDArray[Any] | None, entry: Entry | None) -> NDArray[np.bool_] | None:
    """Rows that only fill the batch: as the driver said, else told by the name that verl gives them."""
    if groups is None:
        return None
    if entry is not None and sessions is not None:
        filling = set(entry.padding)
        return np.array([f"{group}_{session}" in filling for group, session in zip(groups, sessions, strict=True)])
    return np.array([_PADDING_UID.fullmatch(str(group)) is not None for group in groups])
