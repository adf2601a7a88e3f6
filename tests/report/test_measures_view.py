"""What was measured beside bits per byte on all text, and what the run took."""

import re
from pathlib import Path
from typing import Any

import pytest

from anadil.evaluate.own_chat.view import sentences
from anadil.merge.view import part
from anadil.page.part import MeasureView, Part
from anadil.page.values import candidates_of, interval_of, interval_words, relative_place
from anadil.recipe.sections import Recipe
from anadil.report.cost_view import NOT_STATED, OWN, cost_view
from anadil.report.generations_view import generations_view, talk_view
from anadil.report.measures_view import measures_view, scores_view
from anadil.report.read import read_facts
from anadil.report.run import run
from anadil.report.training_view import finetune_view, training_view
from anadil.report.verdict import difference_words, verdict
from tests.kit import report_run
from tests.kit.measured_merge import measured_merge
from tests.kit.report_run import Json

FACTS = {"kind": "post-trained", "reasons": ["its name says instruct"], "language": "en"}


def merged(merge: Json) -> Part:
    made = part(merge, {}, {})
    assert made
    return made


def measures(root: Path, **changed: Any) -> dict[str, MeasureView]:
    found = measures_view(read_facts(report_run.job(root, **changed)))
    return {measure.title: measure for measure in found}


@pytest.fixture
def found(tmp_path: Path) -> dict[str, MeasureView]:
    return measures(tmp_path)


def test_every_measure_has_its_table_in_the_order_in_which_they_decide(found: dict[str, MeasureView]) -> None:
    assert list(found) == [
        "Forgetting", "What the models write", "By domain", "By file", "Tasks", "Held-out questions and answers",
        "Choices",
    ]  # fmt: skip


def test_forgetting_stands_beside_the_change_to_the_base(found: dict[str, MeasureView]) -> None:
    assert found["Forgetting"].table.rows == [("en", "2.154", "2.331 (+8.20 %)", "2.396 (+11.2 %)")]


def test_a_domain_of_few_documents_is_marked_unsure(found: dict[str, MeasureView]) -> None:
    law, news = found["By domain"].table.rows

    assert law[1] == "104"
    assert news[1] == "16 *"
    assert "unsure" in found["By domain"].table.note
    assert found["By file"].table.columns == ("file", "base", "adapted", "finetuned")


def test_pairs_that_training_has_seen_stand_below_those_that_it_has_not(
    found: dict[str, MeasureView],
) -> None:
    rows = found["Held-out questions and answers"].table.rows

    assert [row[0] for row in rows[2:4]] == ["finetuned, not seen in training", "base, seen in training"]
    assert rows[2][1:] == ("140", "1.205", "1.105 to 1.305", "140", "41.3", "25.0 %", "95.0 %")
    assert rows[5][1] == "32 *"


def test_choices_are_held_against_chance_in_table_and_chart(found: dict[str, MeasureView]) -> None:
    choices = found["Choices"]

    first = ("xcopa, base", "500", "51.0 %", "47.0 % to 55.0 %", "50.0 %", "not told apart")
    assert choices.table.rows[0] == first
    assert choices.table.rows[2][-1] == "better"
    assert choices.chart
    assert choices.chart.svg.count('class="mark"') == 3
    assert "chance 0.5000" in choices.chart.svg


def test_tasks_have_their_errors_and_chance(found: dict[str, MeasureView]) -> None:
    assert found["Tasks"].table.rows == [
        (
            "belebele_azj_Latn",
            "reading comprehension",
            "900",
            "2",
            "acc",
            "0.2500",
            "0.2600 ± 0.014",
            "0.3100 ± 0.014",
            "0.3400 ± 0.014",
        )
    ]


def test_scores_of_an_older_program_show_what_they_hold(tmp_path: Path) -> None:
    scores = report_run.scores()
    del scores["tasks"]
    for candidate in scores["candidates"].values():
        for key in (*report_run.answered("base"), "retained"):
            candidate.pop(key)

    assert measures(tmp_path, scores=scores) == {}


