"""Checking a run: read it, hold it against its log, run the rules, tell the causes."""
