"""A language that is in no list, from a sample to the report."""

import json
from pathlib import Path

import pytest

from anadil.artifacts.base_model import LLAMA_3_SPECIALS
from anadil.cli import main
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from tests.kit.constructed import documents, write_documents_of
from tests.kit.flow import made_folders
from tests.kit.pretraining import SHORT, make_model

pytestmark = pytest.mark.slow

NUM_OWN = 500
NUM_OTHERS = 60


@pytest.mark.matrix
@pytest.mark.usefixtures("clean_in_this_process")
def test_a_language_that_is_in_no_list_goes_from_a_sample_to_the_report(tmp_path: Path) -> None:
    sample = write_documents_of(tmp_path / "sample.jsonl", documents(2_000))
    own = write_documents_of(tmp_path / "own.jsonl", documents(NUM_OWN, seed=1))
    sibling = write_documents_of(tmp_path / "sibling.jsonl", documents(NUM_OTHERS, sibling=True, seed=2))
    pack = tmp_path / "qaa.yaml"

    learnt = main.main(["language", "learn", "qaa", str(sample), "--out", str(pack)])
    made = made_folders(recipe_for(tmp_path, pack, [own, sibling]))

    assert learnt == 0
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


def recipe_for(folder: Path, pack: Path, inputs: list[Path]) -> Recipe:
    """All but fine-tuning, which reads chats and no language."""
    data = {
        "language": str(pack),
        "base": {"model": str(make_model(folder / "start", specials=LLAMA_3_SPECIALS))},
        "clean": {"inputs": [str(path) for path in inputs]},
        "tokenizer": {"vocab_sizes": [1024], "choice": "replace"},  # which costs so small a base more
        "pretrain": {"phases": SHORT, "sequence_length": 64},
        "finetune": {"inputs": []},
        "evaluate": {"max_new_tokens": 8},
        "storage": {"root": str(folder / "root")},
        "tracking": {"uri": "off"},
    }
    return parse_recipe(json.dumps(data), "recipe")