def test_answers_show_seen_and_unseen_by_turns_with_reference_and_marks() -> None:
    found = generations_view(candidates_of(report_run.scores()))

    assert [one["seen"] for one in found["answers"]] == [False, True, None]
    unseen, seen, _ = found["answers"]
    assert seen["seen_words"] == "seen in training"
    assert unseen["reference"] == "*100# yığın və zəng düyməsini basın."
    assert [(one["candidate"], one["badges"]) for one in seen["made"]] == [
        ("adapted", []),
        ("finetuned", [("exact", "word for word")]),
    ]
    assert [one["candidate"] for one in seen["others"]] == ["base"]
    assert found["summary"].rows[-1] == ("finetuned, seen in training", "1", "1 (100 %)", "100 %")


def test_the_champion_stands_beside_the_others() -> None:
    scores = report_run.scores()
    scores["candidates"]["champion"] = scores["candidates"]["finetuned"]

    seen = generations_view(candidates_of(scores))["answers"][1]

    assert [one["candidate"] for one in seen["made"]] == ["adapted", "finetuned", "champion"]
    assert seen["made"][2]["style"] == "champion"


def test_of_answers_that_name_no_candidate_to_compare_the_base_is_shown() -> None:
    scores: report_run.Json = {"candidates": {"base": report_run.candidate("base")}}

    found = generations_view(candidates_of(scores))

    assert [one["candidate"] for one in found["answers"][0]["made"]] == ["base"]


def test_training_and_validation_share_one_axis(tmp_path: Path) -> None:
    lines = report_run.training()
    for line in lines[4::5]:
        line["validation_bits_per_byte"] = 1.9
    facts = read_facts(report_run.job(tmp_path, training=lines))

    first = training_view(facts)["charts"][0]
    answers = finetune_view(facts)["charts"][0]

    assert first.title == "Training and validation"
    assert first.table.columns == ("step", "training", "validation")
    assert answers.table.columns == ("step", "training", "validation")
    assert answers.svg.count("<polyline") == 3  # one line, and two keys
    assert answers.svg.count("<circle") == 2  # the two points of validation
    assert "dashed" in answers.svg


def test_the_curve_begins_with_the_base_which_belongs_to_no_phase(tmp_path: Path) -> None:
    lines = [{"step": 0, "validation_bits_per_byte": 2.5}, *report_run.training()]
    lines[10]["validation_bits_per_byte"] = 1.9

    found = training_view(read_facts(report_run.job(tmp_path, training=lines)))
    without = training_view(read_facts(report_run.job(tmp_path / "without", training=lines[1:])))

    assert found["charts"][0].table.rows[0] == ("0", "\N{EM DASH}", "2.500")
    assert found["phases"] == without["phases"]


def test_cost_is_time_by_the_dated_price_of_the_machines_that_the_recipe_named(tmp_path: Path) -> None:
    recipe = {"base": {"model": "tiny"}, "cluster": {"instance": "p5.48xlarge", "nodes": 2}}
    job = report_run.job(tmp_path, seconds={"corpus": 60.0, "model": 3_600.0}, made_by=recipe)

    found = cost_view(read_facts(job))

    clean, pretrain, total = found["table"].rows
    assert clean[:3] == ("clean", "1 min", "—")
    assert clean[-1] == "—"
    assert pretrain[:3] == ("pretrain", "1 h 0 min".removesuffix(" 0 min"), "2 × p5.48xlarge")
    price = float(pretrain[-2].removeprefix("USD ").replace(",", ""))
    assert found["dollars"] == pytest.approx(price, abs=0.5)
    assert total[0] == "together"
    assert re.search(r"On-demand prices of the instance table \(.*\d{4}-\d{2}", found["table"].note)
    assert found["seconds"] == 3_660.0


def test_of_a_run_without_prices_time_and_peak_memory_are_shown(tmp_path: Path) -> None:
    summary = {"peak_memory_bytes": 3 * 1024**3, "seconds": 400.0}

    found = cost_view(read_facts(report_run.job(tmp_path, seconds={"model": 100.0}, summary=summary)))

    assert found["dollars"] is None
    assert found["table"].columns == ("stage", "time", "machine", "peak memory")
    assert found["table"].rows[0][3] == "3.0 GiB"
    assert found["seconds"] == 400.0, "all starts of training, not the last"
    assert "is not a machine type" in found["table"].note


