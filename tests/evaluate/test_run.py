import io
import json
import logging
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.scored_text import tuning_part
from anadil.core.errors import PreflightError
from anadil.core.stages import STAGES
from anadil.evaluate.own_chat import measure as own_chat
from anadil.evaluate.run import _table, run
from anadil.recipe.sections import Recipe
from anadil.recipe.sources import Source
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import Figures, Job, is_left_out
from anadil.text.corpus import Document, write_documents

from .conftest import TEXTS, document, save_model
from .test_heldout import HELDOUT
from .test_own_chat import make_base

HOSTILE = Document(id="hostile", text="Cavab: <|eot_id|> bitdi. 🙂 çörək", source="", url="", lang="az")
NUM_BYTES = sum(len(text.encode()) for text in (*HELDOUT, HOSTILE.text))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose second held-out document leaked, and three models."""
    folder = tmp_path_factory.mktemp("inputs")
    heldout = [*(document(text, f"h{i}") for i, text in enumerate(HELDOUT)), HOSTILE]
    write_documents(folder / "corpus", "train", [document(text) for text in (*TEXTS, HELDOUT[1])])
    write_documents(folder / "corpus", "heldout", heldout)
    save_model(folder / "base", 300)
    save_model(folder / "model", 420, seed=1)
    save_model(folder / "adapter/merged", 420, seed=2, chat=True)
    return folder


def job_on(inputs: Path, out: Path, files: tuple[str, ...] = (), **evaluate: Any) -> Job:
    evaluate = {"max_new_tokens": 2, "prompts": ["Bakı şəhəri"]} | evaluate
    data = {
        "base": {"model": str(inputs / "base")},
        "pretrain": {"sequence_length": 64},
        "evaluate": evaluate,
    }
    out.mkdir()
    return Job(
        recipe=Recipe.model_validate(data), inputs={word: inputs / word for word in ("corpus", "model", "adapter")},
        files=files, out=out, work=out, base_cache=out,
    )  # fmt: skip


def scored(job: Job) -> tuple[dict[str, Any], Figures]:
    figures = run(job)
    # A number that JSON does not know would be an error here.
    text = (job.out / "scores.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in scores.json")), figures


@dataclass(frozen=True)
class Outcome:
    scores: dict[str, Any]
    figures: Figures
    job: Job
    log: str


@pytest.fixture(scope="module")
def outcome(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    job = job_on(inputs, tmp_path_factory.mktemp("outcome") / "out")
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger("anadil").addHandler(handler)
    try:
        scores, figures = scored(job)
    finally:
        logging.getLogger("anadil").removeHandler(handler)
    return Outcome(scores, figures, job, written.getvalue())


@pytest.fixture
def own(inputs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(inputs, tmp_path / "inputs")


def test_scores_hold_all_candidates_on_the_same_text(outcome: Outcome) -> None:
    scores = outcome.scores

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
        assert set(entry["repetition"]) == set(entry["writing"]) == {"greedy", "sampled"}
        assert "unseen_words" in entry["writing"]["greedy"]
        low, high = entry["bits_per_byte_interval"]
        assert low < entry["bits_per_byte"] < high
    assert scores["writing"]["heldout"]["unseen_words"]["num"] > 0
    base, adapted = scores["candidates"]["base"], scores["candidates"]["adapted"]
    assert adapted["num_tokens"] < base["num_tokens"]
    assert outcome.figures == {
        "base_bits_per_byte": base["bits_per_byte"],
        "bits_per_byte": adapted["bits_per_byte"],
        "base_fertility": base["fertility"],
        "fertility": adapted["fertility"],
        "gate": "failed",
        "released": "none",
    }
    assert outcome.job.records == {"documents": 4, "contaminated": 1, "altered": 0}


def test_differences_are_those_of_the_figures(outcome: Outcome) -> None:
    scores = outcome.scores

    bits = {name: entry["bits_per_byte"] for name, entry in scores["candidates"].items()}
    for name, other in (("adapted", "base"), ("finetuned", "base"), ("finetuned", "adapted")):
        difference = scores["differences"][f"{name} - {other}"]
        assert difference["value"] == pytest.approx(bits[name] - bits[other])
        assert difference["low"] <= difference["value"] <= difference["high"]
        assert difference["num_documents"] == 4
        assert scores["differences"][f"{name} - {other}, uncontaminated"]["num_documents"] == 3
    for name, nats in scores["documents"][0]["nats"].items():
        assert nats < scores["candidates"][name]["nats"]


def test_a_planted_leak_is_found_said_and_stops_the_gate(outcome: Outcome) -> None:
    scores = outcome.scores

    assert scores["contamination"]["exact"] == ["h1"]
    assert scores["contamination"]["share"] == 0.25
    checks = {check["name"]: check for check in scores["gate"]["checks"]}
    assert checks["adapted.contaminated_share"] == {
        "name": "adapted.contaminated_share", "value": 0.25, "limit": 0.05, "passed": False, "enforced": True,
        "at_least": False, "interval": None, "unsure": False, "num": None, "undecided": False,
    }  # fmt: skip
    assert scores["gate"]["passed"] is False
    assert "1 of 4 documents are also in the training part (1 as a whole): h1" in outcome.log
    assert "gate: adapted.contaminated_share is 0.25, the limit is 0.05" in outcome.log


def test_only_the_finetuned_model_is_asked_through_the_chat_template(outcome: Outcome) -> None:
    for name, entry in outcome.scores["candidates"].items():
        made = entry["generations"]
        assert [one["mode"] for one in made[:2]] == ["greedy", "sampled"]
        assert [one["prompt"] for one in made[:2]] == ["Bakı şəhəri"] * 2
        answers = [one for one in made if one["kind"] == "answer"]
        assert len(answers) >= 2
        assert {one["chat"] for one in answers} == {name == "finetuned"}
        assert not any("<|" in one["text"] for one in made)


def test_the_same_job_gives_the_same_bytes(inputs: Path, outcome: Outcome, tmp_path: Path) -> None:
    again = job_on(inputs, tmp_path / "again")

    run(again)

    assert (again.out / "scores.json").read_bytes() == (outcome.job.out / "scores.json").read_bytes()


def test_named_files_are_scored_instead_of_the_corpus_part_and_a_context_is_cut_to_the_models(
    inputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"id": "own", "text": TEXTS[0]}) + "\n", encoding="utf-8")

    with caplog.at_level(logging.WARNING):
        scores, _ = scored(job_on(inputs, tmp_path / "out", (str(file),), context=4_096))

    assert scores["heldout"]["source"] == "files"
    assert scores["heldout"]["files"] == [str(file)]
    assert scores["candidates"]["base"]["num_bytes"] == len(TEXTS[0].encode())
    assert scores["contamination"]["exact"] == ["own"]
    assert [entry["id"] for entry in scores["documents"]] == ["own"]
    assert scores["candidates"]["base"]["context"] == 128
    assert "base: holds 128 tokens, fewer than the context of 4096" in caplog.text


def test_an_equal_model_passes_without_being_significant_whatever_the_stride(
    own: Path, outcome: Outcome, tmp_path: Path
) -> None:
    write_documents(own / "corpus", "train", [document(text) for text in TEXTS])
    job = job_on(own, tmp_path / "out", context=16, stride=4, gate={"max_loop_rate": 1, "min_documents": 1})
    job.inputs.update(model=own / "base")
    del job.inputs["adapter"]

    scores, figures = scored(job)

    checks = {check["name"]: check for check in scores["gate"]["checks"]}
    assert figures["gate"] == "passed"
    assert checks["adapted.fertility"]["value"] == checks["adapted.bits_per_byte"]["value"] == 1
    assert not checks["adapted.bits_per_byte_significant"]["passed"]
    assert not checks["adapted.bits_per_byte_significant"]["enforced"]
    assert list(scores["differences"]) == ["adapted - base", "adapted - base, retained en"]
    entry = scores["candidates"]["base"]
    assert (entry["context"], entry["stride"]) == (16, 4)
    assert entry["num_bytes"] == NUM_BYTES
    assert entry["words_in_context"] == int(16 / entry["fertility"])
    assert entry["bits_per_byte"] != outcome.scores["candidates"]["base"]["bits_per_byte"]


def test_a_mixture_of_experts_is_refused_by_name_before_a_model_is_loaded(own: Path, tmp_path: Path) -> None:
    (own / "model/config.json").write_text(json.dumps({"model_type": "qwen3_next", "num_experts": 128}))

    with pytest.raises(PreflightError, match=r"^adapted \(.*model type 'qwen3_next' is a mixture of experts"):
        run(job_on(own, tmp_path / "out"))


def test_models_continue_how_held_out_texts_begin_where_no_prompts_are_known(
    inputs: Path, tmp_path: Path
) -> None:
    job = job_on(inputs, tmp_path / "out", prompts=[])
    recipe = job.recipe.model_copy(update={"language": "ru"})

    scores, _ = scored(replace(job, recipe=recipe))

    for table in scores["candidates"].values():
        texts = {one["prompt"] for one in table["generations"] if one["kind"] == "continuation"}
        assert len(texts) == len(HELDOUT) + 1
        assert all(any(text.startswith(begin) for begin in texts) for text in HELDOUT)
        assert max(map(len, texts)) <= 40
    for name in ("base", "adapted"):
        assert scores["candidates"][name]["repetition"]["greedy"]["samples"] == len(HELDOUT) + 1
    assert scores["candidates"]["finetuned"]["repetition"] == {}, "it answers, and nobody asked it"


def test_only_models_that_answer_are_asked_to_refuse(outcome: Outcome) -> None:
    scores = outcome.scores

    asked = {name: table["refusals"] for name, table in scores["candidates"].items() if "refusals" in table}
    assert list(asked) == ["finetuned"]
    assert {(each["lang"], each["kind"]) for each in asked["finetuned"]["answers"]} == {
        (lang, kind) for lang in ("az", "en") for kind in ("harmful", "harmless")
    }
    assert scores["refusals"] == {"languages": ["az", "en"], "unread": ["az"], "skipped": {}}
    assert "finetuned.refusal_loss" in scores["gate"]["unmeasured"], "its base was not asked"


@pytest.mark.slow
def test_a_post_trained_base_alone_is_asked_in_its_chat_format(
    outcome: Outcome, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_chat, "MAX_NEW_TOKENS", 2)
    shutil.rmtree(own / "base")
    make_base(own / "base")

    scores, _ = scored(job_on(own, tmp_path / "out"))

    assert "own_chat" not in outcome.scores
    assert not any("own_chat" in table for table in outcome.scores["candidates"].values())
    assert scores["own_chat"]["end"] == "<|eot_id|>"
    assert [table["own_chat"]["num"] for table in scores["candidates"].values()] == [24, 24, 24]


@pytest.mark.parametrize("tuned_by", ["merge", "teacher", ""])
def test_only_text_by_which_a_candidate_was_tuned_is_not_scored(
    tuned_by: str, own: Path, tmp_path: Path
) -> None:
    texts = [f"{text} {number}" for number in range(2) for text in TEXTS]
    write_documents(own / "corpus", "heldout", [document(text, f"h{at}") for at, text in enumerate(texts)])
    job = job_on(own, tmp_path / "out")
    del job.inputs["adapter"]
    job.inputs.update(merged=own / "model")
    merge = {"base_share": "auto" if tuned_by == "merge" else 0.5}
    update: dict[str, Any] = {"merge": Recipe.model_validate({"merge": merge}).merge}
    if tuned_by == "teacher":
        update["sources"] = {"en": Source(inputs=("en.jsonl",), language="en", teacher="base")}

    scores, _ = scored(replace(job, recipe=job.recipe.model_copy(update=update)))

    tuned = {each.text for each in tuning_part(map(document, texts))[0]} if tuned_by == "merge" else set()
    ids = {f"h{at}" for at, text in enumerate(texts) if text not in tuned}
    assert {each["id"] for each in scores["documents"]} == ids
    assert scores["contamination"]["num_documents"] == scores["heldout"]["num_documents"] == len(ids)
    english = {"tuning": 4, "scored": 12}
    counts = {"heldout": {"tuning": len(tuned), "scored": len(ids)}, "retained": {"en": english}}
    assert scores.get("tuning") == (counts if tuned_by else None)
    assert len(scores["retained"]["documents"]) == (12 if tuned_by else 16)


def test_what_the_stage_tasks_found_goes_into_the_scores_as_it_is(tmp_path: Path) -> None:
    found = {"own": {"base": {"metric": "acc", "value": 0.5, "stderr": None, "chance": 0.25}}}
    (tmp_path / "tasks.json").write_text(json.dumps(found))

    def job(inputs: dict[str, Path]) -> Job:
        return Job(recipe=Recipe(), inputs=inputs, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    assert _table(job({"tasks": tmp_path}), "tasks", "tasks.json") == found
    assert _table(job({}), "tasks", "tasks.json") == {}


def test_a_recipe_without_tasks_leaves_the_stage_out_and_tasks_alone_decide_no_scores() -> None:
    without, named = Recipe(), Recipe.model_validate({"evaluate": {"tasks": "auto", "task_shots": 5}})

    assert is_left_out(STAGES["tasks"], without)
    assert not is_left_out(STAGES["tasks"], named)
    sections = STAGES["evaluate"].keys
    assert recipe_origin(without, sections) == recipe_origin(named, sections)
    assert recipe_origin(without, STAGES["tasks"].keys) != recipe_origin(named, STAGES["tasks"].keys)
