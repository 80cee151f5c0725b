"""Single rows of a run for views: which steps there are, what a response says, and the tokens of one sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.report.model import Finding
from rl_doctor.schema import MISSING_INT, REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import Run
from rl_doctor.views.opened import Opened

Tokenizer = Callable[[Sequence[int]], list[str]]
"""The text of each of some token ids."""

MOST_TOKENS: Final = 4_000
"""Tokens of one response that the browser gets at once."""
DECODED_TOKENS: Final = 1_000
"""Tokens of a response that are decoded where several responses are shown: decoding is what the reader waits for."""
MOST_LETTERS: Final = 20_000
"""Letters of a text that the browser gets."""
_FEW_LETTERS: Final = 320
_FEW_LINES: Final = 7


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt or a response.

    Attributes:
        kind: recorded text, decoded from token ids, the ids themselves, or nothing that could be shown.
        text: the text, cut to what the browser gets.
        cut: number of letters of a recorded text, or else of tokens, that were left out at its end.
    """

    kind: Literal["text", "decoded", "ids", "none"]
    text: str = ""
    cut: int = 0

    @property
    def long(self) -> bool:
        """Whether it takes more than a few lines."""
        return len(self.text) > _FEW_LETTERS or self.text.count("\n") > _FEW_LINES


def of_text(text: str | None) -> Text:
    """A recorded text; None where it is not known."""
    if text is None:
        return Text("none")
    return Text("text", text[:MOST_LETTERS], max(len(text) - MOST_LETTERS, 0))


def response_text(rows: Rows, index: int, tokenizer: Tokenizer | None) -> Text:
    """What row ``index`` says: its recorded response, else its token ids decoded, else the ids, else nothing."""
    recorded = rows.columns.get("response")
    if recorded is not None and recorded[index] is not None:
        return of_text(str(recorded[index]))
    ids = rows.columns.get("token_id")
    own = np.empty(0, np.int32) if ids is None else ids[rows.splits[index] : rows.splits[index + 1]]
    if not own.size:
        return Text("none")
    kept = own[: MOST_TOKENS if tokenizer is None else DECODED_TOKENS]
    if tokenizer is not None:
        return Text("decoded", "".join(token_texts(kept, tokenizer)), len(own) - len(kept))
    return Text("ids", " ".join("?" if one == MISSING_INT["int32"] else str(one) for one in kept.tolist()), len(own) - len(kept))


def token_texts(ids: NDArray[Any], tokenizer: Tokenizer | None) -> list[str]:
    """The text of each token of a stretch; its id where there is no tokenizer. What is no id has a question mark."""
    known = ids >= 0
    found = np.full(len(ids), "?", np.object_)
    found[known] = [str(one) for one in ids[known].tolist()] if tokenizer is None else tokenizer(ids[known].tolist())
    return [str(one) for one in found]


def id_texts(ids: NDArray[Any], tokenizer: Tokenizer | None) -> list[str]:
    """The text of each id by itself; the id where there is no tokenizer, or it gives no text."""
    if tokenizer is None:
        return [str(one) for one in ids.tolist()]
    return ["".join(tokenizer([one])) or str(one) if one >= 0 else "?" for one in ids.tolist()]


def finding_of(opened: Opened, code: str | None, cause: str | None) -> Finding | None:
    """The finding that a link is about: one with samples first, then the gravest of its rule or cause."""
    found = [one for one in opened.report.findings if code is not None and code in (one.code, one.name)]
    if not found and cause is not None:
        found = [one for item in opened.report.diagnosis if item.name == cause for one in item.findings]
    return next((one for one in found if one.samples), found[0] if found else None)


def step_near(run: Run, step: int | None) -> int | None:
    """The step with rows that is nearest to ``step``, the last one where that is None; None where no step has rows."""
    steps = run.steps
    if not steps:
        return None
    return steps[-1] if step is None else min(steps, key=lambda one: (abs(one - step), one))


def batch_of(run: Run, rows: Rows) -> Batch:
    """Rows as a batch, for the analyzer's functions that look at no step."""
    return Batch(int(rows.columns["step"][0]), rows.columns, rows.splits, run.info)


def components_of(run: Run) -> list[str]:
    """The columns of the reward's components that a run has."""
    return sorted(name for name in run.columns if name.startswith(REWARD_COMPONENT_PREFIX))


def numbers(rows: Rows, name: str) -> NDArray[np.float64]:
    """A column of numbers, float64 ``[n_sequences]``; NaN where it is not known."""
    values = rows.columns.get(name)
    if values is None:
        return np.full(rows.n_sequences, np.nan)
    found: NDArray[np.float64] = values.astype(np.float64)
    missing = MISSING_INT.get(values.dtype.name)
    return found if missing is None else np.where(values == missing, np.nan, found)


def number(rows: Rows, name: str, index: int) -> float | None:
    """A number of a row; None where it is not known."""
    values = rows.columns.get(name)
    if values is None:
        return None
    value = values[index]
    missing = MISSING_INT.get(values.dtype.name)
    return None if value == missing or value != value else float(value)  # noqa: PLR0124 - NaN is not itself


def word(rows: Rows, name: str, index: int) -> str | None:
    """A text of a row; None where it is not known."""
    values = rows.columns.get(name)
    return None if values is None or values[index] is None else str(values[index])


def count(rows: Rows, name: str, index: int) -> int | None:
    """A whole number of a row; None where it is not known."""
    value = number(rows, name, index)
    return None if value is None else int(rows.columns[name][index])


def left_out(rows: Rows, index: int) -> bool:
    """Whether the tokens of a row were left out to save space."""
    marks = rows.columns.get("tokens_dropped")
    return marks is not None and bool(marks[index])
