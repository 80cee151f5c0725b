"""Members of a run file's metadata beside those of ``run.json`` and ``metrics``."""

from __future__ import annotations

from typing import Final

METRICS_FILE_MEMBER: Final = "metrics_file"
"""Names the file beside the run file that has the logged metrics."""
FACTS_MEMBER: Final = "store"
"""What the folder told beside its rows: steps dropped or incomplete, parts left out, notes."""
