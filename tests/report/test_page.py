"""The page: inert, self-contained, well-formed, small, and true to the scores."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import DataError
from anadil.recipe.sections import Recipe
from anadil.report.run import MAX_PAGE_BYTES, run
from anadil.runtime.job import Job
from tests.kit import report_run
from tests.kit.report_run import artifacts

HOSTILE = (
    "<script>alert(1)</script>",
    "<svg onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "[a](javascript:alert(1))",
    "{{7*7}} {% raw %}",
    "</style><style>body{display:none}",
    "]]><!-- | x |",
)
Outcome = tuple[str, str, dict[str, float]]
"""Page, Markdown, metrics."""
CARDS = {"model_card.md", "data_card.md"}
"""Files beside the page."""
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """What a browser would build: elements, attributes, and whether the tags balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.mistakes: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mistakes.append(f"</{tag}> at {self.getpos()}")

    def named(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


def made(root: Path, recipe: Recipe | None = None, **changed: Any) -> Outcome:
    job = report_run.job(root, recipe, **changed)
    run(job)
    page, short, numbers = (
        (job.out / name).read_text(encoding="utf-8") for name in ("report.html", "report.md", "metrics.json")
    )
    return page, short, json.loads(numbers)


def links_out(page: Page) -> set[str]:
    return {link for link in page.named("href") if not link.startswith("#")}


def hostile(node: object, text: str) -> Any:
    """The same JSON with every text, and every key of free choice, replaced."""
    if isinstance(node, dict):
        return {key: hostile(value, text) for key, value in node.items()}
    if isinstance(node, list):
        return [hostile(value, text) for value in node]
    return text if isinstance(node, str) else node


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return made(tmp_path_factory.mktemp("run"))


def test_the_page_fetches_nothing(outcome: Outcome) -> None:
    page = outcome[0]

    assert re.findall(r"(?:src|srcset|action|data|poster)\s*=|url\(|@import|https?:|//\w", page) == []
    assert links_out(Page(page)) == CARDS
    assert "script" not in Page(page).tags
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"language</th><td[^>]*>drops</td><td[^>]*>1,804</td><td[^>]*>1,502</td><td[^>]*>1,804</td>", 1),
        (r"short</th><td[^>]*>only counted</td><td[^>]*>1,263</td><td[^>]*>301</td><td[^>]*>0</td>", 1),
        (r"<figcaption>(?:Kept|Dropped) documents by length", 2),
        (r"value 0, limit 0\.85", 4),
        (report_run.KEPT[0], 1),
        (r"Resiliparse</th><td>800</td><td>17,182</td><td>664</td>", 1),
        (r"Trafilatura</th><td>150</td><td>199</td><td>228</td>", 1),
        (r"dialogs and captions hold 3,017 more characters of sentences", 1),
        (r"0\.6830 to 0\.5795", 1),
        (r'<a href="#published">another model and corpus</a>', 3),
        (r"No published figure", 1),
        (r'<p lang="az" dir="auto">Xəzər dənizinin', None),
        (r'<span class="badge loop">loops</span>', 3),
        (r'<span class="badge new">not seen in training</span>', 1),
        (r'<span class="badge seen">seen in training</span>', 1),
        (r'<span class="badge exact">word for word</span>', 1),
        (r"<mark>\*100# yığın və zəng düyməsini basın\.&lt;\|eot_id\|&gt;</mark>", 1),
        ("".join(f'<span class="piece" dir="auto">{piece}</span>' for piece in ("kitab", "lar", "dan")), 1),
        (
            r'class="verdict[^§]*<section id="answers"[^§]*id="scores"[^§]*id="training"[^§]*id="cost"[^§]*id="corpus"',
            1,
        ),
        (r"\{\{", 0),
    ],
)
def test_the_page_shows(outcome: Outcome, pattern: str, count: int | None) -> None:
    matches = re.findall(pattern, outcome[0])

    assert len(matches) == count if count is not None else matches


def test_stricter_and_looser_limits_stand_beside_what_they_drop(outcome: Outcome) -> None:
    page = outcome[0]
    row = page[page.index('<th scope="row">min_words</th>') :].split("</tr>")[0]

    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)

    assert cells == ["25: 0.500 %", "38: 2.50 %", "50: 10.0 %", "75: 25.0 %", "100: 50.0 %"]


