"""Stages as functions of `anadil`: arguments, recipe, errors; a chain of real stages is slow."""

import inspect
import json
import re
import subprocess
import sys
import types
from base64 import b64decode
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest

import anadil
from anadil.artifacts.artifact import seal
from anadil.core.errors import DataError, RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.load import load_recipe
from anadil.release import stage_process
from anadil.release.artifact_object import Artifact, open_artifact
from anadil.release.child_process import EndedProcess
from anadil.release.progress_display import Display
from tests.kit import report_run
from tests.kit.clean_stage import write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

GUIDE = Path(__file__).parents[2] / "docs/guides/python.md"
NOTEBOOK = Path(__file__).parents[2] / "examples/stages.ipynb"
ORDERS = """
import {first}
import anadil
assert callable(anadil.{stage}), "a package stands in the function's place"
import anadil.{stage}.{light} as module
assert module is anadil.{stage}.{light}
import inspect
assert "Args:" in inspect.getdoc(anadil.{stage})
assert "recipe" in inspect.signature(anadil.{stage}).parameters
"""


def sealed(place: Path, kind: str, **recipe: Any) -> Path:
    place.mkdir(parents=True)
    (place / "content").write_text("x", encoding="utf-8")
    seal(place, kind=kind, origin={"a": kind}, recipe=recipe, figures={"kept": 3, "seconds": 62.0})
    return place


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, Any]]]:
    """Words of each command, and its recipe, in place of its run."""
    seen: list[tuple[list[str], dict[str, Any]]] = []

    def instead(arguments: list[str], *_: object) -> EndedProcess:
        seen.append((arguments, json.loads(Path(arguments[2]).read_text(encoding="utf-8"))))
        made = tmp_path / f"made-{len(seen)}"
        sealed(made, STAGES[arguments[0]].writes, **seen[-1][1])
        return EndedProcess(number=1, exit_code=0, stdout=f"{made}\n")

    monkeypatch.setattr(stage_process, "run_command", instead)
    return seen


