"""Causes of what rules find: what each one shows itself by, and how it is told from those that look alike."""
