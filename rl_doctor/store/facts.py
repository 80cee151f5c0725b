"""What reading a run brought to light about the store itself, before any metric."""

from __future__ import annotations

from rl_doctor.frozen import frozen


@frozen
class StoreFacts:
    """Facts about the files, not about the training.

    Attributes:
        first_step: first step read, or None for no row.
        last_step: last step read.
        sequences: number of sequence rows.
        tokens: number of stored tokens.
        skipped_parts: part files left out, each as "name: why".
        unknown_columns: columns that no alias maps to the schema.
        renamed_columns: "found -> canonical" for each alias that was resolved.
        notes: further sentences for the reader, such as sessions that overlap.
        dropped_steps: number of steps that the recorder dropped, as it counted them.
        incomplete_steps: steps that not every writing rank has completed.
        unsorted_steps: number of places where the step falls from one row to the next.
        repeated_rows: number of sequence rows that repeat the keys (step, epoch, minibatch, microbatch, rank, uid) of another.
        empty_columns: canonical float columns that are there but hold no value in any row: nothing but null and NaN.
    """

    first_step: int | None = None
    last_step: int | None = None
    sequences: int = 0
    tokens: int = 0
    skipped_parts: tuple[str, ...] = ()
    unknown_columns: tuple[str, ...] = ()
    renamed_columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dropped_steps: int = 0
    incomplete_steps: tuple[int, ...] = ()
    unsorted_steps: int = 0
    repeated_rows: int = 0
    empty_columns: tuple[str, ...] = ()
