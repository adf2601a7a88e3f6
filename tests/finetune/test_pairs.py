"""Pairs of answers: what is read, left out, held out and refused before anything is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.finetune.pair_trainer import Pairs, read_pair_rows
from anadil.text.chats import fingerprint, folded
from tests.finetune.test_preference import job_of, pair
from tests.finetune.test_run import FOREIGN_WARNINGS
from tests.kit.rows import write_rows

pytestmark = FOREIGN_WARNINGS

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
