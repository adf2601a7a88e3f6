import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
import zstandard
from datasets import Dataset
from tokenizers.processors import TemplateProcessing

from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError
from anadil.evaluate.run import read_items
from anadil.model.load import load_model, load_tokenizer
from anadil.runtime.job import Job
from anadil.tasks.harness import Harnessed, _data_faults
from anadil.tasks.run import run
from anadil.tasks.shipped.choices import question_of, with_choices
from tests.kit.rows import write_rows
from tests.tasks.conftest import QUESTIONS, TASK

JobOf = Callable[..., Job]


def stored(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.out / "tasks.json").read_text())
    return found


def samples_of(job: Job, candidate: str) -> list[dict[str, Any]]:
    packed = (job.out / f"harness/{candidate}.samples.jsonl.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
        return [json.loads(line) for line in stream.read().decode().splitlines()]


def answer_nats(path: Path, question: str, answer: str) -> float:
    """-ln p of an answer after its question, with one BOS: plain transformers."""
    model, tokenizer = load_model(path), load_tokenizer(path)
    encode: Any = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    ids = [tokenizer.bos_token_id, *encode(question + answer)]
    first = 1 + len(encode(question))
    with torch.inference_mode():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return -float(sum(scores[at - 1, ids[at]] for at in range(first, len(ids))))


def test_questions_of_a_file_are_asked_of_all_candidates_and_all_is_stored(
    job_of: JobOf, questions: Path, models: Path
) -> None:
    job = job_of(str(questions))

    assert run(job) == {"tasks": 1, "candidates": 3}

    table = stored(job)["questions"]
    assert list(table) == ["base", "adapted", "finetuned"]
    chance = (1 / 3 + 1 / 2 + 1 / 2) / 3
    for figures in table.values():
        assert figures["metric"] == "acc_bytes"
        assert figures["value"] * 3 == pytest.approx(round(figures["value"] * 3))
        assert figures["chance"] == pytest.approx(chance)
    items = read_items(job.out)
    assert [each.source for each in items] == ["questions"] * 3
    assert items[0].text == "Bakı hansı dənizin sahilindədir?\nXəzər\nQara\nAralıq"
    samples = samples_of(job, "adapted")
    assert [sample["doc"]["answer"] for sample in samples] == [0, 0, 1]
    ((score, _),) = samples[0]["resps"][0]
    expected = answer_nats(models / "model", QUESTIONS[0]["question"], "\nXəzər")
    assert -float(score) == pytest.approx(expected, rel=1e-5)
    whole = json.loads((job.out / "harness/base.json").read_text())
    assert whole["n-samples"]["questions"]["effective"] == 3
    assert set(job.varying) == {path.relative_to(job.out).as_posix() for path in job.out.glob("harness/*")}


def test_a_directory_of_task_files_holds_tasks_and_a_group_over_them(
    job_of: JobOf, task_folder: Path
) -> None:
    (task_folder / "second.yaml").write_text(yaml.safe_dump({"include": "task.yaml", "task": "own_again"}))
    group = {"group": "own", "task": ["own_questions", "own_again"]}
    mean = {"aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]}
    (task_folder / "group.yaml").write_text(yaml.safe_dump(group | mean))
    job = job_of(str(task_folder))

    run(job)

    table = stored(job)
    assert set(table) == {"own", "own_questions", "own_again"}
    assert table["own"]["base"]["value"] == pytest.approx(table["own_questions"]["base"]["value"])
    assert table["own"]["base"]["chance"] == pytest.approx(table["own_again"]["base"]["chance"])


def test_the_task_of_tumlu_asks_for_a_letter(job_of: JobOf, tmp_path: Path) -> None:
    from anadil.tasks.native import FOLDER

    rows = [{"question": " Bakı? ", "choices": ["4n", "4n-1", "4n-3"], "answer": "C", "subject": "Math"}]
    folder = tmp_path / "own"
    folder.mkdir()
    write_rows(folder / "rows.jsonl", rows)
    task = {
        key: value
        for name in ("_tumlu", "tumlu_kazakh")
        for key, value in yaml.safe_load((FOLDER / f"{name}.yaml").read_text()).items()
        if key not in ("include", "dataset_name", "fewshot_split")
    }
    task |= {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}}
    (folder / "tumlu.yaml").write_text(yaml.safe_dump(task))
    job = job_of(str(folder))

    run(job)

    (sample,) = samples_of(job, "base")
    asked = [list(each.values()) if isinstance(each, dict) else each for each in sample["arguments"]]
    assert asked == [["Bakı?\nA. 4n\nB. 4n-1\nC. 4n-3\nЖауап:", f" {letter}"] for letter in "ABC"]
    assert sample["target"] in (2, "2")
    assert math.isclose(stored(job)["tumlu_kazakh"]["base"]["chance"], 1 / 3)


def test_a_task_whose_data_is_neither_here_nor_reachable_is_refused(job_of: JobOf) -> None:
    with pytest.raises(
        PreflightError, match=r"data of tumlu_azerbaijani is not in the cache.*anadil tasks fetch"
    ):
        run(job_of("tumlu_azerbaijani"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"dataset_kwargs": {"data_files": "../questions.jsonl"}}, DataError, "not beside it"),
        ({"dataset_path": "/data/rows"}, DataError, "dataset_path '/data/rows'"),
        ({"include": "base.yaml"}, DataError, "reads 'base.yaml'"),
        ({"class": "Task"}, IntegrityError, "asks to run code"),
        (
            {"dataset_kwargs": {"data_files": "broken.jsonl"}},
            DataError,
            "data of own_questions cannot be read",
        ),
    ],
)
def test_a_task_file_is_refused_that_reads_elsewhere_or_runs_code(
    job_of: JobOf, task_folder: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    (task_folder / "broken.jsonl").write_text("{not json\n")
    (task_folder / "task.yaml").write_text(yaml.safe_dump(TASK | change))

    with pytest.raises(error, match=words):
        run(job_of(str(task_folder)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: [own", "is not YAML"),
        ("task: 2024-02-30", "is not YAML"),
        ("task: " + "[" * 10_000 + "]" * 10_000, "nested too deep"),
        ("task: own\nmetadata: &itself [*itself]\n", "nested too deep"),
    ],
)
def test_a_task_file_that_is_no_yaml_is_named(
    job_of: JobOf, task_folder: Path, text: str, words: str
) -> None:
    (task_folder / "task.yaml").write_text(text)

    with pytest.raises(DataError, match=rf"task\.yaml.*{words}"):
        run(job_of(str(task_folder)))


def test_a_task_file_with_a_function_and_pairs_without_choices_are_refused(
    job_of: JobOf, task_folder: Path, tmp_path: Path
) -> None:
    (task_folder / "task.yaml").write_text(yaml.safe_dump(TASK) + "process_docs: !function steal.secrets\n")
    pairs = write_rows(tmp_path / "pairs.jsonl", [{"prompt": "Necəsən?", "response": "Yaxşı."}])

    with pytest.raises(IntegrityError, match="asks to run code"):
        run(job_of(str(task_folder)))
    with pytest.raises(DataError, match=r"pairs.jsonl has no question with choices.*evaluate.questions"):
        run(job_of(str(pairs)))


def test_two_groups_that_hold_the_same_task_are_refused(job_of: JobOf, task_folder: Path) -> None:
    for name in ("own", "other"):
        group = {"group": name, "task": ["own_questions"]}
        (task_folder / f"{name}.yaml").write_text(yaml.safe_dump(group))

    with pytest.raises(RecipeError, match="both hold own_questions"):
        run(job_of(str(task_folder)))


def test_choices_are_read_out_of_a_prompt_that_lists_them() -> None:
    prompt = "Kişi kranı açdı.\nNəticə hansıdır?\n1) Tualet su ilə doldu.\n2) Krandan su axdı."
    choices = ["Tualet su ilə doldu.", "Krandan su axdı."]

    question = question_of({"prompt": prompt, "response": "Krandan su axdı."})

    assert question == {"question": prompt, "choices": choices, "answer": 1}


def test_rows_that_are_no_questions_with_choices_are_left_out() -> None:
    question = {"question": "2 + 2?", "choices": ["3", "4"]}
    rows = [
        {**question, "answer": "B"},
        {**question, "answer": "5"},
        {**question, "choices": ["4"], "answer": "4"},
    ]

    assert list(with_choices(Dataset.from_list(rows))) == [{**question, "answer": 1}]


LENGTH = 24


@pytest.fixture
def harnessed(models: Path) -> Any:
    def make(*, sets_bos: bool) -> Harnessed:
        tokenizer: Any = load_tokenizer(models / "model")
        bos = (tokenizer.bos_token, tokenizer.bos_token_id)
        end = (tokenizer.eos_token, tokenizer.eos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos[0]} $A {end[0]}" if sets_bos else "$A",
            special_tokens=[bos, end] if sets_bos else [],
        )
        return Harnessed(load_model(models / "model").eval(), tokenizer, LENGTH)

    return make


def asked(model: Any, context: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of a row that the model reads to score an answer."""
    rows: list[list[int]] = []
    call = model._model_call

    def heard(ids: Any, **more: Any) -> Any:
        rows.extend(ids.tolist())
        return call(ids, **more)

    monkeypatch.setattr(model, "_model_call", heard)
    model._loglikelihood_tokens([((context, answer), *model._encode_pair(context, answer))])
    return rows[0]


def test_a_long_request_keeps_its_bos_and_has_no_other_token_of_the_tokenizers(
    harnessed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = harnessed(sets_bos=True)
    bos, eos = model.tokenizer.bos_token_id, model.tokenizer.eos_token_id

    for context in ("Qatar", "Qatar hara getdi? " * 12):
        row = asked(model, context, " stansiyaya", monkeypatch)

        assert row[0] == bos
        assert row.count(bos) == 1
        assert eos not in row
    assert len(row) == LENGTH


def test_texts_to_go_on_with_keep_it_too_where_they_are_cut(harnessed: Any) -> None:
    model = harnessed(sets_bos=True)

    ids, mask = model.tok_batch_encode(["Bir", "Qatar hara getdi? " * 12], left_truncate_len=LENGTH)

    bos = model.tokenizer.bos_token_id
    assert ids.shape[1] == LENGTH
    for row, seen in zip(ids.tolist(), mask.tolist(), strict=True):
        assert row[seen.index(1)] == bos
        assert [token for token, each in zip(row, seen, strict=True) if each].count(bos) == 1


def test_where_windows_have_none_only_whole_texts_begin_with_it(
    harnessed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = harnessed(sets_bos=False)
    bos = model.tokenizer.bos_token_id

    assert asked(model, "Qatar", " stansiyaya", monkeypatch)[0] == bos
    assert bos not in asked(model, "Qatar hara getdi? " * 12, " stansiyaya", monkeypatch)


def test_a_bases_requests_begin_as_those_of_the_model_made_of_it(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Harnessed(
        load_model(models / "model").eval(), load_tokenizer(models / "model"), LENGTH, begins=True
    )

    row = asked(model, "Qatar hara getdi? " * 12, " stansiyaya", monkeypatch)

    assert row[0] == model.tokenizer.bos_token_id


def test_a_task_whose_package_is_not_here_is_refused_by_name() -> None:
    with (
        pytest.raises(PreflightError, match="ifeval needs a package that is not here"),
        _data_faults("ifeval"),
    ):
        raise ModuleNotFoundError("No module named 'langdetect'")


def test_bos_stands_for_an_empty_question(harnessed: Any) -> None:
    model = harnessed(sets_bos=True)

    assert model.prefix_token_id == model.tokenizer.bos_token_id
    assert json.dumps(model.tok_encode("")) == json.dumps([model.tokenizer.bos_token_id])