def test_every_anchor_leads_somewhere(outcome: Outcome) -> None:
    page = Page(outcome[0])
    ids = page.named("id")

    assert (page.mistakes, page.open) == ([], [])

    assert {link[1:] for link in page.named("href") if link.startswith("#")} <= set(ids)
    assert len(ids) == len(set(ids))


def test_charts_and_tables_speak_to_screen_readers(outcome: Outcome) -> None:
    page = Page(outcome[0])

    assert page.tags.count("svg") == page.named("role").count("img") >= 9
    assert page.tags.count("caption") == page.tags.count("table")
    assert all(page.named("aria-label"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(tmp_path: Path, text: str, outcome: Outcome) -> None:
    clean = Page(outcome[0])
    recipe = Recipe.model_validate(
        {"base": {"model": text}, "report": {"title": text}, "evaluate": {"prompts": [text]}}
    )
    fertility = report_run.fertility() | {"chosen": text}
    fertility["candidates"] = {
        text: hostile(fertility["candidates"]["base"], text)
        | {
            "samples": {text: [text]},
            "domains": {text: {"fertility": 2.0}},
            "keep": {text: {"fertility": 2.0}},
        }
    }
    scores = hostile(report_run.scores(), text)
    scores["differences"] = {text: scores["differences"]["adapted - base"]}
    scores["candidates"][text] = scores["candidates"]["base"]
    scores["tasks"] = {text: {"base": {"metric": text, "value": 0.5}}}
    scores["candidates"]["base"] |= {"domains": {text: 1.0}, "retained": {text: 1.0}}
    scores["candidates"]["base"]["choices"] = {
        text: {"num": 5, "accuracy": 0.5, "interval": [0.1, 0.9], "chance": 0.5}
    }
    scores["candidates"]["base"]["output_language"] = {"num": 5, "own": 0.5, "shares": {text: 0.5}}
    corpus = report_run.corpus() | {"dropped": {text: 5}, text: 3}

    page, short, _ = made(
        tmp_path, recipe, corpus=corpus, fertility=fertility, scores=scores, audit=hostile(report_run.audit(), text),
        rejected={"language": text}, kept=[text], training=hostile(report_run.training(), text),
    )  # fmt: skip

    found = Page(page)
    assert found.mistakes == []
    assert set(found.tags) <= set(clean.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert links_out(found) == CARDS
    assert found.tags.count("style") == 1
    assert "49" not in re.sub(r"\d*\.\d+|\d{3,}", "", "".join(re.findall(r"<h1>.*?</h1>", page)))
    assert not re.search(r"<(?!/?$)[a-z!]", short)
    assert set(re.findall(r"(?<!\\)\]\((.*?)\)", short)) == CARDS


def test_numbers_of_the_metrics_are_those_of_the_scores(outcome: Outcome) -> None:
    _, _, numbers = outcome
    candidates = report_run.scores()["candidates"]

    for name, candidate in candidates.items():
        for key in ("bits_per_byte", "fertility", "words_in_context", "bytes_per_token"):
            assert numbers[f"{key}_{name}"] == candidate[key]
        assert numbers[f"loop_rate_{name}"] == candidate["repetition"]["greedy"]["loop_rate"]
    assert numbers["corpus_kept"] == 13_856
    assert numbers["corpus_train"] == 13_163
    assert numbers["gate_passed"] == 1


def test_the_last_line_tells_change_and_gate(tmp_path: Path) -> None:
    figures = run(report_run.job(tmp_path))

    assert figures == {
        "bits_per_byte_change_percent": -38.14, "fertility_ratio": 0.4159, "released": "finetuned", "gate": "passed",
    }  # fmt: skip


def test_the_same_artifacts_give_the_same_bytes(tmp_path: Path, outcome: Outcome) -> None:
    again = made(tmp_path / "elsewhere")

    assert again == outcome


def test_five_hundred_long_generations_stay_under_two_megabytes(tmp_path: Path) -> None:
    text = "Bakı küləkli şəhərdir. " * 400

    page, _, _ = made(tmp_path, scores=report_run.scores(num_prompts=250, text=text))

    assert len(page.encode()) < MAX_PAGE_BYTES
    assert "24 of 250 beginnings are shown" in page
    assert "more characters)" in page


def test_a_long_run_stays_under_two_megabytes_and_keeps_its_spikes(tmp_path: Path) -> None:
    lines = report_run.training(60_000)
    lines[5_777]["loss"] = 99.5

    page, _, _ = made(tmp_path, training=lines)

    assert len(page.encode()) < MAX_PAGE_BYTES
    assert "highest 99.50" in page


def test_what_pairs_taught_is_told_of_held_out_ones_with_their_curves(tmp_path: Path) -> None:
    summary = {"pairs": 190, "heldout_pairs": 10, "reward_accuracy": 0.99, "reward_margin": 2.1}
    heldout = {"heldout_accuracy": 0.9, "heldout_margin": 1.6}

    page, markdown, _ = made(tmp_path / "a", preference=summary | heldout)
    trained, _, _ = made(tmp_path / "b", preference=summary)
    nothing, _, _ = made(tmp_path / "c", preference=summary | heldout | {"heldout_accuracy": 0.5})

    said = "f 10 held-out pairs the better answer gained on the worse one in 90 %, by 1.600 on average."
    assert f"O{said}" in page
    assert f"Preference: o{said}" in markdown
    assert "Margin of the better answers" in page
    assert "Of 190 trained pairs the better answer gained on the worse one in 99 %" in trained
    assert "on average: this step taught nothing." in nothing


def test_required_fields_are_enough(tmp_path: Path) -> None:
    scores = {"candidates": {"base": {"fertility": 5.3, "bits_per_byte": 2.9, "num_bytes": 71_234}}}

    page, _, numbers = made(
        tmp_path, corpus={}, rejected={}, kept=[], fertility={}, training=[], audit={}, scores=scores,
        without={"tokenizer": ["choice.json"], "adapter": ["training.jsonl", "training.json"]},
    )  # fmt: skip

    assert Page(page).mistakes == []
    assert "No quality gate was applied." in page
    assert "\N{EM DASH}" in page
    assert numbers["bits_per_byte_base"] == 2.9
    assert "None" not in page


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    lines = report_run.training()
    lines[3]["loss"] = float("nan")

    page, _, _ = made(tmp_path, training=lines)

    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).lower()


def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path: Path) -> None:
    scores = json.dumps(report_run.scores(text="Bakı \ud83d"))
    job = report_run.job(tmp_path)
    (job.inputs["scores"] / "scores.json").write_text(scores, encoding="utf-8")

    run(job)

    assert "Bakı ?" in (job.out / "report.html").read_text(encoding="utf-8")


def test_a_missing_file_is_named_with_its_remedy(tmp_path: Path) -> None:
    job = report_run.job(tmp_path, without={"scores": ["scores.json"]})

    with pytest.raises(DataError, match=r"scores\.json: cannot be read .*make the scores artifact again"):
        run(job)


def test_no_path_or_address_of_a_machine_is_told(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(
        {
            "base": {"model": "/home/leyla/models/llama-az"},
            "clean": {"inputs": ["/home/leyla/data/news.jsonl", "s3://telecom-raw/web/pages.warc.gz"]},
            "storage": {"root": "/home/leyla/runs"},
            "tracking": {"uri": "https://mlflow.telecom.example"},
        }
    )

    page, short, _ = made(tmp_path, recipe)

    for secret in ("/home/leyla", "mlflow.telecom", "telecom-raw", str(tmp_path)):
        assert secret not in page
        assert secret not in short
    assert "Azerbaijani: what llama-az learned" in page
    assert "/news.jsonl" in page


def test_raw_counters_are_folded(outcome: Outcome) -> None:
    page = outcome[0]

    for caption in ("Counts behind the figures", "The held-out text", "Finetuning in numbers"):
        before = page[: page.index(f"<caption>{caption}</caption>")]
        assert before.count("<details>") - before.count("</details>") == 1


def test_metrics_hold_answers_tasks_and_what_was_learned(outcome: Outcome) -> None:
    numbers = outcome[2]

    assert numbers["questions_exact_finetuned"] == 0.25
    assert numbers["retained_en_base"] == 2.1543
    assert numbers["choices_xcopa_finetuned"] == 0.64
    assert numbers["task_belebele_azj_Latn_adapted"] == 0.31
    assert numbers["finetune_loss_fall"] == pytest.approx(0.3846, abs=1e-4)
    assert "cost_usd" not in numbers


def test_the_tokenizers_stand_in_one_table_with_the_rule_and_why_not_each_other(outcome: Outcome) -> None:
    page, short, _ = outcome

    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert (
        "Chosen: replace-4096. Why: tokenizer.choice is auto; of 3 candidates replace-4096 costs least."
        in text
    )
    assert "extend-4096 89% of its own tokens are seen 100 times, and 90% should be" in text
    assert "base extend-4096 replace-4096 (chosen)" in text
    assert "compute per word, over the base's 1.000 0.4698 0.4325" in text.replace("&#39;", "'")
    assert "tokens encoded per CPU-second 1,204,311 — 1,398,020" in text
    assert "tokens per word, to be kept: en 1.310 1.710 2.110" in text
    assert "| words in the context |" in short


def test_a_page_in_a_language_without_spaces_says_what_a_word_is_and_shows_no_figures_of_azerbaijani(
    tmp_path: Path,
) -> None:
    page, short, _ = made(tmp_path, Recipe.model_validate({"language": "ja"}))

    note = "Japanese is written without spaces: a word here is a run of kanji, of hiragana"
    assert page.count(note) == 2
    assert note in short
    assert note in (tmp_path / "out/model_card.md").read_text()
    assert not [
        text for text in ("Published by", "No published", 'id="published"', "3.22 to") if text in page
    ]


def test_words_that_are_cut_are_those_in_the_languages_script(tmp_path: Path) -> None:
    table = report_run.fertility()
    for candidate in table["candidates"].values():
        candidate["samples"] = {"useState": ["use", "State"], "京都": ["京", "都"]}

    page, _, _ = made(tmp_path, Recipe.model_validate({"language": "ja"}), fertility=table)

    assert re.findall(r'<div class="cut"><h4 lang="ja">(\w+)', page) == ["京都"]


def test_samples_carry_their_language_so_that_han_letters_have_its_forms(tmp_path: Path) -> None:
    page, _, _ = made(tmp_path)

    found = re.findall(r'<p class="quote"( lang="az")? dir="auto">(\w+)', page)
    languages = {first: lang for lang, first in found}

    assert languages[report_run.KEPT[0].split()[0]]
    assert not languages["İstanbul"]


def finalist(name: str, bits: float, parameters: int, words: int) -> dict[str, object]:
    scored = {"bits_per_byte": bits, "interval": [bits - 0.1, bits + 0.1]}
    keep = {"en": {"bits_per_byte": 1.0, "interval": [0.9, 1.1]}}
    more = {"parameters": parameters, "words_in_context": words, "steps": 200, "keep": keep}
    return {"name": name, **more, **scored}


def test_the_finalists_of_a_trial_stand_beside_each_other_with_the_front(tmp_path: Path) -> None:
    inputs = artifacts(tmp_path)
    trial = tmp_path / "trial"
    trial.mkdir()
    table = {
        "winner": "extend-4096",
        "reason": "2.0000 bits per byte, <b>the fewest</b>",
        "steps": 200,
        "finalists": [
            finalist("base", 3.0, 1_000_000, 600),
            finalist("extend-4096", 2.0, 1_200_000, 900),
            finalist("replace-4096", 2.5, 1_300_000, 800),
        ],
    }
    (trial / "trial.json").write_text(json.dumps(table), encoding="utf-8")
    artifact.seal(trial, kind="trial", origin={})
    out = tmp_path / "out"
    out.mkdir()
    made = {**inputs, "trial": trial}
    run(Job(recipe=Recipe(), inputs=made, out=out, work=tmp_path / "work", base_cache=tmp_path / "base"))

    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.mistakes == []
    assert page.open == []
    assert "<b>the fewest</b>" not in text
    assert "Chosen: extend-4096" in text
    *_, tried = [table for table in text.split("<table")[1:] if "tried at equal compute" in table]
    rows = tried.partition("</table>")[0].split("<tr")[2:]
    assert [row.count(">yes<") for row in rows] == [1, 1, 0]
    assert "2.0000 bits per byte" in (out / "report.md").read_text(encoding="utf-8")
    assert json.loads((out / "metrics.json").read_text())["trial_bits_per_byte_base"] == 3.0