@pytest.mark.parametrize(
    ("recipe", "licences"),
    [
        (
            {"report": {"licences": {"base": "Llama 3.2", "lists": "CC0"}}, "clean": {"inputs": ["/a.jsonl"]}},
            {"base": "Llama 3.2", "text": NOT_STATED, "chats": NOT_STATED, "lists": "CC0"},
        ),
        (
            {"base": {"model": "tiny"}, "clean": {"inputs": ["builtin:az/prose.jsonl"]}, "finetune": {"inputs": ["/a.jsonl"]}},
            {"base": OWN, "text": OWN, "chats": NOT_STATED},
        ),
    ],
)  # fmt: skip
def test_licences_are_those_of_the_recipe_or_of_the_program_and_a_missing_one_is_said_to_be_missing(
    recipe: dict[str, Any], licences: dict[str, str], tmp_path: Path
) -> None:
    found = cost_view(read_facts(report_run.job(tmp_path, Recipe.model_validate(recipe))))

    assert dict(found["licences"].rows) == licences


def test_cards_are_linked_where_they_lie_beside_the_page_and_nowhere_else(tmp_path: Path) -> None:
    job = report_run.job(tmp_path, cards={"model": "README.md"}, beside=True)
    alone = report_run.job(tmp_path / "alone", cards={"model": "README.md"})

    own = ["model_card.md", "data_card.md"]
    assert [link for _, link in cost_view(read_facts(job))["cards"]] == [*own, "../../model/0a1b/README.md"]
    assert [link for _, link in cost_view(read_facts(alone))["cards"]] == own


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://runs/az/model/0a1b", "../../model/0a1b"),
        ("s3://other/az/model/0a1b", ""),
        ("/home/leyla/model/0a1b", ""),
    ],
)
def test_a_link_tells_no_directories_of_a_machine(uri: str, place: str) -> None:
    assert relative_place("s3://runs/az/report/77aa", uri) == place


def test_an_interval_without_width_is_none() -> None:
    one: dict[str, Any] = {"value": -0.5, "low": -0.5, "high": -0.5, "num_documents": 1}

    assert interval_of([0.5, 0.5]) is None
    assert interval_words([0.5, 0.5]) == "\N{EM DASH}"
    assert (
        difference_words(one, "the base") == "0.5000 bits per byte fewer than the base, without an interval"
    )


def own_chat(num_sound: int, outcome: str = "") -> dict[str, Any]:
    share = {"value": num_sound / 24, "num": 24, "interval": [0.1, 0.9]}
    shares = dict.fromkeys(("sound", "ended", "empty", "loop", "own_language"), share)
    return {"num": 24, "shares": shares} | ({"outcome": outcome} if outcome else {})


def scores(adapted: tuple[int, str], finetuned: tuple[int, str]) -> dict[str, Any]:
    made = report_run.scores()
    made["own_chat"] = FACTS
    for name, figures in (("base", (23,)), ("adapted", adapted), ("finetuned", finetuned)):
        made["candidates"][name]["own_chat"] = own_chat(*figures)
    return made


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        ((22, "survived"), "The base's chat format survived in the adapted model: 22 of 24 answers in English are sound, 23 of the base's."),
        ((9, "damaged"), "The base's chat format is damaged in the adapted model: 9 of 24 answers in English are sound, 23 of the base's."),
        ((0, "lost"), "The base's chat format is lost in the adapted model: 0 of 24 answers in English are sound, 23 of the base's."),
        ((0, "unknown"), "The base itself gives too few sound answers to tell of its chat format in the adapted model: 0 of 24 answers in English are sound, 23 of the base's."),
    ],
)  # fmt: skip
def test_one_sentence_has_outcome_and_figures(outcome: tuple[int, str], sentence: str) -> None:
    assert sentences(scores(outcome, (0, "lost")), "adapted") == [sentence]


