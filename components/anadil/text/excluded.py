"""Format of the list of documents that training leaves out, each with reason and counterpart, sorted by id."""

from anadil.core.stages import COMPARED

EXCLUDING = next(iter(COMPARED), "")
"""The artifact that has it; empty where no stage compares sources."""
EXCLUDED = "excluded.jsonl"
REASONS = ("heldout", "duplicate", "near_duplicate")
HELDOUT, DUPLICATE, NEAR_DUPLICATE = range(3)
"""Places among them: of two reasons the first is the one."""
