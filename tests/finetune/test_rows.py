"""Which chats training sees: no copies, nothing that an evaluation asks, each source by its weight."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError, RecipeError
from anadil.finetune.rows import Rows, read_rows
from anadil.recipe.load import load_recipe
from anadil.runtime.job import Job
from anadil.text.chats import DroppedChats, fingerprint, folded
from tests.kit.rows import write_rows

LONG = " ".join(f"user{number}" for number in range(40))


def pair(asked: str, answered: str) -> dict[str, str]:
    return {"prompt": asked, "response": answered}


def answers(number: int) -> list[dict[str, str]]:
    return [pair(f"{number} {each} sualdır?", f"{each * 7919} cavabdır.") for each in range(number)]


def put(folder: Path, name: str, rows: list[Any]) -> str:
    return str(write_rows(folder / name, rows))


class Reader:
    """Reads rows as the stage does."""

    def __init__(self, folder: Path, model: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self.folder, self.model, self.tokenizer = folder, model, tokenizer
        self.dropped = DroppedChats()

    def read(self, *files: str, side: Any = None, text_field: str = "text", **settings: object) -> Rows:
        self.dropped = DroppedChats()
        chosen = {"heldout_fraction": 0, "max_length": 256, "mix": {}, **settings}
        sets = [f"finetune.{key}={json.dumps(value)}" for key, value in chosen.items()]
        recipe = load_recipe("smoke", [*sets, f"clean.text_field={text_field}"])
        (self.folder / "out").mkdir(exist_ok=True)
        job = Job(
            recipe=recipe, inputs={"model": self.model}, files=files, side_files=side or {}, out=self.folder / "out",
            work=self.folder / "work", base_cache=self.folder,
        )  # fmt: skip
        return read_rows(job, self.tokenizer, self.dropped)

    def texts(self, rows: Any) -> list[str]:
        return [str(self.tokenizer.decode(row["input_ids"])) for row in rows]

    def written(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out" / name).read_text().splitlines()]


@pytest.fixture
def reader(tmp_path: Path, model_dir: Path, tokenizer: PreTrainedTokenizerFast) -> Reader:
    return Reader(tmp_path, model_dir, tokenizer)


def test_copies_and_near_copies_are_taken_out_and_short_chats_or_answers_that_differ_stay(
    reader: Reader, tmp_path: Path
) -> None:
    chats = [
        pair("Sual birdir?", LONG),
        pair("SUAL birdir", f" {LONG}. "),
        pair("Sual birdir?", LONG.replace("user7 ", "user7a ")),
        pair("Sual birdir?", "Tamam başqa cavab."),
        pair("Sual ikidir?", "Tamam başqa cavab."),
    ]

    rows = reader.read(put(tmp_path, "a.jsonl", [*chats, *answers(50)]))

    assert len(rows.train) == 53
    assert reader.dropped.places == {"duplicate": ["a.jsonl:2"], "near_duplicate": ["a.jsonl:3"]}


def held_out(number: int, fraction: float) -> str:
    """The first question that the hash puts on the held-out side, from a number on."""
    return next(
        asked
        for each in range(number, number + 1_000)
        if fingerprint(folded(asked := f"Sual {each} hansıdır?")) / 2**64 < fraction
    )


def test_a_held_out_question_is_nowhere_in_training(reader: Reader, tmp_path: Path) -> None:
    one = held_out(0, 0.1)
    longer = [pair("Salam!", "Salam!"), pair(one, "Bilmirəm.")]
    turns = [
        {"role": role, "content": each[key]}
        for each in longer
        for role, key in zip(("user", "assistant"), each, strict=True)
    ]
    near = pair("Bu sual başqadır, cavab eynidir?", LONG)
    rows = [
        *answers(40),
        {"messages": turns},
        pair(one, LONG),
        pair(one.upper(), "Başqa cavab."),
        near,
    ]

    found = reader.read(put(tmp_path, "a.jsonl", rows), heldout_fraction=0.1)

    asked = {row["messages"][0]["content"] for row in found.heldout}
    assert {one, one.upper()} <= asked
    assert not any(one.lower() in text.lower() for text in reader.texts(found.train))
    assert reader.dropped.places == {"evaluation_question": ["a.jsonl:41"]}
    assert reader.written("heldout_chats.jsonl") == found.heldout
    seen = {row["messages"][0]["content"] for row in reader.written("seen_chats.jsonl")}
    assert len(seen) == 32
    assert not seen & asked


def test_a_column_that_sorts_rows_into_groups_goes_along(reader: Reader, tmp_path: Path) -> None:
    rows = [row | {"Bölmə": "ABC"[n % 3], "Ad": f"Müştəri {n}"} for n, row in enumerate(answers(60))]

    found = reader.read(put(tmp_path, "a.jsonl", rows), heldout_fraction=0.2)

    written = [*reader.written("seen_chats.jsonl"), *found.heldout]
    assert {value for row in written for value in row["topics"].values()} == set("ABC")
    assert {name for row in written for name in row["topics"]} == {"Bölmə"}, "a name groups nothing"


def test_of_near_copies_the_held_out_one_stays(reader: Reader, tmp_path: Path) -> None:
    asked = held_out(0, 0.2)
    other = next(
        each for n in range(99) if (each := f"Sual {n} hansıdır?") != asked and held_out(n, 0.2) != each
    )

    found = reader.read(
        put(tmp_path, "a.jsonl", [pair(other, LONG), pair(asked, LONG), *answers(5)]), heldout_fraction=0.2
    )

    assert asked in {row["messages"][0]["content"] for row in found.heldout}
    assert reader.dropped.places == {"near_duplicate": ["a.jsonl:1"]}


@pytest.mark.parametrize("name", ["heldout.jsonl", "heldout.parquet", "heldout.txt"])
def test_what_evaluation_asks_and_scores_is_left_out(reader: Reader, tmp_path: Path, name: str) -> None:
    questions = put(tmp_path, "questions.jsonl", [{"question": "Paytaxt hansıdır?", "answer": "Bakı"}])
    text = f"Bir başlıq\n{LONG}\n"
    heldout = put(tmp_path, name, [{"document": {"text": text}}])
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"document": [{"text": text}]}), heldout)
    if name.endswith(".txt"):
        Path(heldout).write_text(text, encoding="utf-8")
    rows = [
        pair("PAYTAXT hansıdır", "Bakı."),
        pair("Bu nədir?", f"Mətn:\n{LONG}"),
        pair("Bir başlıq", "Nədir?"),
        pair("Paytaxt haradadır?", "Bakıda."),
    ]
    side = {"evaluate.questions": (questions,), "evaluate.heldout": (heldout,)}

    found = reader.read(put(tmp_path, "a.jsonl", rows), side=side, text_field="document.text")

    assert len(found.train) == 2
    assert reader.dropped.places == {"evaluation_question": ["a.jsonl:1", "a.jsonl:2"]}


def test_each_source_is_shown_as_often_as_its_weight_says(reader: Reader, tmp_path: Path) -> None:
    files = [
        put(tmp_path, f"{name}.jsonl", answers(number)) for name, number in (("a", 10), ("b", 8), ("c", 3))
    ]

    found = reader.read(*files, mix={"a": 0.5, "b": 2.25, "c": 0})

    texts = [reader.texts(found.train)[place] for place in found.mix.places(0, 0)]
    counts = [sum(f"{number} " in text.split("\n\n")[1][:3] for text in texts) for number in (10, 8, 3)]
    assert counts == [5, 18, 0]
    assert max(texts.count(text) for text in texts) == 3


def test_a_weight_for_a_source_that_there_is_not_is_refused(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"finetune\.mix: no chats of dolly; the sources are a"):
        reader.read(put(tmp_path, "a.jsonl", answers(3)), mix={"dolly": 2})


def test_a_source_of_which_every_chat_is_too_long_is_trained_without_and_said(
    reader: Reader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [
        put(tmp_path, "a.jsonl", answers(3)),
        put(tmp_path, "english.jsonl", [pair("Who?", "word " * 400), pair("Where?", "there " * 400)]),
    ]

    found = reader.read(*files, mix={"english": 0.5})

    assert len(found.train) == 3
    assert reader.dropped.counts == {"too_long": 2}
    assert "english: trained without any of its 2 chats, which are skipped as below" in caplog.text
    assert "2 of 5 chats skipped: too_long 2" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"validation_fraction": 0.001},
            r"finetune\.validation_fraction: 0\.001 of 3 chats is none; raise it or set 0",
        ),
        (
            {"heldout_fraction": 0.999},
            r"chats: of 3 none is left to train on; lower finetune\.heldout_fraction \(0\.999",
        ),
        ({"mix": {"a": 0}}, r"chats: of 3 none is left to train on; .* raise a weight of finetune\.mix"),
        ({"max_length": 4}, r"chats: none of 3 rows can be trained on: too_long 3"),
    ],
)
def test_an_empty_part_is_refused_with_its_key(
    reader: Reader, tmp_path: Path, settings: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        reader.read(put(tmp_path, "a.jsonl", answers(3)), **settings)


def test_equal_chats_give_equal_rows_and_another_mix_another_digest(reader: Reader, tmp_path: Path) -> None:
    file = put(tmp_path, "a.jsonl", answers(20))

    one, again = reader.read(file, validation_fraction=0.2), reader.read(file, validation_fraction=0.2)

    assert one.digest == again.digest
    assert one.train[:] == again.train[:]
    assert len(one.train) + len(one.validation) == 20
    assert len(one.validation) > 0
    assert reader.read(file, validation_fraction=0.2, mix={"a": 2}).digest != one.digest


@pytest.mark.slow
def test_a_row_of_ten_megabytes_is_counted_and_the_others_are_read(reader: Reader, tmp_path: Path) -> None:
    big = pair("Uzun?", "uzun " * 2_000_000)

    found = reader.read(put(tmp_path, "a.jsonl", [*answers(2), big]))

    assert len(found.train) == 2
    assert reader.dropped.places == {"too_long": ["a.jsonl:3"]}


def anonymous_memory() -> int:
    """KiB of this process that no file holds."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_chats(reader: Reader, tmp_path: Path) -> None:
    reader.read(put(tmp_path, "a.jsonl", answers(2_000)))
    before = anonymous_memory()

    found = reader.read(put(tmp_path, "b.jsonl", answers(20_000)))

    assert len(found.train) == 20_000
    # Some 100 bytes a chat while what repeats is looked for; its ids and text take ten times as much.
    assert anonymous_memory() - before < 20_000


def test_a_reading_that_breaks_off_leaves_nothing_that_the_next_takes_for_whole(
    reader: Reader, tmp_path: Path
) -> None:
    sound, damaged = put(tmp_path, "a.jsonl", answers(3)), tmp_path / "b.jsonl.gz"
    damaged.write_bytes(b"no gzip")

    with pytest.raises(DataError, match=r"b\.jsonl\.gz"):
        reader.read(sound, str(damaged))

    assert len(reader.read(sound).train) == 3


def test_chats_without_a_system_turn_get_that_of_the_recipe(reader: Reader, tmp_path: Path) -> None:
    rows = [pair("Bir?", "İki."), {**pair("Üç?", "Dörd."), "system": "Uzun yaz."}]

    found = reader.read(put(tmp_path, "a.jsonl", rows), system="Qısa yaz.")

    first, second = reader.texts(found.train)
    assert first.count("Qısa yaz.") == second.count("Uzun yaz.") == 1
    assert "Qısa" not in second
