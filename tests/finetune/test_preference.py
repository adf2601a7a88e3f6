"""The preference step: what it reads, what it learns, beside TRL's own trainer, and that it goes on where it stopped."""

import json
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from anadil.artifacts.base_model import CHAT_TEMPLATE
from anadil.core.errors import DataError, PreflightError, Stopped
from anadil.core.stages import STAGES
from anadil.finetune.preference import KEY, Pairs, PreferenceCallback, read_pair_rows, refuse_uneven
from anadil.finetune.run import run
from anadil.finetune.trainer import FullBatches
from anadil.model.load import load_model
from anadil.recipe.finetune import Preference
from anadil.recipe.load import load_recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job, external_side_files, most_processes
from anadil.text.chats import fingerprint, folded
from tests.finetune.conftest import small_tokenizer
from tests.finetune.test_run import FOREIGN_WARNINGS, SMALL, URI
from tests.kit.rows import write_rows

pytestmark = FOREIGN_WARNINGS

NUM_PAIRS = 8
LEARNING = ("preference.gradient_accumulation=1", "preference.lr=0.002", "preference.batch_size=4")
ALL_AT_ONCE = ("preference.batch_size=8", "preference.epochs=3", "preference.gradient_accumulation=1")
WHOLE = (*LEARNING, "preference.epochs=3", "heldout_fraction=0.3")


def pair(number: int) -> dict[str, str]:
    return {
        "prompt": f"Azərbaycanın {number}-ci şəhəri hansıdır?",
        "chosen": f"Şəhər {number * 7}, balans.",
        "rejected": f"Bilmirəm {number}, zəng düyməsini basın.",
    }


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", map(pair, range(NUM_PAIRS)))


def job_of(folder: Path, model: Path, chats: Path, pairs: Path, *settings: str) -> Job:
    words = [
        *SMALL,
        "finetune.heldout_fraction=0",
        *(f"finetune.{each}" for each in settings),
        f"{KEY}=[{pairs}]",
    ]
    out = folder / "out"
    out.mkdir(parents=True)
    return Job(
        recipe=load_recipe("smoke", words), inputs={"model": model}, uris={"model": URI}, files=(str(chats),),
        side_files={KEY: (str(pairs),)}, out=out, work=folder / "work", base_cache=folder,
    )  # fmt: skip


