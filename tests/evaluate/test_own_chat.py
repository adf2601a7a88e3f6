"""Questions in a base's own chat format: what is measured, what becomes of it, and bases that cannot be asked."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anadil.artifacts.scored_text import tuning_part
from anadil.core.errors import DataError
from anadil.evaluate.heldout import Heldout, read_heldout
from anadil.evaluate.models import CandidateModel, ScoredModel, open_model
from anadil.evaluate.own_chat.measure import (
    OwnChat,
    open_own_chat,
    outcome_of,
    prepare,
)
from anadil.evaluate.tuning import target_tuning, without_tuning
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document, write_documents

from .conftest import TEMPLATE, document, save_model

ENGLISH = " Yes, you should take the umbrella with you and walk home."
AZERBAIJANI = " Bəli, çətiri özünlə götür və evə piyada qayıt, hava yaxşıdır."
NAME = "lab/post-trained-instruct"


class Cache:
    """Holds nothing; the decoder drops rows of it."""

    def batch_select_indices(self, _: torch.Tensor) -> None: ...


class Parrot:
    """A model that writes the same ids in every row."""

    def __init__(self, ids: list[int], size: int) -> None:
        self.ids, self.size, self.step = ids, size, 0
        self.config = SimpleNamespace(max_position_embeddings=4096)
        self.generation_config = SimpleNamespace(eos_token_id=None)
        self.device = torch.device("cpu")

    def eval(self) -> None:
        self.step = 0

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(len(input_ids), 1, self.size)
        logits[:, :, self.ids[min(self.step, len(self.ids) - 1)]] = 1.0
        self.step += 1
        return SimpleNamespace(logits=logits, cache=Cache())


def make_base(folder: Path, template: str = TEMPLATE, ends: tuple[int, ...] = (1, 2)) -> Path:
    """A base whose files say that it answers."""
    save_model(folder, chat=True)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ends)}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ScoredModel:
    return open_model("base", make_base(tmp_path_factory.mktemp("bases") / "base"))


@pytest.fixture(scope="module")
def asked(base: ScoredModel) -> OwnChat:
    how = open_own_chat(NAME, base)
    assert how
    return how


def answers_of(base: ScoredModel, asked: OwnChat, text: str, end: str = "<|eot_id|>") -> dict[str, Any]:
    tokenizer: Any = base.tokenizer
    ids = [*tokenizer.encode(text, add_special_tokens=False), *tokenizer.convert_tokens_to_ids([end])]
    model = Parrot(ids, len(tokenizer))
    loaded = CandidateModel(candidate=base, load=lambda: model, context=64, stride=64, batch_tokens=4096)
    return asked.measure(loaded, {}) or {}


def value(figures: dict[str, Any], share: str) -> float | None:
    return figures["shares"][share]["value"]  # type: ignore[no-any-return]


def test_a_base_is_asked_short_english_questions_in_its_own_template(asked: OwnChat) -> None:
    assert asked.language.code == "en"
    assert len(asked.questions) == len(set(asked.questions)) == 24
    assert (asked.template, asked.end, asked.system) == (TEMPLATE, "<|eot_id|>", False)
    assert asked.facts()["kind"] == "post-trained"


def test_two_measures_render_it_once(base: ScoredModel, asked: OwnChat) -> None:
    assert open_own_chat(NAME, base) is open_own_chat(NAME, base)


def test_an_answer_that_ends_its_turn_in_the_language_is_sound(base: ScoredModel, asked: OwnChat) -> None:
    figures = answers_of(base, asked, ENGLISH)

    assert figures["num"] == 24
    assert [value(figures, name) for name in ("ended", "empty", "loop", "own_language", "sound")] == [
        *map(float, (1, 0, 0, 1, 1))
    ]
    low, high = figures["shares"]["sound"]["interval"]
    assert 0.8 < low < high == 1
    assert figures["answers"][0]["text"] == ENGLISH


def test_each_fault_of_an_answer_has_a_share_of_its_own(base: ScoredModel, asked: OwnChat) -> None:
    document_end = (ENGLISH, "<|end_of_text|>")
    silent, other, endless, ended = (
        answers_of(base, asked, *case) for case in ((" ...",), (AZERBAIJANI,), (ENGLISH, "a"), document_end)
    )

    assert (value(silent, "empty"), value(silent, "sound"), value(silent, "own_language")) == (1, 0, None)
    assert (value(other, "own_language"), value(other, "ended"), value(other, "sound")) == (0, 1, 0)
    assert (value(endless, "ended"), value(endless, "loop"), value(endless, "sound")) == (0, 1, 0)
    assert (value(ended, "ended"), value(ended, "own_language"), value(ended, "loop")) == (0, 1, 0)
    assert ended["answers"][0]["text"] == ENGLISH


def test_the_own_template_of_a_candidate_stays(base: ScoredModel, asked: OwnChat, tmp_path: Path) -> None:
    finetuned = open_model("finetuned", save_model(tmp_path / "model", chat=True))
    tokenizer: Any = finetuned.tokenizer
    tokenizer.chat_template = "other"

    answers_of(finetuned, asked, ENGLISH)

    assert tokenizer.chat_template == "other"


def test_a_candidate_without_the_end_of_turns_is_not_asked(
    base: ScoredModel, asked: OwnChat, caplog: pytest.LogCaptureFixture
) -> None:
    other = OwnChat(**{name: getattr(asked, name) for name in OwnChat.__slots__} | {"end": "<|im_end|>"})

    figures = answers_of(base, other, ENGLISH)

    assert figures == {"error": "its vocabulary lacks <|im_end|>"}
    assert "not asked in the base's chat format" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (24, 24, "survived"), (24, 20, "survived"), (24, 19, "damaged"), (24, 6, "damaged"), (24, 5, "lost"),
        (24, 0, "lost"), (11, 0, "unknown"),
    ],
)  # fmt: skip
def test_a_loss_counts_where_chance_does_not_give_it(before: int, after: int, outcome: str) -> None:
    marks = [[place < num for place in range(24)] for num in (before, after)]

    assert outcome_of(*marks) == outcome


def test_candidates_are_compared_with_the_base_question_by_question(
    base: ScoredModel, asked: OwnChat, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {
        "base": {"own_chat": answers_of(base, asked, ENGLISH)},
        "adapted": {"own_chat": answers_of(base, asked, ENGLISH, "<|end_of_text|>")},
        "champion": {},
    }

    asked.compare(tables)

    assert tables["adapted"]["own_chat"]["outcome"] == "lost"
    assert "outcome" not in tables["base"]["own_chat"]
    assert (
        "adapted: the base's chat format: lost (sound answers 0, of the base 24, of 24 questions)"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("template", "language", "error"),
    [
        ("{{ raise_exception('tools are needed') }}<|eot_id|>", "en", "tools are needed"),
        (
            "<|eot_id|>{% for m in messages %}{{ m.content[0].text }}{% endfor %}",  # of a list of parts
            "en",
            "does not render a question (it writes '<|eot_id|>",
        ),
        (TEMPLATE, "ko", "its card names ko"),
    ],
    ids=["the template fails", "it leaves the question out", "no questions"],
)
def test_a_base_that_cannot_be_asked_is_said_with_its_error(
    template: str, language: str, error: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_base(tmp_path / "base", template)
    (folder / "README.md").write_text(f"---\nlanguage: {language}\n---\n", encoding="utf-8")

    run: Any = SimpleNamespace(
        recipe=Recipe.model_validate({"base": {"model": NAME}}), candidates=[open_model("base", folder)]
    )

    how = prepare(run)

    assert how
    assert not how.questions
    assert error in how.facts()["error"]
    assert "not asked in its chat format" in caplog.text


def test_a_template_that_wants_a_system_turn_gets_one(tmp_path: Path) -> None:
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no system turn') }}{% endif %}"

    how = open_own_chat(NAME, open_model("base", make_base(tmp_path / "base", wants + TEMPLATE)))

    assert how
    assert [turn["role"] for turn in how.turns("Why?")] == ["system", "user"]
    assert how.facts()["system_turn"]


def test_an_end_of_turns_that_is_no_eos_is_taken_from_the_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<|end_header_id|>{% endfor %}"
    folder = make_base(tmp_path / "base", template, ends=(1,))
    base = open_model("base", folder)

    how = open_own_chat(NAME, base)

    assert how
    assert how.end == "<|end_header_id|>"
    assert value(answers_of(base, how, ENGLISH, "<|end_header_id|>"), "sound") == 1


def test_a_base_of_another_language_is_asked_in_it(tmp_path: Path) -> None:
    folder = make_base(tmp_path / "base")
    (folder / "README.md").write_text("---\nlanguage:\n- ja\n---\n", encoding="utf-8")

    how = open_own_chat(NAME, open_model("base", folder))

    assert how
    assert how.language.code == "ja"
    assert how.questions == how.language.questions != ()


FOR_TUNING, FOR_SCORES = (
    [
        text
        for text in (f"Bakıda {number} nömrəli avtobus" for number in range(100))
        if (int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 4 == 0) is tuning
    ]
    for tuning in (True, False)
)


def documents(*texts: str, lang: str = "az") -> tuple[Document, ...]:
    return tuple(replace(document(text, f"{lang} {text}"), lang=lang) for text in texts)


def corpus_of(folder: Path, *texts: str) -> Path:
    write_documents(folder, "heldout", documents(*texts))
    return folder


def test_a_quarter_is_for_tuning() -> None:
    tuning, scored = tuning_part(documents(*FOR_TUNING, *FOR_SCORES))

    assert {each.text for each in tuning} == set(FOR_TUNING)
    assert {each.text for each in scored} == set(FOR_SCORES)
    assert 15 < len(FOR_TUNING) < 35


@pytest.mark.parametrize("texts", [FOR_TUNING[:3], FOR_SCORES[:3], []])
def test_where_one_part_would_be_empty_all_is_for_scores(texts: list[str]) -> None:
    assert tuning_part(documents(*texts)) == ((), documents(*texts))


def test_each_text_is_split_for_itself_and_in_order() -> None:
    english, russian = documents(FOR_SCORES[0], FOR_TUNING[0], lang="en"), documents(FOR_TUNING[1], lang="ru")

    tuning, scored = tuning_part((english[0], *russian, english[1]))

    assert tuning == (english[1],)
    assert scored == (english[0], *russian)


def test_files_lose_only_documents_of_the_corpus_that_are_for_tuning(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", FOR_TUNING[0], FOR_SCORES[0])
    heldout = Heldout(
        documents=documents(*FOR_TUNING[:3], *FOR_SCORES[:2]), source="files", files=("a.jsonl",)
    )

    scored, _, counts = without_tuning(heldout, (), [corpus])

    assert [each.text for each in scored.documents] == [*FOR_TUNING[1:3], *FOR_SCORES[:2]]
    assert counts == {"heldout": {"tuning": 1, "scored": 4}, "retained": {}}
    assert [each.text for each in target_tuning([corpus])] == [FOR_TUNING[0]]


def test_files_that_hold_only_text_for_tuning_are_a_data_error(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", FOR_TUNING[0], FOR_SCORES[0])
    heldout = Heldout(documents=documents(FOR_TUNING[0]), source="files", files=("a.jsonl",))

    with pytest.raises(DataError, match=r"a\.jsonl: all 1 documents also stand .* tuned; name other files"):
        without_tuning(heldout, (), [corpus])


def test_duplicates_are_counted_among_what_is_scored(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", *FOR_TUNING[:1] * 3, *FOR_SCORES[:1] * 2)

    scored, _, counts = without_tuning(read_heldout([corpus], (), "text", "az"), (), [corpus])

    assert scored.repeated == 1
    assert counts["heldout"] == {"tuning": 3, "scored": 2}


def test_counts_of_both_parts_are_told_of_each_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = corpus_of(tmp_path / "corpus", *FOR_TUNING[:2], *FOR_SCORES[:6])
    retained = (*documents(FOR_TUNING[3], *FOR_SCORES[:3], lang="en"), *documents(FOR_SCORES[0], lang="ru"))

    with caplog.at_level("INFO"):
        _, scored, counts = without_tuning(read_heldout([corpus], (), "text", "az"), retained, [corpus])

    assert len(scored) == 4
    assert counts["retained"] == {"en": {"tuning": 1, "scored": 3}, "ru": {"tuning": 0, "scored": 1}}
    assert "not scored: 2 of 8 (held-out text), 1 of 4 (en), 0 of 1 (ru)" in caplog.text
