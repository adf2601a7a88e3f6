"""In a retraining earlier text stays: new text gives way to it, whatever the order of sources."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from anadil.core.stages import STAGES
from anadil.overlap.heldout_runs import MAX_DOCUMENTS, SearchTask, find_runs
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import execute
from anadil.text.corpus import read_documents
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, write_jsonl
from tests.kit.overlapping import cleaned, compared, excluded

OWN = texts(60)
WEB, NEWS = OWN[:12], OWN[12:24]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())
    monkeypatch.setattr("anadil.overlap.run.executor_of_this_program", lambda _: InThisProcess())


class Weeks:
    """Artifacts of the last week, which the next one goes on from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.artifacts: dict[str, str] = {}

    def add(self, **new: list[str]) -> dict[str, list[dict[str, str]]]:
        """Clean and compare the new texts of each source; return the rows of each."""
        recipe = self.recipe_of(new)
        corpora = cleaned(recipe)
        overlaps = {name: compared(recipe, name, corpora) for name in recipe.sources}
        self.artifacts = corpora | {f"overlap.{name}": str(place) for name, place in overlaps.items()}
        self.number += 1
        return {name: excluded(place) for name, place in overlaps.items()}

    def recipe_of(self, new: dict[str, list[str]]) -> Recipe:
        """Return the recipe of the next week."""
        folder = self.folder / f"week-{self.number}"
        folder.mkdir()
        data: dict[str, Any] = {
            "language": "az",
            "storage": {"root": str(self.folder / "artifacts")},
            "clean": {"workers": 1, "heldout_max_documents": 1, "max_shared": 1},
            "sources": {
                name: {
                    "inputs": [str(write_jsonl(folder / f"{name}.jsonl", lines))],
                    "clean": {"since": self.artifacts[f"corpus.{name}"]} if self.artifacts else {},
                }
                for name, lines in new.items()
            },
            "pretrain": {
                "phases": [{"trains": "all", "steps": 1, "lr": 0.001, "mix": dict.fromkeys(new, 1)}]
            },
        }
        if self.artifacts:
            named = {"name": "n", "version": "1", "uri": "u", "digest": "d"}
            data["retrain"] = {"champion": {**named, "artifacts": self.artifacts}}
        return parse_recipe(json.dumps(data), "recipe", ())

    def id_of(self, source: str, text: str) -> str:
        """Id of a document of a corpus to train on."""
        corpus = Path(self.artifacts[f"corpus.{source}"])
        return next(each.id for each in read_documents(corpus, "train") if each.text == text)


def digest_of(text: str) -> str:
    """The id of its document."""
    return hashlib.sha256(text.encode()).hexdigest()


def trained(weeks: Weeks, source: str, lines: list[str]) -> str:
    """The first of some texts that is held out of no training."""
    corpus = Path(weeks.artifacts[f"corpus.{source}"])
    known = {each.text for each in read_documents(corpus, "train")}
    return next(text for text in lines if text in known)


def test_new_text_gives_way_to_earlier_text_of_any_source_and_stays_so(tmp_path: Path) -> None:
    weeks = Weeks(tmp_path)
    assert weeks.add(web=WEB, news=NEWS) == {"web": [], "news": []}
    of_news, of_web = trained(weeks, "news", NEWS), trained(weeks, "web", WEB)

    second = weeks.add(web=[of_news, *OWN[24:28], OWN[40]], news=[of_web, *OWN[28:32], OWN[40]])

    # By the order of sources the document of news would go, and all that was made of it.
    first_of_web = weeks.id_of("web", of_news)
    expected = (first_of_web, "duplicate", "news", weeks.id_of("news", of_news))
    assert [tuple(row.values()) for row in second["web"]] == [expected]
    # Two new documents are alike: the source that the recipe names first keeps its own.
    assert {row["id"] for row in second["news"]} == {
        weeks.id_of("news", of_web), weeks.id_of("news", OWN[40]),
    }  # fmt: skip
    third = weeks.add(web=OWN[32:34], news=[OWN[24], *OWN[34:36]])
    assert third["web"] == second["web"]
    added = [row for row in third["news"] if row not in second["news"]]
    assert [(row["id"], row["of"]) for row in added] == [(weeks.id_of("news", OWN[24]), "web")]
    assert [row for row in second["news"] if row not in third["news"]] == []


