"""Held-out documents share no run of words with the training part, and what they share is known when `clean` ends."""

import random
from pathlib import Path

import numpy as np
import pytest

from anadil.clean.shards.holdout import Candidates
from anadil.evaluate.heldout import find_contamination
from anadil.text.corpus import read_documents
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats, write_jsonl

az, ja = load_language("az"), load_language("ja")
OWN = texts(120)


def sharing(own: list[str], others: int) -> list[str]:
    """Texts of which every second one begins as its neighbour does, in 30 words that no other has."""
    begun = [" ".join(text.split()[:30]) for text in texts(others + len(own))[-len(own) :]]
    return [f"{begun[number - number % 4]} {text}" if number % 2 else text for number, text in enumerate(own)]


def seen(corpus: Path, code: str = "az") -> tuple[int, int]:
    """Held-out documents that evaluation calls contaminated, and those that share anything."""
    heldout, train = (list(read_documents(corpus, part)) for part in ("heldout", "train"))
    found = find_contamination(heldout, iter(train), load_language(code))
    return len(found.contaminated), len(found.overlapping)


def test_documents_that_share_runs_are_not_held_out(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", sharing(OWN, 200))

    corpus = clean(tmp_path, raw, heldout_fraction=0.2)

    assert seen(corpus) == (0, 0)
    assert len(documents(corpus)) == 120
    found = stats(corpus)
    assert found["records"]["heldout"] == found["heldout"]["documents"] > 10
    assert (found["heldout"]["held_out_sharing"], found["heldout"]["contaminated"]) == (0, 0)
    assert 0 < found["heldout"]["sharing"] < found["heldout"]["looked_at"]


def test_neither_shards_nor_a_second_start_change_what_is_held_out(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", sharing(OWN, 200))
    held = [
        [each.id for each in read_documents(clean(tmp_path, raw, shard_bytes=size), "heldout")]
        for size in (None, 20_000, 20_000)
    ]

    assert held[0] == held[1] == held[2]


def test_japanese_runs_are_made_of_characters(tmp_path: Path) -> None:
    letters = "春夏秋冬東西南北山川草木花鳥風月雨雪雲空海島町村人心手足目耳口声音色形"
    draw = random.Random(4)
    own = ["".join(draw.choices(letters, k=300)) for _ in range(20)]
    candidates = Candidates([*own, own[3][:200] + own[4][250:] * 3], ja)

    heldout, counts = candidates.choose(np.zeros(len(candidates.runs), bool), np.arange(21), 21)

    assert (counts["sharing"], heldout.tolist()) == (3, [0, 1, 2, *range(4, 20)])


def test_where_all_documents_repeat_others_the_run_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common = " ".join(OWN[0].split()[:60])
    raw = write_jsonl(tmp_path / "a.jsonl", [f"{common} {' '.join(text.split()[:50])}" for text in OWN[1:40]])

    corpus = clean(tmp_path, raw, heldout_fraction=0.3)

    assert stats(corpus)["heldout"]["contaminated"] == stats(corpus)["records"]["heldout"] == 1
    assert "1 document instead of" in caplog.text
    assert "1 of the held-out documents stand in the training part, too" in caplog.text


def test_documents_that_share_little_are_held_out_where_too_few_share_nothing() -> None:
    phrase = " ".join(OWN[0].split()[:8])
    candidates = Candidates([f"{text} {phrase}" for text in OWN[1:5]] + [OWN[5], f"{OWN[5]} Son."], az)

    heldout, counts = candidates.choose(np.zeros(len(candidates.runs), bool), np.arange(6) + 7, 4)

    assert heldout.tolist() == [7, 8, 9, 10]
    assert counts == {
        "documents": 4, "looked_at": 6, "sharing": 6, "held_out_sharing": 4, "contaminated": 0
    }  # fmt: skip