def test_the_page_has_a_row_for_each_candidate(tmp_path: Path) -> None:
    facts = read_facts(report_run.job(tmp_path, scores=scores((9, "damaged"), (22, "survived"))))

    measure = next(each for each in measures_view(facts) if each.title == "The base's own chat format")

    assert [(row[0], row[1], row[-1]) for row in measure.table.rows] == [
        ("base", "24", "before training"), ("adapted", "24", "damaged"), ("finetuned", "24", "survived"),
    ]  # fmt: skip
    assert "is damaged in the adapted model" in measure.table.note
    assert "survived in the finetuned model" in measure.table.note


def test_a_loss_of_the_released_model_is_a_warning(tmp_path: Path) -> None:
    harmed, unharmed = (
        verdict(read_facts(report_run.job(tmp_path / name, scores=scores((0, "lost"), (num, outcome)))))
        for name, num, outcome in (("a", 9, "damaged"), ("b", 22, "survived"))
    )

    assert any("is damaged in the finetuned model" in text for text in harmed["warnings"])
    assert not any("chat format" in text for text in unharmed["warnings"])


def test_a_base_that_could_not_be_asked_is_a_warning(tmp_path: Path) -> None:
    made = report_run.scores() | {"own_chat": FACTS | {"error": "its chat template needs tools"}}

    warnings = verdict(read_facts(report_run.job(tmp_path, scores=made)))["warnings"]

    assert [text for text in warnings if "post-trained" in text] == [
        "The base is post-trained, but nobody was asked in its chat format: its chat template needs tools."
    ]


def text(prompt: str, answer: str, **more: object) -> Json:
    return {"kind": "answer", "mode": "greedy", "prompt": prompt, "text": answer, **more}


def table(*, finetuned: list[Json], base: list[Json], released: str = "finetuned") -> Json:
    scores = report_run.scores()
    scores["candidates"]["finetuned"]["generations"] = finetuned
    scores["candidates"]["base"]["generations"] = base
    scores["gate"] |= {"passed": bool(released), "released": released or None}
    return scores


def test_the_first_right_answer_to_an_unseen_question_is_shown_with_the_share_of_right_ones() -> None:
    finetuned = [
        text("Salam!", "Salam!", seen=True),
        text("Balans?", "Bilmirəm.", seen=False),
        text("Nömrəm?", "*101# yığın.", seen=False, exact=True),
    ]

    talk = talk_view(table(finetuned=finetuned, base=[text("Nömrəm?", "the the the", seen=False)]))

    assert talk is not None
    assert talk["prompt"] == "Nömrəm?"
    assert talk["note"] == "not seen in training; 1 of 2 such questions answered word for word"
    assert talk["said"] == [("finetuned", "*101# yığın."), ("base", "the the the")]


def test_a_model_that_answers_nothing_right_shows_its_first_answer() -> None:
    talk = talk_view(table(finetuned=[text("Balans?", "Bilmirəm.", seen=False)], base=[]))

    assert talk is not None
    assert talk["note"] == "not seen in training; 0 of 1 such question answered word for word"
    assert talk["said"] == [("finetuned", "Bilmirəm.")]


def test_a_released_model_that_continues_texts_shows_how_it_goes_on() -> None:
    scores = table(finetuned=[text("Balans?", "Bilmirəm.")], base=[], released="adapted")
    beginning = {"kind": "continuation", "mode": "greedy", "prompt": "Bakı", "text": "Bakı gözəldir"}
    scores["candidates"]["adapted"]["generations"] = [beginning]

    talk = talk_view(scores)

    assert talk is not None
    assert not talk["answers"]
    assert talk["said"] == [("adapted", "gözəldir")]


def test_without_a_release_or_a_text_there_is_no_picture() -> None:
    assert talk_view(table(finetuned=[text("Balans?", "Bilmirəm.")], base=[], released="")) is None
    assert talk_view(table(finetuned=[], base=[])) is None
    assert talk_view({}) is None


def test_a_prompt_that_is_markup_or_endless_stays_a_short_text() -> None:
    talk = talk_view(table(finetuned=[text("<script>" * 100, "a" * 5_000, seen="odd")], base=[]))

    assert talk is not None
    assert talk["note"] == ""
    assert max(len(talk["prompt"]), len(talk["said"][0][1])) < 330


