"""Results change with `result_version` only: what lies in storage is reused by it."""

import pytest
import yaml

from anadil.core.stages import STAGES
from tests.kit.marks import slow
from tests.kit.results import DEFAULTS, FILE, Entry, changes, entries

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::pydantic.warnings.PydanticDeprecationWarning",
)


@pytest.mark.usefixtures("clean_in_this_process")
@pytest.mark.parametrize("with_models", [False, slow(True)])
def test_results_are_those_of_their_result_version(with_models: bool) -> None:
    found = entries(with_models)
    golden = {
        name: {key: entry[key] for key in entry if with_models or key in found[name]}
        for name, entry in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
    }

    assert changes(golden, found) == []
    assert found == golden, "a result version was raised, or more is guarded: run make golden"


def test_a_changed_result_names_the_stage_and_what_to_raise() -> None:
    old: dict[str, Entry] = {"clean": {"versions": {"clean": 1}, "results": {"train": "00"}}}

    changed = changes(old, {"clean": {**old["clean"], "results": {"train": "11"}}})
    raised = changes(old, {"clean": {"versions": {"clean": 2}, "results": {"train": "11"}}})

    version = STAGES["clean"].result_version
    text = f"clean: results changed under result_version {version} (train): repair them, or raise result_version of "
    assert changed == [f"{text}the stage clean in core/stages.py and run make golden"]
    assert raised == []


def test_a_changed_default_names_every_stage_that_it_decides() -> None:
    """No key of an artifact names it, so that what the old one made would be reused."""
    stages: dict[str, Entry] = {name: {"versions": {name: 1}} for name in ("clean", "evaluate", "pretrain")}
    old: dict[str, Entry] = {DEFAULTS: {"clean.text_field": '"text"', "clean.gone": "1"}, **stages}
    other: Entry = {"clean.text_field": '"content"', "clean.new": "1"}

    changed = changes(old, {**old, DEFAULTS: other})
    raised = changes(old, {**old, DEFAULTS: other, "clean": {"versions": {"clean": 2}}})

    names = [text.partition(":")[0] for text in changed]
    assert names == ["clean", "evaluate"]
    assert f"defaults changed under result_version {STAGES['clean'].result_version}" in changed[0]
    assert [text.partition(":")[0] for text in raised] == ["evaluate"]


def test_a_result_that_is_newly_guarded_is_no_change_and_one_that_is_gone_is() -> None:
    bare: Entry = {"versions": {"clean": 1}}
    some: Entry = {**bare, "results": {"train": "00"}}
    more: Entry = {**bare, "results": {"train": "00", "heldout": "11"}}

    assert changes({"clean": bare}, {"clean": some}) == []
    assert changes({"clean": some}, {"clean": more}) == []
    assert "clean: results changed under result_version" in changes({"clean": more}, {"clean": some})[0]
    assert "(heldout)" in changes({"clean": more}, {"clean": some})[0]
