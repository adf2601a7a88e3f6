"""A recipe without sources, made of one that is shipped."""

ONE_TEXT = "clean.inputs=['builtin:az/prose.jsonl']"
"""Setting that takes the place of the recipe's sources."""
