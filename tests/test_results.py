"""Results change with `RESULT_VERSION` only: what lies in storage is reused by it."""

import json

from anadil.flow import STAGES
from tests.results import FILE, Entry, changes, entries


def test_results_are_those_of_their_result_version() -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))

    found = entries()

    assert changes(golden, found) == []
    assert found == golden, "a result version was raised: run make golden"


def test_a_changed_result_names_the_stage_and_what_to_raise() -> None:
    old: dict[str, Entry] = {
        "clean": {"versions": {"clean": 1}, "keys": ["seed"], "results": {"train": "00"}}
    }

    changed = changes(old, {"clean": {**old["clean"], "results": {"train": "11"}}})
    added = changes(old, {"clean": {**old["clean"], "keys": ["clean.new", "seed"]}})
    raised = changes(old, {"clean": {"versions": {"clean": 2}, "keys": [], "results": {"train": "11"}}})

    version = STAGES["clean"].result_version
    text = f"clean: results changed under RESULT_VERSION {version}: repair them, or raise result_version of the stage "
    assert changed == [f"{text}clean in flow.py and run make golden"]
    assert (
        "key changed (clean.new), so that old artifacts are made again: give a new one to NEW_KEYS"
        in added[0]
    )
    assert raised == []
