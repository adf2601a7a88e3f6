"""Copies, edited copies and quotations that are planted in real text of another source, and nothing else."""

import json
import os
from pathlib import Path

import pytest

from anadil.text.corpus import read_documents
from tests.kit.overlapping import cleaned, compared, excluded, mixture

DATA = os.environ.get("ANADIL_DATA", "")
LAW = Path(DATA) / "az/mzffreyvazov_rag-pipeline-eqanun_legal_codes.jsonl"
GUIDES = Path(DATA) / "az/reactjs_az.reactjs.org.jsonl"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with az/"),
]


def lines_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.matrix
def test_what_was_planted_is_found_and_nothing_else(tmp_path: Path) -> None:
    law, guides = lines_of(LAW)[:150], lines_of(GUIDES)
    alone = cleaned(mixture(tmp_path / "alone", {"law": law, "guides": guides}, workers=2))
    train, heldout = (
        [each.text for each in read_documents(Path(alone["corpus.law"]), part)]
        for part in ("train", "heldout")
    )
    long = [text for text in train if len(text.split()) > 150]
    copies = long[:5]
    edited = [
        " ".join([*text.split()[:-5], *["bu", "son", "dəyişdirilmiş", "beş", "sözdür"]])
        for text in long[5:10]
    ]
    quoting = [
        f"{guide}\n\n{' '.join(text.split()[10:40])}"
        for guide, text in zip(guides[:2], [each for each in heldout if len(each.split()) > 60], strict=False)
    ]
    planted = [*copies, *edited, *quoting]
    recipe = mixture(tmp_path / "planted", {"law": law, "guides": [*guides[2:], *planted]}, workers=2)
    corpora = cleaned(recipe)

    rows = excluded(compared(recipe, "guides", corpora))

    ids = {each.id: each.text for each in read_documents(Path(corpora["corpus.guides"]), "train")}
    reasons = {ids[row["id"]].split("\n")[0]: row["reason"] for row in rows}
    in_training = [
        text for text in planted if any(text.split()[:20] == each.split()[:20] for each in ids.values())
    ]
    assert len(in_training) >= len(planted) - 2, "the others are held out"
    assert len(rows) == len(in_training), reasons
    assert sum(reason == "heldout" for reason in reasons.values()) >= 1
    assert {"duplicate", "near_duplicate"} <= set(reasons.values())
