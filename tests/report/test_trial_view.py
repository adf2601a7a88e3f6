import json
from pathlib import Path

from anadil.artifacts import artifact
from anadil.recipe.sections import Recipe
from anadil.report.run import run
from anadil.runtime.job import Job
from tests.kit.report_run import artifacts
from tests.report.test_page import Page


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
