"""Finetuning that goes on with the adapter of another run: its weights, its held-out chats, and what is refused."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anadil.artifacts import artifact
from anadil.core.errors import RecipeError
from tests.finetune.conftest import write_model
from tests.finetune.test_run import FOREIGN_WARNINGS, LEARNING, finetune
from tests.kit.rows import write_rows

pytestmark = FOREIGN_WARNINGS

HELD = 0.3
KEPT = (f"finetune.heldout_fraction={HELD}", "finetune.dropout=0")
NOTHING = ("finetune.lr=1.0e-12", "finetune.epochs=1", "finetune.warmup_fraction=0")
"""Settings with which training changes nothing."""


def rows(first: int, last: int) -> list[dict[str, str]]:
    return [
        {"prompt": f"Azərbaycanın {each}-ci şəhəri hansıdır?", "response": f"Şəhər {each * 7919}, balans."}
        for each in range(first, last)
    ]


@pytest.fixture(scope="module", params=["adapter", "all"])
def earlier(
    request: pytest.FixtureRequest, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An adapter, or a model of which all weights learned, that knows the chats of a first week."""
    folder = tmp_path_factory.mktemp("earlier")
    chats = write_rows(folder / "first.jsonl", rows(0, 20))
    return finetune(
        model_dir,
        chats,
        folder / "adapter",
        *LEARNING,
        *KEPT,
        f"finetune.trains={request.param}",
        "finetune.lr=0.01",
        "finetune.epochs=6",
    )


def go_on(model: Path, earlier: Path, folder: Path, *overrides: str) -> Path:
    """Finetune on the chats of a second week, from the adapter of the first."""
    trains = json.loads((earlier / "training.json").read_text())["trains"]
    chats = write_rows(model.parent / "second.jsonl", rows(20, 30))
    start = (f"finetune.start_from={earlier}", f"finetune.trains={trains}", *KEPT)
    return finetune(model, chats, folder / "adapter", *start, *overrides)


def test_training_begins_with_the_weights_of_the_adapter(
    model_dir: Path, earlier: Path, tmp_path: Path
) -> None:
    out = go_on(model_dir, earlier, tmp_path, *NOTHING)

    # All weights begin with those that were rounded for the artifact.
    before, after = (load_file(each / "merged/model.safetensors") for each in (earlier, out))
    base = load_file(model_dir / "model.safetensors")
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)
    assert any(not torch.allclose(base[name], after[name], atol=1e-3) for name in base)


def test_held_out_chats_of_earlier_weeks_stay_held_out_and_are_asked_again(
    model_dir: Path, earlier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        out = go_on(model_dir, earlier, tmp_path, "finetune.epochs=1")

    def asked(folder: Path) -> list[str]:
        lines = (folder / "heldout_chats.jsonl").read_text().splitlines()
        return [json.loads(line)["messages"][0]["content"] for line in lines]

    known = asked(earlier)
    assert known
    assert asked(out)[: len(known)] == known
    assert len(asked(out)) > len(known)
    assert f"whose {len(known)} held-out chats stay held out" in caplog.text
    again = write_rows(tmp_path / "again.jsonl", rows(0, 30))
    learnt = finetune(
        model_dir, again, tmp_path / "again", f"finetune.start_from={earlier}", "finetune.epochs=1",
        "finetune.heldout_fraction=0", f"finetune.trains={json.loads((earlier / 'training.json').read_text())['trains']}",
    )  # fmt: skip
    # Also with another share of held-out chats, which the hash of a question would let into training.
    assert asked(learnt) == known
    assert json.loads((learnt / "training.json").read_text())["examples"] == 30 - len(known)


def test_an_adapter_of_another_model_or_form_is_refused(
    model_dir: Path, earlier: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write_model(other)
    (other / "manifest.json").unlink()
    (other / "README.md").write_text("Another one")
    artifact.seal(other, kind="model", origin={"made": "by a test"})
    with pytest.raises(RecipeError, match=r"was trained on another model than .*; leave the key out"):
        go_on(other, earlier, tmp_path)

    with pytest.raises(
        RecipeError, match=r"another form than the recipe's adapter: .*finetune\.alpha 28 -> 7"
    ):
        go_on(model_dir, earlier, tmp_path, "finetune.alpha=7")


def test_the_content_of_the_adapter_decides_and_not_its_place(
    model_dir: Path, earlier: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(earlier, tmp_path / "moved")
    made = []
    for place in (earlier, moved):
        (folder := tmp_path / f"from {place.name}").mkdir()
        made.append(artifact.read_manifest(str(go_on(model_dir, place, folder, "finetune.epochs=1"))))

    first, second = made
    known = artifact.read_manifest(str(earlier))
    assert first is not None
    assert second is not None
    assert known is not None
    assert first.origin["input finetune.start_from"] == known.digest
    assert (first.key, first.digest) == (second.key, second.digest)
