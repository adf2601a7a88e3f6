"""Pairs beside other sources: both directions of what is left out go."""

import json
from pathlib import Path

import pytest

from anadil.text.corpus import read_documents
from tests.kit.clean_stage import InThisProcess, write_jsonl
from tests.kit.overlapping import cleaned, compared, excluded
from tests.kit.parallel import PAIRS, recipe_of_pairs, write_pairs
from tests.kit.texts import ANOTHER, AZERBAIJANI


def test_a_pair_that_holds_held_out_text_is_left_out_in_both_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())
    monkeypatch.setattr("anadil.overlap.run.executor_of_this_program", lambda _: InThisProcess())
    # One of the two texts is held out, and a pair quotes each.
    quoting = [
        ("Last night a strong wind blew in the city and some trees fell.", AZERBAIJANI.split(". ")[0]),
        ("My grandmother baked bread every Sunday and we listened to her tales.", ANOTHER.split(". ")[0]),
    ]
    recipe = recipe_of_pairs(tmp_path, write_pairs(tmp_path / "a.tsv", [*PAIRS, *quoting]))
    write_jsonl(tmp_path / "web.jsonl", [ANOTHER, AZERBAIJANI])
    corpora = cleaned(recipe)

    overlap = compared(recipe, "pairs", corpora)

    [heldout] = read_documents(Path(corpora["corpus.web"]), "heldout")
    [quoted] = [azerbaijani for _, azerbaijani in quoting if azerbaijani in heldout.text]
    [row] = excluded(overlap)
    train = list(read_documents(Path(corpora["corpus.pairs"]), "train"))
    assert [quoted in each.text for each in train if each.id == row["id"]] == [True, True]
    assert (row["reason"], row["of"]) == ("heldout", "web")
    counts = json.loads((overlap / "overlap.json").read_text(encoding="utf-8"))
    num_pairs = len({each.id for each in train})
    assert (counts["documents"], counts["remaining"]) == (num_pairs, num_pairs - 1)
    assert counts["heldout"]["documents"] == len(PAIRS) + 2 - num_pairs
