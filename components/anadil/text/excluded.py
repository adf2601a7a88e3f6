"""Documents that are left out because of another source, as the stage that compares sources lists them."""

from anadil.core.stages import COMPARED

EXCLUDING = next(iter(COMPARED), "")
"""The artifact; empty where no stage compares sources."""
EXCLUDED = "excluded.jsonl"
"""Its file: a row for each document, sorted by id, with the reason."""
REASONS = ("heldout", "duplicate", "near_duplicate")
