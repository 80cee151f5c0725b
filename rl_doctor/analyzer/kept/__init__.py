"""States on disk: what a reading of a run gave, so that the next one reads only what came since."""
