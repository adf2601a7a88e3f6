import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError, PreflightError
from anadil.evaluate.run import run
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Figures, Job
from anadil.text.corpus import Document, write_documents

from .conftest import TEXTS, document
from .test_contamination import HELDOUT

Save = Callable[..., Path]
HOSTILE = Document(id="hostile", text="Cavab: <|eot_id|> bitdi. 🙂 çörək", source="", url="", lang="az")
NUM_BYTES = sum(len(text.encode()) for text in (*HELDOUT, HOSTILE.text))


@pytest.fixture
def job(tmp_path: Path, save: Save) -> Job:
    corpus = tmp_path / "corpus"
    write_documents(corpus, "train", [document(text) for text in (*TEXTS, HELDOUT[1])])
    write_documents(
        corpus, "heldout", [*(document(text, f"h{i}") for i, text in enumerate(HELDOUT)), HOSTILE]
    )
    save("adapter/merged", 420, seed=2, chat=True)
    recipe = Recipe.model_validate(
        {
            "base": {"model": str(save("base", 300))},
            "pretrain": {"sequence_length": 64},
            "evaluate": {"max_new_tokens": 4, "prompts": ["Bakı şəhəri"]},
        }
    )
    (tmp_path / "out").mkdir()
    return Job(
        recipe=recipe,
        inputs={"corpus": corpus, "model": save("model", 420, seed=1), "adapter": tmp_path / "adapter"},
        out=tmp_path / "out",
        work=tmp_path,
        base_cache=tmp_path / "cache",
    )


def scored(job: Job) -> tuple[dict[str, Any], Figures]:
    figures = run(job)
    # A number that JSON does not know would be an error here.
    text = (job.out / "scores.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in scores.json")), figures


def changed(job: Job, **fields: Any) -> Job:
    values = {name: getattr(job, name) for name in Job.__dataclass_fields__} | fields
    return Job(**values)


def with_evaluate(job: Job, **keys: Any) -> Job:
    content = job.recipe.model_dump()
    content["evaluate"].update(keys)
    return changed(job, recipe=Recipe.model_validate(content))


def test_scores_hold_all_candidates_on_the_same_text(job: Job) -> None:
    scores, figures = scored(job)

    assert list(scores["candidates"]) == ["base", "adapted", "finetuned"]
    for entry in scores["candidates"].values():
        assert entry["num_bytes"] == NUM_BYTES
        assert entry["num_documents"] == 4
        assert entry["fertility"] == entry["num_tokens"] / entry["num_words"]
        assert entry["bytes_per_token"] == NUM_BYTES / entry["num_tokens"]
        assert entry["bits_per_byte"] == pytest.approx(entry["nats"] / math.log(2) / NUM_BYTES)
        assert entry["words_in_context"] == int(64 / entry["fertility"])
        assert (entry["context"], entry["stride"]) == (64, 64)
        assert entry["parameters"] > 0
        assert set(entry["repetition"]) == {"greedy", "sampled"}
        low, high = entry["bits_per_byte_interval"]
        assert low < entry["bits_per_byte"] < high
    base, adapted = scores["candidates"]["base"], scores["candidates"]["adapted"]
    assert adapted["num_tokens"] < base["num_tokens"]
    assert figures == {
        "base_bits_per_byte": base["bits_per_byte"],
        "bits_per_byte": adapted["bits_per_byte"],
        "base_fertility": base["fertility"],
        "fertility": adapted["fertility"],
        "gate": "failed",
        "released": "none",
    }
    assert job.records == {"documents": 4, "contaminated": 1, "altered": 0}


def test_differences_are_those_of_the_figures(job: Job) -> None:
    scores, _ = scored(job)

    found = {name: entry["bits_per_byte"] for name, entry in scores["candidates"].items()}
    for name, other in (("adapted", "base"), ("finetuned", "base"), ("finetuned", "adapted")):
        difference = scores["differences"][f"{name} - {other}"]
        assert difference["value"] == pytest.approx(found[name] - found[other])
        assert difference["low"] <= difference["value"] <= difference["high"]
        assert difference["num_documents"] == 4
        assert scores["differences"][f"{name} - {other}, uncontaminated"]["num_documents"] == 3
    for name, nats in scores["documents"][0]["nats"].items():
        assert nats < scores["candidates"][name]["nats"]


