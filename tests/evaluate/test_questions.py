"""Questions with known answers, on real small models, one of them taught its answers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from anadil.core.errors import DataError
from anadil.evaluate.answers import choice_figures, is_word_for_word
from anadil.evaluate.bits_per_byte import score
from anadil.evaluate.models import CandidateModel, open_model
from anadil.evaluate.questions import Question, Questions, read_questions, render, renderings_of
from anadil.evaluate.run import run
from anadil.model.load import encode_texts
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.chats import Chat, Message
from anadil.text.corpus import write_documents
from tests.kit.rows import write_rows

from .conftest import SPECIALS, TEMPLATE, TEXTS, document, save_model, tiny_model, train_tokenizer

ANSWERS = {
    "Paytaxt haradır?": "Bakı",
    "Nə yağdı?": "yağış",
    "Kim oxudu?": "Kitabxanaçı",
    "Çörək harada bişir?": "təndirdə",
}
HELDOUT = {"Bakı paytaxtdırmı?": "Bəli, Bakı paytaxtdır.", "Yağış yağdı?": "Bəli, yağış yağdı."}
CHOICES = "Kim oxudu?\n1) Həkim\n2) Kitabxanaçı"


def chat(question: str, answer: str, *choices: str, source: str = "qa") -> Chat:
    messages = (Message(role="user", content=question), Message(role="assistant", content=answer))
    return Chat(messages=messages, place="qa:1", source=source, choices=choices)


def write_chats(path: Path, chats: Sequence[Chat]) -> None:
    path.write_text("".join(json.dumps(each.as_row()) + "\n" for each in chats), encoding="utf-8")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and an adapted model that know nothing, and a finetuned one that learned four answers."""
    folder = tmp_path_factory.mktemp("inputs")
    write_documents(folder / "corpus", "train", [document("Başqa bir mətn.")])
    write_documents(folder / "corpus", "heldout", [document(text, f"h{i}") for i, text in enumerate(TEXTS)])
    save_model(folder / "base", 300)
    save_model(folder / "model", 420, seed=1, chat=True)
    tokenizer = train_tokenizer(420)
    tokenizer.chat_template = TEMPLATE
    model = tiny_model(len(tokenizer), seed=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = [
        tokenizer(f"{SPECIALS[0]}{SPECIALS[3]}user{SPECIALS[4]}\n\n{question}{SPECIALS[2]}"
                  f"{SPECIALS[3]}assistant{SPECIALS[4]}\n\n{answer}{SPECIALS[2]}")["input_ids"]
        for question, answer in ANSWERS.items()
    ]  # fmt: skip
    for step in range(80):
        ids = torch.tensor([rows[step % len(rows)]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / "adapter/merged")
    tokenizer.save_pretrained(folder / "adapter/merged")
    write_chats(folder / "adapter/seen_chats.jsonl", [chat(*pair) for pair in ANSWERS.items()])
    heldout = [chat(*pair) for pair in HELDOUT.items()]
    choice = chat(CHOICES, "Kitabxanaçı", "Həkim", "Kitabxanaçı", source="choices")
    write_chats(folder / "adapter/heldout_chats.jsonl", [*heldout, choice])
    return folder


def scores_of(inputs: Path, out: Path, files: Sequence[str] = (), **evaluate: Any) -> dict[str, Any]:
    recipe = Recipe.model_validate({
        "base": {"model": str(inputs / "base")}, "pretrain": {"sequence_length": 64},
        "evaluate": {"max_new_tokens": 2, "prompts": ["Bakı"], **evaluate},
    })  # fmt: skip
    out.mkdir()
    job = job_on(inputs, out, files, recipe)
    run(job)
    scores: dict[str, Any] = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    return scores


def job_on(inputs: Path, out: Path, files: Sequence[str] = (), recipe: Recipe | None = None) -> Job:
    return Job(
        recipe=recipe or Recipe(), inputs={word: inputs / word for word in ("corpus", "model", "adapter")},
        side_files={"evaluate.questions": tuple(files)} if files else {}, out=out, work=out, base_cache=out,
    )  # fmt: skip


@pytest.fixture(scope="module")
def scores(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return scores_of(inputs, tmp_path_factory.mktemp("scores") / "out")


def test_a_model_that_learned_its_answers_gives_them_word_for_word_and_stops(scores: dict[str, Any]) -> None:
    seen = scores["candidates"]["finetuned"]["seen_questions"]
    before = scores["candidates"]["adapted"]["seen_questions"]

    assert (seen["num"], seen["asked"], seen["exact"], seen["ended"]) == (4, 4, 1.0, 1.0)
    assert seen["chrf"] == pytest.approx(100)
    assert (before["exact"], before["chrf"] < 20) == (0, True)
    assert (seen["bits_per_byte"] < 0.5, before["bits_per_byte"] > 3) == (True, True)


@pytest.mark.parametrize(
    ("answer", "reference", "is_same"),
    [
        ("*100# yığın.\n", "*100#  yığın.", True),
        ("料金は(税込)1,000円です!", "料金は（税込）１，０００円です！", True),
        ("ﾊﾟｿｺﾝ\u3000２台", "パソコン 2台", True),
        ("はい。", "はい", False),
        ("10²", "102", False),
    ],
)
def test_an_answer_is_word_for_word_whatever_the_width_of_its_signs(
    answer: str, reference: str, is_same: bool
) -> None:
    assert is_word_for_word(answer, reference) is is_same


def test_every_answer_stands_beside_the_right_one_and_says_whether_training_saw_it(
    scores: dict[str, Any],
) -> None:
    for table in scores["candidates"].values():
        made = [one for one in table["generations"] if one["reference"] is not None]
        assert {one["prompt"]: one["reference"] for one in made if one["seen"]} == ANSWERS
        unseen = {one["prompt"]: one["reference"] for one in made if not one["seen"]}
        assert unseen == HELDOUT | {CHOICES: "Kitabxanaçı"}
        assert all(one["kind"] == "answer" and one["mode"] == "greedy" for one in made)
        open_ended = [one for one in table["generations"] if one["reference"] is None]
        assert {(one["seen"], one["exact"], one["chrf"]) for one in open_ended} == {(None, None, None)}


def test_held_out_answers_are_compared_pair_by_pair(scores: dict[str, Any]) -> None:
    tables = scores["candidates"]
    difference = scores["differences"]["finetuned - adapted, answers"]
    heldout = [one for one in scores["questions"]["listed"] if not one["seen"]]

    assert difference["num_documents"] == len(heldout) == 3
    bits = {name: table["questions"]["bits_per_byte"] for name, table in tables.items()}
    assert difference["value"] == pytest.approx(bits["finetuned"] - bits["adapted"])
    for name in tables:
        nats = sum(one["nats"][name] for one in heldout)
        num_bytes = sum(one["num_bytes"] for one in heldout)
        assert bits[name] == pytest.approx(nats / math.log(2) / num_bytes)
    assert tables["adapted"]["questions"]["unsure"]


def test_a_model_without_chats_is_scored_in_the_way_that_suits_it_better(scores: dict[str, Any]) -> None:
    for name, ways in (
        ("base", {"plain text"}),
        ("adapted", {"plain text", "chat template"}),
        ("finetuned", {"chat template"}),
    ):
        table = scores["candidates"][name]["questions"]
        assert set(table["renderings"]) == ways
        assert table["bits_per_byte"] == table["renderings"][table["rendering"]]
    adapted = scores["candidates"]["adapted"]
    totals = {
        way: sum(
            adapted[key]["renderings"][way] * sum(one["num_bytes"] for one in scores["questions"]["listed"] if one["seen"] == seen)
            for key, seen in (("questions", False), ("seen_questions", True))
        )
        for way in ("plain text", "chat template")
    }  # fmt: skip
    assert adapted["questions"]["rendering"] == min(totals, key=totals.__getitem__)


def test_choices_are_judged_by_source_beside_chance(scores: dict[str, Any]) -> None:
    for table in scores["candidates"].values():
        assert set(table["choices"]) == {"choices"}
        row = table["choices"]["choices"]
        assert (row["num"], row["chance"], row["unsure"]) == (1, 0.5, True)
        assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
    assert scores["candidates"]["finetuned"]["choices"]["choices"]["accuracy"] == 1


def test_questions_of_files_take_the_place_of_the_adapters_and_not_more_are_asked_than_allowed(
    inputs: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"Sual {number}?", "response": "Bakı"} for number in range(5)]
    file = write_rows(tmp_path / "asked.jsonl", [*rows, rows[0]])

    scores = scores_of(inputs, tmp_path / "out", [str(file)], max_questions=2)

    table = scores["candidates"]["finetuned"]
    assert (table["questions"]["num"], table["questions"]["asked"]) == (5, 2)
    assert (table["seen_questions"]["num"], table["seen_questions"]["asked"]) == (2, 2)
    assert [asked for _, asked in table["questions"]["exact_by_file"].values()] == [2]
    assert scores["questions"]["files"] == [str(file)]
    assert {one["source"] for one in scores["questions"]["listed"] if not one["seen"]} == {"asked"}


def test_an_answer_costs_what_it_costs_after_its_question(model: Any, tokenizer: Any) -> None:
    questions = encode_texts(tokenizer, TEXTS[:4])
    answers = encode_texts(tokenizer, TEXTS[4:])
    pairs = [([0, *question], answer) for question, answer in zip(questions, answers, strict=True)]

    got = score(model, pairs, context=128, stride=128, batch_tokens=256, name="base")

    for nats, (question, answer) in zip(got, pairs, strict=True):
        full = torch.tensor([[*question, *answer]])
        with torch.inference_mode():
            logits = model(input_ids=full, use_cache=False).logits[0, :-1].double()
        losses = functional.cross_entropy(logits, full[0, 1:], reduction="none")
        assert nats == pytest.approx(float(losses[-len(answer) :].sum()), rel=1e-6)


@pytest.mark.parametrize("bos", [None, 0])
def test_a_longer_question_than_the_context_loses_its_beginning_but_not_bos(
    model: Any, tokenizer: Any, bos: int | None
) -> None:
    (question,) = encode_texts(tokenizer, [" ".join(TEXTS)])
    (answer,) = encode_texts(tokenizer, ["Bakı"])
    # The answer's last token is not fed, and BOS takes a place.
    pairs = [([0, *question], answer), ([0, *question[len(answer) - 32 :]], answer)]
    if bos is None:
        pairs = [(question, answer), (question[-40:], answer)]

    got = score(model, pairs, bos=bos, context=32, stride=32, batch_tokens=64, name="base")

    assert got[0] == pytest.approx(got[1], rel=1e-6)


def test_a_long_choice_is_not_held_against_a_model(tmp_path: Path) -> None:
    candidate = open_model("base", save_model(tmp_path / "base", 420))
    model = tiny_model(len(candidate.tokenizer))
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    loaded = CandidateModel(candidate=candidate, load=lambda: model, context=64, stride=64, batch_tokens=256)
    question = Question(chat=chat("Hansı?", "yerləşir", "Q", "yerləşir"), seen=False)
    questions = Questions(listed=(question,))
    # Every token costs the same here, so that without the division the fewest tokens win.
    tokens = [len(ids) for ids in encode_texts(candidate.tokenizer, ["Q", "yerləşir"])]
    assert tokens[0] < tokens[1] < len("yerləşir".encode())

    figures = choice_figures(loaded, questions, render(candidate, questions.listed, "plain text"))

    assert figures["qa"]["accuracy"] == 1


def test_a_question_of_several_turns_keeps_what_was_said_before(tmp_path: Path) -> None:
    candidate = open_model("finetuned", save_model(tmp_path / "model", 420, chat=True), answers=True)
    messages = [("system", "Qısa de."), ("user", "Salam"), ("assistant", "Salam!"), ("user", "Nə var?")]
    turns = tuple(Message(role=role, content=text) for role, text in messages)
    one = Question(
        chat=Chat(messages=(*turns, Message(role="assistant", content="Heç")), place=""), seen=False
    )

    (plain,), (chatted,) = (render(candidate, [one], how) for how in ("plain text", "chat template"))

    tokenizer: Any = candidate.tokenizer
    assert plain[0] == candidate.prefix
    assert tokenizer.decode(plain[1:]) == "Qısa de.\n\nSalam\n\nSalam!\n\nNə var?\n\n"
    expected = [{"role": role, "content": text} for role, text in messages]
    assert list(chatted) == tokenizer.apply_chat_template(expected, add_generation_prompt=True)["input_ids"]


def test_of_many_questions_an_even_sample_is_held_whatever_their_order(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.evaluate.questions.MAX_SCORED", 5)
    rows = [json.dumps({"prompt": f"Sual {number}", "response": "Hə"}) for number in range(300)]
    samples = []
    for ordered in (rows, rows[::-1]):
        file = tmp_path / "many.jsonl"
        file.write_text("\n".join(ordered), encoding="utf-8")
        questions = read_questions(job_on(inputs, tmp_path, [str(file)]))
        samples.append({one.chat.questions[0] for one in questions.listed if not one.seen})

    assert samples[0] == samples[1]
    assert len(samples[0]) == 5


def test_rows_that_are_no_questions_are_told_and_a_file_of_such_alone_is_refused(
    inputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "some.jsonl"
    blank, whole = ({"prompt": "Sual", "response": answer} for answer in ("", "Hə"))
    job = job_on(inputs, tmp_path, [str(write_rows(file, [blank, whole]))])

    questions = read_questions(job)

    assert [one.chat.questions for one in questions.listed if not one.seen] == [("Sual",)]
    assert "1 rows are not questions" in caplog.text
    write_rows(file, [blank])
    with pytest.raises(
        DataError, match=r"evaluate\.questions: .*some\.jsonl: hold no question with an answer"
    ):
        read_questions(job)


def test_a_chat_with_a_separator_of_lines_in_it_is_read_back_whole(tmp_path: Path) -> None:
    whole = chat("Bir\u2028iki?", "Üç\x85dörd\u2029beş")
    text = json.dumps(whole.as_row(), ensure_ascii=False) + "\n"  # as the adapter has it
    (tmp_path / "heldout_chats.jsonl").write_text(text, encoding="utf-8")
    job = Job(recipe=Recipe(), inputs={"adapter": tmp_path}, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    (question,) = read_questions(job).listed

    assert question.chat.messages == whole.messages


def test_a_model_whose_template_refuses_a_question_is_asked_in_plain_text(
    tmp_path: Path, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer.save_pretrained(tmp_path)
    candidate = open_model("base", tmp_path)
    plain = Question(chat=chat("Sual?", "Hə"), seen=False)
    system = Message(role="system", content="Qısa cavab ver.")
    refused = Question(chat=Chat(messages=(system, *plain.chat.messages), place="qa:2"), seen=False)
    candidate.tokenizer.chat_template = (  # as Gemma 2's
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for one in messages %}{{ one.content }}{% endfor %}"
    )

    assert renderings_of(candidate, [plain]) == ("plain text", "chat template")
    assert renderings_of(candidate, [plain, refused]) == ("plain text",)
    assert "System role not supported" in caplog.text