def pages(folder: Path, merge: report_run.Json) -> tuple[str, str, str]:
    """The page, the short version and the card of the model."""
    job = report_run.job(folder, merge=merge)
    run(job)
    names = ("report.html", "report.md", "model_card.md")
    page, short, card = ((job.out / name).read_text(encoding="utf-8") for name in names)
    return page, short, card


def test_the_frontier_is_drawn_with_its_limit_and_the_chosen_point() -> None:
    (chart,) = merged(measured_merge()).charts

    svg = str(chart.svg)
    assert svg.count("<circle") == 11 + 1
    assert svg.count('class="ring"') == 1
    assert ">limit 1.1<" in svg
    assert ">weight 0.5<" in svg
    assert all(f">{share}</text>" in svg for share in ("0", "0.25", "0.5", "0.75", "1"))


def test_labels_of_dots_that_lie_together_do_not_run_into_each_other() -> None:
    (chart,) = merged(measured_merge()).charts

    assert ">weight 0.75</text>" not in str(chart.svg)
    assert "<title>weight 0.75</title>" in str(chart.svg), "but stand under the pointer"


def test_the_table_has_every_point_and_marks_the_chosen_one() -> None:
    _, table = merged(measured_merge()).tables

    assert table.columns == (
        "base_share",
        "weights",
        "target, bits per byte",
        "en, over the base's",
        "within the limit",
    )
    assert len(table.rows) == 11
    assert table.marked == 8
    assert table.rows[8] == ("0.1875", "0.5", "2.278", "1.044 (to 1.064)", "yes")
    assert table.rows[0][-1] == "no"
    assert "target 64, en 4" in table.note


def test_each_retained_text_has_a_chart_up_to_four() -> None:
    merge = measured_merge()
    for each in merge["points"]:
        each["retained"] = dict.fromkeys(("en", "ru", "tr", "de", "fr"), each["retained"]["en"])

    frontier = merged(merge)

    assert [chart.title for chart in frontier.charts] == [
        f"Target language against {name}" for name in ("en", "ru", "tr", "de")
    ]
    assert len(frontier.tables[1].rows[0]) == 3 + 5 + 1


def test_values_of_the_recipe_have_no_frontier(tmp_path: Path) -> None:
    merge = {"base": "tiny", "base_share": 0, "add": []}

    frontier = merged(merge)

    assert (frontier.charts, frontier.tables[1].rows, frontier.reasons, frontier.notes) == ((), [], (), ())
    assert "Rule of" not in pages(tmp_path, merge)[0]


@pytest.mark.parametrize("without", ["limits", "chosen", "points", "texts", "rules", "add", "base_share"])
def test_a_table_that_lacks_a_key_still_gives_a_page(without: str, tmp_path: Path) -> None:
    merge = measured_merge()
    del merge[without]

    assert "<h3>Merge</h3>" in pages(tmp_path, merge)[0]


def test_page_markdown_and_card_say_what_was_chosen_and_by_which_rule(tmp_path: Path) -> None:
    page, short, card = pages(tmp_path, measured_merge())

    assert "<li>base_share 0.1875: the fewest bits per byte</li>" in page
    assert "Rule of base_share: the fewest bits per byte." in page
    assert "- Merge: base\\_share 0.1875: the fewest bits per byte" in short
    assert "| 0.1875 | 0.5 | 2.278 |" in short
    chosen = card.partition("Chosen by bits per byte of held-out text that no score uses:")[2]
    assert chosen.startswith(
        "\n\n- base\\_share 0.1875: the fewest bits per byte\n- add.0.weight 0.5: the largest\n"
    )


def test_the_page_counts_documents_that_are_not_scored(tmp_path: Path) -> None:
    counts = {"heldout": {"tuning": 9, "scored": 31}, "retained": {"en": {"tuning": 4, "scored": 12}}}
    facts = read_facts(report_run.job(tmp_path, scores=report_run.scores() | {"tuning": counts}))

    rows = scores_view(facts)["heldout"].rows

    assert ("for tuning heldout", "9 not scored, 31 scored") in rows
    assert ("for tuning en", "4 not scored, 12 scored") in rows