@pytest.mark.parametrize(
    ("first", "stage", "light"),
    [("anadil.clean.filters", "clean", "filters"), ("anadil", "evaluate", "gate")],
)
def test_a_stage_is_called_whichever_of_package_and_function_comes_first(
    first: str, stage: str, light: str
) -> None:
    code = ORDERS.format(first=first, stage=stage, light=light)

    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_stage_without_the_room_of_its_function_is_a_package_without_documentation() -> None:
    code = (
        "import sys; sys.modules['anadil.release'] = None; import anadil.clean.filters, anadil; "
        "assert getattr(anadil.clean, '__doc__', None) is None and anadil.clean.filters"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_chain_goes_on_with_recipe_and_place_of_what_it_reads(
    commands: list[tuple[list[str], dict[str, Any]]], tmp_path: Path
) -> None:
    corpus = anadil.clean(tmp_path / "a.jsonl", language="tr", work=tmp_path / "w", pii=True)
    tokenizer = anadil.train_tokenizer(corpus, base="tiny", vocab_sizes=[512])
    model = anadil.pretrain(tokenizer, corpus, phases=[{"trains": "all", "steps": 3, "lr": 1e-5}])
    adapter = anadil.finetune(model, ["chats.jsonl"], epochs=0.5)
    scores = anadil.evaluate(corpus, model, adapter.uri, max_questions=2)

    words, recipes = zip(*commands, strict=True)
    assert [each[0] for each in words] == ["clean", "tokenizer", "pretrain", "finetune", "evaluate"]
    assert words[2][3:] == ["--corpus", corpus.uri, "--tokenizer", tokenizer.uri]
    assert words[4][3:] == ["--corpus", corpus.uri, "--model", model.uri, "--adapter", adapter.uri]
    last = recipes[-1]
    assert {each["storage"]["root"] for each in recipes} == {str(tmp_path / "w")}
    assert (last["language"], last["clean"]["pii"], last["base"]["model"]) == ("tr", True, "tiny")
    assert (last["tokenizer"]["vocab_sizes"], last["finetune"]["epochs"]) == ([512], 0.5)
    assert last["pretrain"]["phases"][0]["lr"] == 1e-5
    assert (last["finetune"]["inputs"], last["evaluate"]["max_questions"]) == (["chats.jsonl"], 2)
    assert scores.kind == "scores"


def test_a_source_s_corpus_has_no_whole_recipe(
    commands: list[tuple[list[str], dict[str, Any]]], tmp_path: Path
) -> None:
    recipe = load_recipe("smoke")
    corpora = {name: anadil.clean(source=name, recipe=recipe, work=tmp_path / "w") for name in ("az", "en")}
    of_source = sealed(tmp_path / "of-source", "corpus", **recipe.of_source("az").model_dump(mode="json"))

    with pytest.raises(
        RecipeError, match="is the corpus of one source of a recipe; give the whole recipe, as recipe="
    ):
        anadil.train_tokenizer(of_source)
    anadil.train_tokenizer(corpora, recipe=recipe, work=tmp_path / "w")

    # The tokenizer reads text of the language that is taught alone.
    assert commands[-1][0][3:] == ["--corpus", f"az={corpora['az'].uri}"]
    assert commands[0][0][-2:] == ["--source", "az"]


def test_a_mistake_in_a_key_starts_nothing(commands: list[tuple[list[str], dict[str, Any]]]) -> None:
    with pytest.raises(RecipeError, match=r"clean.pii_: unknown key; did you mean 'pii'"):
        anadil.clean("a.jsonl", pii_=True)  # type: ignore[call-arg]  # what the test is about

    assert commands == []


def test_the_signature_has_every_key_of_the_section() -> None:
    parameters = inspect.signature(anadil.finetune).parameters

    keys = set(type(load_recipe("smoke").finetune).model_fields) - {"inputs"}
    assert {"model", "chats", "recipe", "work", "overrides", "say"} | keys == set(parameters)


def test_an_artifact_shows_its_figures_and_where_it_is(tmp_path: Path) -> None:
    place = sealed(tmp_path / "<b>", "corpus")

    artifact = open_artifact(place)

    assert (artifact.kind, artifact.path, artifact.figures["kept"]) == ("corpus", place, 3)
    assert "1 min 2 s" in str(artifact)
    assert "<b>" not in artifact._repr_html_()
    with pytest.raises(DataError, match="no finished"):
        open_artifact(tmp_path)


def test_what_is_trained_shows_its_curve_as_a_picture(tmp_path: Path) -> None:
    made = report_run.artifacts(tmp_path)
    model = open_artifact(made["model"])

    loss, *_ = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', model._repr_html_())
    (made["model"] / "training.jsonl").write_text("{}\n")

    picture = minidom.parseString(b64decode(loss)).documentElement
    assert picture is not None
    assert picture.getAttribute("xmlns") == "http://www.w3.org/2000/svg"
    assert ">Loss, nats per token<" in picture.toxml()
    assert "<img" not in open_artifact(made["corpus"])._repr_html_()
    damaged = model._repr_html_()
    assert "<img" not in damaged
    assert "training.jsonl: differs from its manifest" in damaged


def test_a_notebook_shows_one_bar_and_the_log_in_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            shown.append(data["text/html"])

    def display(data: dict[str, str], **_: object) -> Handle:
        shown.append(data["text/html"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    module = types.ModuleType("IPython.display")
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)

    bar = Display("pretrain")
    bar("pretrain: pre-training: 2 of 1,300, 11 s left, loss <7>")
    bar("pretrain: <script>")
    bar.end(130)

    assert '<progress value="2" max="1300"></progress> 2 of 1,300, 11 s left, loss &lt;7&gt;' in shown[1]
    assert "&lt;script&gt;" in shown[2]
    assert "<script>" not in "".join(shown)
    assert "stopped, resumes with the same call" in shown[3]


def test_the_guide_s_code_runs(
    commands: list[tuple[list[str], dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)

    assert [words[0] for words, _ in commands[:5]] == [
        "clean",
        "tokenizer",
        "pretrain",
        "finetune",
        "evaluate",
    ]
    assert commands[-1][1]["clean"]["as_is"] is True
    assert names["scores"].figures["kept"] == 3


def test_the_notebook_s_cells_run_in_order(
    commands: list[tuple[list[str], dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            assert cell["outputs"] == []

    assert [words[0] for words, _ in commands] == ["clean", "tokenizer", "pretrain", "finetune", "evaluate"]
    assert commands[-1][1]["pretrain"]["phases"][0]["steps"] == 100


@pytest.mark.slow
def test_a_real_stage_makes_an_artifact_and_is_reused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [AZERBAIJANI, ANOTHER])
    lines: list[str] = []
    keys: dict[str, Any] = {"language": "az", "work": tmp_path / "w", "as_is": True, "say": lines.append}

    first = anadil.clean(file, **keys)
    second = anadil.clean(file, **keys)

    assert isinstance(first, Artifact)
    assert first == second
    assert first.figures["kept"] == 2
    assert any("reused" in line for line in lines)
    with pytest.raises(DataError, match="no file matches"):
        anadil.clean(tmp_path / "none.jsonl", **keys)
