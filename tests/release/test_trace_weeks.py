"""From the model of the third week back to the first, through models and corpora that were added to."""

import json
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.release.trace.lineage import trace
from anadil.release.trace.page import trace_lines, trace_page
from anadil.runtime.execute import execute
from anadil.runtime.executors.engines import LOCAL_ENGINES
from tests.kit import clean_stage
from tests.kit.clean_inputs import texts
from tests.release.test_trace import PLANTED, copied, made, only, row  # noqa: F401  two are fixtures
from tests.report.test_page import Page


def test_trainings_one_after_another_are_traced_to_the_first_and_count_no_text_twice(
    copied: Path,  # noqa: F811  a fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LOCAL_ENGINES, "processes", clean_stage.executor)
    first, since = only(copied / "model"), str(only(copied / "corpus"))
    champion, last = artifact.finished_manifest(str(first), "model"), first
    planted = texts(PLANTED + 40)
    for week in range(2):
        new = tmp_path / f"week-{week}.jsonl"
        place = PLANTED + 20 * week
        lines = [row(number, planted[number]) for number in range(place, place + 20)]
        new.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
        told = {
            "clean": {"inputs": [str(new)], "heldout_fraction": 0.05, "since": since},
            "storage": {"root": str(copied)}, "tracking": {"uri": "off"},
            "pretrain": {"start_from": str(last)},
            "retrain": {"champion": {"name": "anadil-az", "version": str(week + 1)}},
        }  # fmt: skip
        recipe = parse_recipe(
            json.dumps({name: told[name] for name in ("clean", "storage", "tracking")}), "r"
        )
        corpus = execute(STAGES["clean"], recipe, {}, (), None)
        since = corpus.uri
        origin = {"input corpus": corpus.manifest.digest, "input pretrain.start_from": champion.digest}
        last = copied / "model" / artifact.origin_key(origin)
        last.mkdir()
        (last / "model.safetensors").write_bytes(f"week {week}".encode())
        # The second begins with a model that was moved since.
        begin = {
            "place": str(first if week == 0 else tmp_path / "away"),
            "digest": champion.digest,
            "step": 0,
            "run": "",
        }
        (last / "training.json").write_text(json.dumps({"start_from": begin}), encoding="utf-8")
        champion = artifact.seal(last, kind="model", origin=origin, recipe=told, figures={"tokens": 9_000})

    whole = trace(str(last), documents=["https://host0.example/0", f"https://host{1039 % 40}.example/1039"])

    assert (whole.breaks, whole.gaps) == ((), ())
    assert [each.word for each in whole.links].count("model") == 3
    assert [(each.champion, each.files, each.tokens) for each in whole.weeks] == [
        ("", 2, None), ("anadil-az/1", 1, 9_000), ("anadil-az/2", 1, 9_000),
    ]  # fmt: skip
    assert [each.documents for each in whole.weeks[1:]] == [20, 20]
    assert sum(each.documents for each in whole.weeks) == whole.stats["kept"]
    assert [each.source for each in whole.texts] == [""]
    assert whole.stats["records"]["train"] == len(list(whole.list_documents()))
    listed = [each["url"] for each in whole.list_documents()]
    assert len(listed) == len(set(listed)), "a corpus that another adds to is listed with that one"
    assert {(each.state, each.others) for each in whole.documents} <= {("trained on", 0), ("held out", 0)}
    said = "\n".join(trace_lines(whole))
    assert "began with anadil-az/2; 1 new file, 20 documents" in said
    page = trace_page(whole)
    assert "Trainings, the first of all first" in page
    assert Page(page).mistakes == []
    assert len(whole.as_json()["weeks"]) == 3