def test_held_out_text_of_a_new_source_is_left_out_of_earlier_text(tmp_path: Path) -> None:
    weeks = Weeks(tmp_path)
    weeks.add(web=WEB, news=NEWS)
    known = trained(weeks, "web", WEB)
    recipe = weeks.recipe_of({"web": OWN[24:26], "news": OWN[26:28]})
    # The lower hash is held out.
    other = next(text for text in OWN[24:] if digest_of(text) > digest_of(known))
    code = write_jsonl(tmp_path / "code.jsonl", [known, other])
    data = recipe.model_dump(mode="json")
    data["sources"]["code"] = {"inputs": [str(code)]}
    data["pretrain"]["phases"][0]["mix"]["code"] = 1
    wider = parse_recipe(json.dumps(data), "recipe", ())
    corpora = cleaned(wider)

    rows = excluded(compared(wider, "web", corpora))

    assert [(row["id"], row["reason"], row["of"]) for row in rows] == [
        (weeks.id_of("web", known), "heldout", "code")
    ]


def test_a_source_that_is_gone_gives_its_counterparts_back(tmp_path: Path) -> None:
    weeks = Weeks(tmp_path)
    weeks.add(web=WEB, news=NEWS, code=OWN[50:58])
    known = trained(weeks, "code", OWN[50:58])
    second = weeks.add(web=[known, *OWN[24:28]], news=OWN[28:32], code=OWN[58:60])
    assert [row["of"] for row in second["web"]] == ["code"]

    third = weeks.add(web=OWN[32:34], news=OWN[34:36])

    assert third["web"] == []


def test_runs_are_looked_for_in_new_files_alone_and_counted_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[Path] = []

    def noted(task: SearchTask) -> None:
        tasks.append(task.file)
        find_runs(task)

    monkeypatch.setattr("anadil.overlap.run.find_runs", noted)
    weeks = Weeks(tmp_path)
    weeks.add(web=WEB, news=NEWS)
    held = next(read_documents(Path(weeks.artifacts["corpus.news"]), "heldout")).text.split()
    # Held-out text in more documents than a phrase of its own stands in, and only with those of last week.
    holding = [f"{text} {' '.join(held[:14])}" for text in OWN[30 : 30 + MAX_DOCUMENTS + 1]]
    weeks.add(web=holding[:-1], news=OWN[24:26])
    tasks.clear()

    third = weeks.add(web=[holding[-1], OWN[28]], news=OWN[26:28])

    assert {path.name for path in tasks} == {"part-00002.jsonl.zst"}
    ids = {row["id"] for row in third["web"] if row["reason"] == "heldout"}
    assert weeks.id_of("web", holding[0]) in ids
    assert weeks.id_of("web", holding[-1]) not in ids, "a common phrase by now"
    assert len(ids) == MAX_DOCUMENTS
    stats = json.loads((Path(weeks.artifacts["overlap.web"]) / "overlap.json").read_text("utf-8"))
    assert stats["boilerplate"]["documents"] == 1


def test_the_champions_list_is_part_of_the_key(tmp_path: Path) -> None:
    weeks = Weeks(tmp_path)
    weeks.add(web=WEB, news=NEWS)
    recipe = weeks.recipe_of({"web": OWN[24:26], "news": OWN[26:28]})
    plain = recipe.model_copy(update={"retrain": None})
    corpora = cleaned(recipe)

    made = [execute(STAGES["overlap"], each.of_source("web"), corpora, (), None) for each in (recipe, plain)]

    assert made[0].uri != made[1].uri
    assert made[0].manifest.origin["input earlier corpus.news"]
