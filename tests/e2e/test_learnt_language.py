"""A language that is in no list, from a sample to the report."""

import json
from pathlib import Path

import pytest

from anadil.artifacts.base_model import LLAMA_3_SPECIALS
from tests.e2e.test_pipeline import START, anadil, settings
from tests.kit.constructed import documents, write_documents_of
from tests.kit.pretraining import make_model

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

NUM_OWN = 1_200
NUM_OTHERS = 100


def test_a_language_that_is_in_no_list_goes_from_a_sample_to_the_report(
    tmp_path: Path,
) -> None:
    sample = write_documents_of(tmp_path / "sample.jsonl", documents(2_500))
    own = write_documents_of(tmp_path / "own.jsonl", documents(NUM_OWN, seed=1))
    sibling = write_documents_of(tmp_path / "sibling.jsonl", documents(NUM_OTHERS, sibling=True, seed=2))
    chats = [
        json.dumps({"prompt": text[:60], "response": text[60:160]}) + "\n" for text in documents(60, seed=3)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(chats), "utf-8")
    pack = tmp_path / "qaa.yaml"
    make_model(tmp_path / "work" / START, specials=LLAMA_3_SPECIALS)

    learnt = anadil("language", "learn", "qaa", str(sample), "--out", str(pack))
    done = anadil(
        "run", "--work", str(tmp_path / "work"), *settings(tmp_path / "work"), "-o", "json",
        "--set", f"language={pack}", "--set", f"clean.inputs=[{own}, {sibling}]",
        "--set", f"finetune.inputs=[{tmp_path / 'chats.jsonl'}]", "--set", "tokenizer.vocab_sizes=[1024]",
    )  # fmt: skip

    assert learnt.returncode == 0, learnt.stderr
    assert done.returncode in (0, 6), done.stderr  # of so few steps no model needs to pass its gate
    made = {path.parent.parent.name: path.parent for path in (tmp_path / "work").glob("*/*/manifest.json")}
    stats = json.loads((made["corpus"] / "stats.json").read_text("utf-8"))
    scores = json.loads((made["scores"] / "scores.json").read_text("utf-8"))
    fertility = json.loads((made["tokenizer"] / "fertility.json").read_text("utf-8"))
    assert stats["kept"] >= 0.97 * NUM_OWN
    assert stats["dropped"]["language"] >= 0.98 * NUM_OTHERS
    assert stats["language"] == fertility["language"] == "qaa"
    assert scores["candidates"]["adapted"]["fertility"] < scores["candidates"]["base"]["fertility"]
    page = (made["report"] / "report.html").read_text("utf-8")
    assert 'lang="qaa"' in page
    assert str(tmp_path) not in page