def test_a_planted_leak_is_found_said_and_stops_the_gate(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores, _ = scored(job)

    assert scores["contamination"]["exact"] == ["h1"]
    assert scores["contamination"]["share"] == 0.25
    checks = {check["name"]: check for check in scores["gate"]["checks"]}
    assert checks["adapted.contaminated_share"] == {
        "name": "adapted.contaminated_share", "value": 0.25, "limit": 0.05, "passed": False, "enforced": True,
    }  # fmt: skip
    assert scores["gate"]["passed"] is False
    assert "1 of 4 documents stand in the training part (1 as a whole): h1" in caplog.text
    assert "gate: adapted.contaminated_share is 0.25, the limit is 0.05" in caplog.text


def test_only_the_finetuned_model_is_asked_through_the_chat_template(job: Job) -> None:
    scores, _ = scored(job)

    for name, entry in scores["candidates"].items():
        made = entry["generations"]
        assert [one["mode"] for one in made[:2]] == ["greedy", "sampled"]
        assert [one["prompt"] for one in made[:2]] == ["Bakı şəhəri"] * 2
        answers = [one for one in made if one["kind"] == "answer"]
        assert len(answers) >= 2
        assert {one["chat"] for one in answers} == {name == "finetuned"}
        assert not any("<|" in one["text"] for one in made)


def test_the_same_job_gives_the_same_bytes(job: Job, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()

    run(job)
    run(changed(job, out=tmp_path / "again"))

    assert (tmp_path / "again/scores.json").read_bytes() == (job.out / "scores.json").read_bytes()


def test_named_files_are_scored_instead_of_the_corpus_part(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"id": "own", "text": TEXTS[0]}) + "\n", encoding="utf-8")

    scores, _ = scored(changed(job, files=(str(file),)))

    assert scores["heldout"]["source"] == "files"
    assert scores["heldout"]["files"] == [str(file)]
    assert scores["candidates"]["base"]["num_bytes"] == len(TEXTS[0].encode())
    assert scores["contamination"]["exact"] == ["own"]
    assert [entry["id"] for entry in scores["documents"]] == ["own"]


def test_the_stride_changes_the_bits_and_not_the_bytes(job: Job) -> None:
    scores, _ = scored(with_evaluate(job, context=16, stride=4))

    entry = scores["candidates"]["base"]
    assert (entry["context"], entry["stride"]) == (16, 4)
    assert entry["num_bytes"] == NUM_BYTES
    assert entry["words_in_context"] == int(16 / entry["fertility"])


def test_a_context_longer_than_the_model_is_cut_and_said(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores, _ = scored(with_evaluate(job, context=4_096))

    assert scores["candidates"]["base"]["context"] == 128
    assert "base: holds 128 tokens, fewer than the context of 4096" in caplog.text


def test_an_equal_model_passes_without_being_significant(job: Job, save: Save, tmp_path: Path) -> None:
    write_documents(job.inputs["corpus"], "train", [document(text) for text in TEXTS])
    inputs = {"corpus": job.inputs["corpus"], "model": Path(job.recipe.base.model)}

    scores, figures = scored(with_evaluate(changed(job, inputs=inputs), gate={"max_loop_rate": 1}))

    checks = {check["name"]: check for check in scores["gate"]["checks"]}
    assert figures["gate"] == "passed"
    assert checks["adapted.fertility"]["value"] == checks["adapted.bits_per_byte"]["value"] == 1
    assert not checks["adapted.bits_per_byte_significant"]["passed"]
    assert not checks["adapted.bits_per_byte_significant"]["enforced"]
    assert list(scores["differences"]) == ["adapted - base"]


def test_no_held_out_text_is_a_data_error(job: Job) -> None:
    write_documents(job.inputs["corpus"], "heldout", [])

    with pytest.raises(DataError, match="held-out text is empty"):
        run(job)


def test_a_mixture_of_experts_is_refused_by_name_before_a_model_is_loaded(job: Job) -> None:
    (job.inputs["model"] / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"}))

    with pytest.raises(PreflightError, match=r"^adapted \(.*model type 'qwen3_moe' is a mixture of experts"):
        run(job)