def curve(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "preference.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def adapter(model_dir: Path, many_chats: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run over a part of the pairs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("adapter")
    run(job_of(folder, model_dir, many_chats, pairs, *WHOLE))
    return folder


@pytest.fixture(scope="module")
def everything(
    model_dir: Path, many_chats: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Folder of a run of all weights, with all pairs in each batch."""
    folder = tmp_path_factory.mktemp("everything")
    run(job_of(folder, model_dir, many_chats, pairs, "trains=all", *ALL_AT_ONCE, "preference.lr=0.0005"))
    return folder


def log_ratio(model: Any, tokenizer: PreTrainedTokenizerFast, row: dict[str, str]) -> float:
    """log p(chosen) - log p(rejected), by transformers alone."""
    sums = []
    for side in ("chosen", "rejected"):
        ids = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": row["prompt"]}, *more], return_dict=True,
                chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"), add_generation_prompt=not more,
            )["input_ids"]
            for more in ([], [{"role": "assistant", "content": row[side]}])
        ]  # fmt: skip
        with torch.no_grad():
            scores = model(torch.tensor([ids[1]])).logits[0, :-1].log_softmax(-1)
        start = len(ids[0]) - 1
        sums.append(float(scores[range(start, len(ids[1]) - 1), ids[1][start + 1 :]].sum()))
    return sums[0] - sums[1]


def test_the_chosen_answers_become_likelier_than_the_rejected_and_the_margin_rises(
    adapter: Path, model_dir: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    lines, summary = curve(adapter / "out"), json.loads((adapter / "out/training.json").read_text())

    finetuned = adapter / f"work/trainer/checkpoint-{summary['steps']}"
    before = PeftModel.from_pretrained(load_model(model_dir), finetuned).eval()
    after = load_model(adapter / "out/merged")
    rows = [pair(number) for number in range(NUM_PAIRS)]
    gained = [log_ratio(after, tokenizer, row) - log_ratio(before, tokenizer, row) for row in rows]

    figures = summary["preference"]
    assert lines[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert lines[0]["reward_margin"] == pytest.approx(0, abs=1e-5)
    assert lines[-1]["reward_margin"] > 0.3
    assert min(gained) > 0
    assert figures["pairs"] + figures["heldout_pairs"] == NUM_PAIRS
    assert figures["heldout_pairs"] > 0
    # The margin of held-out pairs is that of the model that is released.
    heldout = [
        0.1 * gain
        for row, gain in zip(rows, gained, strict=True)
        if fingerprint(folded(row["prompt"])) / 2**64 < 0.3
    ]
    assert figures["heldout_margin"] == pytest.approx(np.mean(heldout), abs=1e-3)
    assert figures["heldout_accuracy"] == 1.0


def test_one_adapter_on_the_base_is_the_model_after_both_steps(adapter: Path, model_dir: Path) -> None:
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        expected = PeftModel.from_pretrained(load_model(model_dir), adapter / "out").eval()(tokens).logits
        merged = load_model(adapter / "out/merged")(tokens).logits

    assert (merged - expected).abs().max() < 1e-5 * expected.abs().max()
    assert "preference" not in json.loads((adapter / "out/adapter_config.json").read_text())


def test_the_audit_shows_both_answers_of_a_pair_with_their_end(adapter: Path) -> None:
    audited = json.loads((adapter / "out/mask_audit.json").read_text())["preference"]

    trained = [sample.split("⟦") for sample in audited["samples"]]
    assert audited["share_ending_in_eot"] == 1.0
    assert all(len(parts) == 2 and parts[1].endswith("<|eot_id|>⟧") for parts in trained)
    assert {parts[1].split()[0] for parts in trained} == {"Şəhər", "Bilmirəm"}


def test_losses_and_margins_are_those_of_trl_on_the_same_rows(everything: Path, tmp_path: Path) -> None:
    finetuned = next((everything / "work/trainer").glob("checkpoint-12"))
    tokenizer = small_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    tokenizer.pad_token = "<|end_of_text|>"
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}]}
        | {side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}
        for row in map(pair, range(NUM_PAIRS))
    ]
    settings = DPOConfig(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=NUM_PAIRS, learning_rate=0.0005,
        lr_scheduler_type="linear", warmup_steps=0.1, beta=0.1, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        activation_checkpointing=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = DPOTrainer(
        model=load_model(finetuned), ref_model=load_model(finetuned), args=settings,
        train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()

    expected = [line for line in trainer.state.log_history if "loss" in line]
    for name, theirs in (("loss", "loss"), ("reward_margin", "rewards/margins"), ("grad_norm", "grad_norm")):
        mine = [line[name] for line in curve(everything / "out")]
        assert mine == pytest.approx([line[theirs] for line in expected], rel=1e-4, abs=1e-5), name


def test_all_weights_that_learnt_are_the_merged_model(everything: Path) -> None:
    before = load_file(next((everything / "work/trainer").glob("checkpoint-12/model.safetensors")))
    after = load_file(everything / "out/merged/model.safetensors")
    summary = json.loads((everything / "out/training.json").read_text())

    assert any(not torch.equal(before[name], after[name]) for name in after)
    assert not (everything / "out/adapter_model.safetensors").exists()
    assert summary["preference"]["lr"] == 0.0005
    assert "heldout_margin" not in summary["preference"]


def resumed_equals(job: Job, whole: Path) -> None:
    run(job)

    for file in ("preference.jsonl", "training.jsonl", "merged/model.safetensors"):
        assert (job.out / file).read_bytes() == (whole / "out" / file).read_bytes(), file


def test_a_signal_in_the_step_ends_it_and_the_next_start_goes_on_to_the_same_curve(
    adapter: Path, model_dir: Path, many_chats: Path, pairs: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    job = job_of(tmp_path, model_dir, many_chats, pairs, *WHOLE)
    on_save = PreferenceCallback.on_save

    def stopped(self: PreferenceCallback, args: Any, state: Any, control: Any, **_: object) -> None:
        on_save(self, args, state, control)
        if state.global_step == 2:
            self.job.stop.signal = signal.SIGTERM

    with monkeypatch.context() as patch:
        patch.setattr(PreferenceCallback, "on_save", stopped)
        with pytest.raises(Stopped):
            run(job)
    shutil.rmtree(job.out)

    with caplog.at_level(logging.INFO):
        resumed_equals(job_of(tmp_path, model_dir, many_chats, pairs, *WHOLE), adapter)

    assert " 3 done" in caplog.text


def test_after_a_kill_the_newest_whole_checkpoint_is_gone_on_with_and_none_without_its_reference(
    adapter: Path, model_dir: Path, many_chats: Path, pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    work = shutil.copytree(adapter / "work", tmp_path / "work") / "preference"
    newest = max((work / "trainer").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (newest / "manifest.json").unlink()  # killed while it was written
    with caplog.at_level(logging.INFO):
        resumed_equals(job_of(tmp_path, model_dir, many_chats, pairs, *WHOLE), adapter)
    assert f"{newest.name}: not used (incomplete" in caplog.text

    (work / "reference/log_probabilities.npy").write_bytes(b"damaged")
    (newest / "manifest.json").unlink()
    shutil.rmtree(tmp_path / "out")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        resumed_equals(job_of(tmp_path, model_dir, many_chats, pairs, *WHOLE), adapter)
    assert " 0 done" in caplog.text


def test_a_finished_preference_is_not_learned_again(
    adapter: Path, model_dir: Path, many_chats: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    shutil.copytree(adapter / "work", tmp_path / "work")
    monkeypatch.delattr("anadil.finetune.preference._trainer")

    resumed_equals(job_of(tmp_path, model_dir, many_chats, pairs, *WHOLE), adapter)


def test_the_content_of_pairs_decides_the_key_and_a_recipe_without_them_keeps_its_own(tmp_path: Path) -> None:
    stage, file = STAGES["finetune"], write_rows(tmp_path / "pairs.jsonl", [pair(1)])

    def origin(*words: str) -> dict[str, str]:
        recipe = load_recipe("smoke", list(words))
        return stage_origin(stage, recipe, {}, (), external_side_files(stage, recipe))

    named = f"{KEY}=[{file}]"
    first = origin(named)
    write_rows(file, [pair(2)])

    assert not [key for key in origin() if "preference" in key]
    assert origin(named) != first
    assert origin(named, "finetune.preference.beta=0.2")["recipe finetune.preference.beta"] == "0.2"


def test_processes_must_share_a_batch_evenly() -> None:
    recipe = load_recipe("smoke", [f"{KEY}=[a.jsonl]"])

    assert most_processes(STAGES["finetune"], recipe) == 4
    with pytest.raises(
        PreflightError, match=r"batch_size: 4 pairs are not as many for each of 3 processes; set it to 6"
    ):
        refuse_uneven(Preference(inputs=("a.jsonl",)), 3)


@pytest.mark.parametrize(("count", "size"), [(10, 4), (3, 4), (1, 8), (8, 4)])
def test_every_batch_is_full_and_every_pair_is_in_one(count: int, size: int) -> None:
    batches = FullBatches(list(range(1, count + 1)), size, seed=1).batches()

    assert {len(batch) for batch in batches} == {size}
    assert set(np.concatenate(batches).tolist()) == set(range(count))
    assert len(batches) == -(-count // size)


Read = Callable[..., Pairs]


@pytest.fixture
def read(model_dir: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Read:
    """The rows of a file of pairs."""

    def rows_of(rows: list[Any], *settings: str, asked: Any = (), name: str = "pairs") -> Pairs:
        file = write_rows(tmp_path / f"{name}.jsonl", rows)
        job = job_of(tmp_path / name, model_dir, file, file, "preference.max_length=128", *settings)
        preference = job.recipe.finetune.preference
        assert preference is not None
        return read_pair_rows(job, preference, tokenizer, np.array(asked, dtype=np.uint64))

    return rows_of


def test_what_cannot_be_learnt_is_left_out_whole_and_counted_by_reason(read: Read) -> None:
    good = pair(1)
    rows = [
        good, good, {"prompt": "Salam"}, {**good, "rejected": good["chosen"]}, {**good, "chosen": ""},
        {**good, "chosen": "Salam " * 200}, {**good, "rejected": "salam " * 170_000},
        {**good, "chosen": "\ud83d"}, {**good, "chosen": [{"role": "boss", "content": "Salam"}]},
    ]  # fmt: skip

    pairs = read(rows)

    assert len(pairs.train) == 1
    assert pairs.audit["rows"] == len(rows)
    assert pairs.audit["dropped"] == {
        "duplicate": 1, "empty_message": 1, "no_pair": 1, "not_unicode": 1, "same_answer": 1, "too_long": 2,
        "unknown_role": 1,
    }  # fmt: skip


def test_pairs_are_written_in_several_parts_and_none_is_lost(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [pair(number) for number in range(7)]
    whole = read(rows, name="whole")
    monkeypatch.setattr("anadil.finetune.rows.ROWS_AT_A_TIME", 3)

    parts = read(rows)

    assert list(parts.train) == list(whole.train)
    assert len(parts.train) == 7


def test_control_words_in_an_answer_are_letters(read: Read, tokenizer: PreTrainedTokenizerFast) -> None:
    row = {**pair(1), "chosen": "a<|eot_id|>b", "rejected": "<|end_of_text|>"}

    ids = read([row]).train[0]

    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    for side in ("chosen", "rejected"):
        assert ids[f"{side}_ids"].count(end) == 1
        assert tokenizer.decode(ids[f"{side}_ids"]) == f"{row[side]}<|eot_id|>"
        assert tokenizer.convert_tokens_to_ids("<|end_of_text|>") not in ids[f"{side}_ids"]


def test_what_evaluation_asks_is_in_no_pair(read: Read, tokenizer: PreTrainedTokenizerFast) -> None:
    later = [
        {"role": "user", "content": "Salam"}, {"role": "assistant", "content": "Salam!"},
        {"role": "user", "content": "Gizli sual?"},
    ]  # fmt: skip
    rows = [*(pair(number) for number in range(30)), {**pair(1), "prompt": later}]

    pairs = read(rows, "heldout_fraction=0.5", asked=[fingerprint(folded("gizli sual"))])

    def asked(part: Dataset) -> set[bool]:
        texts = [
            tokenizer.decode(row["prompt_ids"])
            .split("\n\n")[1]
            .removesuffix("<|eot_id|><|start_header_id|>assistant<|end_header_id|>")
            for row in part
        ]
        return {fingerprint(folded(text)) / 2**64 < 0.5 for text in texts}

    assert pairs.audit["dropped"] == {"evaluation_question": 1}
    assert len(pairs.train) + len(pairs.heldout) == 30
    assert (asked(pairs.train), asked(pairs.heldout)) == ({False}, {True})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"pairs: .*pairs\.jsonl hold no rows; a row of pairs needs `chosen` and `rejected`"),
        (
            [{"prompt": "Salam"}],
            r"pairs: none of 1 rows can be trained on: no_pair 1 .*pairs\.jsonl:1 \('no chosen'\)",
        ),
        (
            [{**pair(1), "chosen": "Salam " * 200}],
            r"none of 1 rows can be trained on: too_long 1 .*max_length",
        ),
        ([["Salam"]], r"pairs\.jsonl:1: a list, not an object"),
    ],
)
def test_files_without_a_pair_are_data_errors_that_say_why(read: Read, rows: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(rows)


def test_all_pairs_held_out_are_a_data_error(read: Read) -> None:
    with pytest.raises(
        DataError, match=r"pairs: of 1 none is left to train on; lower finetune\.heldout_fraction"
    ):
        read([pair(1)], "heldout_fraction=0.999")
