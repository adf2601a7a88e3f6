"""The worked examples of CONTRIBUTING.md, made in a copy of the project."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.clean_inputs import texts as az_texts
from tests.kit.project_copy import keep_kernels, run
from tests.kit.texts import JAPANESE, MORE_JAPANESE

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROGRAMS = {
    "anadil": [sys.executable, "-m", "anadil"],
    "python": [sys.executable],
    "lint-imports": [str(Path(sys.executable).with_name("lint-imports"))],
}
EXAMPLES: dict[str, str] = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the examples change and run, with what is compiled of it: a change compiles anew what it concerns."""
    copy = tmp_path / "project"
    for name in ("components", "pipelines", "recipes", "docs", "charts"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    keep_kernels(copy)
    return copy


def blocks(title: str, kind: str) -> list[str]:
    """The blocks of an example, of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", EXAMPLES[title], re.MULTILINE | re.DOTALL)


def changed(title: str) -> list[str]:
    """Files that an example changes."""
    return [block.partition("\n")[0] for block in blocks(title, "diff")]


def make(project: Path, title: str) -> None:
    """Make the changes of an example."""
    for block in [*blocks(title, "python"), *blocks(title, "yaml")]:
        place, _, content = block.partition("\n")
        path = project / place.removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for block in blocks(title, "diff"):
        place, _, changes = block.partition("\n")
        path = project / place
        text = (path if path.is_file() else ROOT / place).read_text(encoding="utf-8")
        for change in changes.removesuffix("\n").split("\n@@\n"):
            lines = change.split("\n")
            old, new = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
            assert text.count(old) == 1, f"{place}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def follow(project: Path, title: str, **places: str) -> str:
    """Make an example and run its commands; what they print."""
    make(project, title)
    printed = ""
    for line in "".join(blocks(title, "bash")).splitlines():
        program, *words = shlex.split(line.replace("/tmp/", f"{project.parent}/"))
        words = [places.get(word.lower(), word) for word in words]
        printed += run(project, [*PROGRAMS[program], *words])
    return printed


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_names_what_is_there_and_passes_format_and_lint(tmp_path: Path, title: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    make(tmp_path, title)

    # I001 tells our imports from others by the files that are there.
    for command in (["format", "--check"], ["check", "--ignore", "I001"]):
        run(tmp_path, [sys.executable, "-m", "ruff", *command, "--no-cache"])


@pytest.mark.slow
def test_a_stage_is_added(project: Path, corpus: Any) -> None:
    printed = follow(project, "A stage", corpus=corpus.uri)

    counts = json.loads((project.parent / "glossary/words.json").read_text(encoding="utf-8"))
    spec = next(yaml.safe_load_all((project.parent / "pipeline.yaml").read_text(encoding="utf-8")))
    tasks = spec["root"]["dag"]["tasks"]
    assert counts["və"] > 1
    assert tasks["glossary"]["dependentTasks"] == ["clean-az", "clean-en"]
    assert "glossary" in tasks["report"]["dependentTasks"]
    assert "glossary" in spec["deploymentSpec"]["executors"]["exec-glossary"]["container"]["command"][-1]
    assert "Glossary\n  text to count  " in printed
    assert "ok       glossary: words of Azerbaijani are counted\n" in printed
    code = f"""
import dataclasses, sys
sys.path.append({str(ROOT)!r})
from pathlib import Path
from anadil.report.run import run
from tests.kit.report_run import job
made = job(Path("report"))
run(dataclasses.replace(made, inputs=made.inputs | {{"glossary": Path({str(project.parent / "glossary")!r})}}))
print((made.out / "report.html").read_text(encoding="utf-8"))
"""
    page = run(project, [sys.executable, "-c", code])
    assert "Most frequent words" in page
    code = f"""
from anadil.release.compare import comparison
facts = comparison._facts("one", None, {{"glossary": {str(project.parent / "glossary")!r}}})
comparison.find_facts = lambda *_: facts
print(*comparison.compare("one", "other").lines(), sep="\\n")
"""
    printed = run(project, [sys.executable, "-c", code])
    assert f"Frequent words that both have: {min(len(counts), 1_000):,}." in printed
    assert f"<td>{counts['və']:,}</td>" in page


@pytest.mark.matrix
def test_a_rule_is_added_and_drops_in_every_language_and_taken_out_again(project: Path) -> None:
    loud = {
        "az": az_texts(4)[3].replace(" ", "! "),
        "ja": (JAPANESE + MORE_JAPANESE).replace("。", "!!!。") + "!" * 200,
    }
    sound = {"az": az_texts(3), "ja": [JAPANESE + MORE_JAPANESE, MORE_JAPANESE + JAPANESE[::-1]]}
    files = {}
    for code, text in loud.items():
        files[code] = project.parent / f"{code}.jsonl"
        rows = [json.dumps({"text": each}) for each in (*sound[code], text)]
        files[code].write_text("\n".join(rows), encoding="utf-8")
    before = {place: (project / place).read_bytes() for place in changed("A rule")}

    follow(project, "A rule", azerbaijani=str(files["az"]), japanese=str(files["ja"]))

    for code in loud:
        stats = json.loads((project.parent / code / "stats.json").read_text(encoding="utf-8"))
        assert stats["dropped"].get("exclamations") == 1, code
    for place, content in before.items():
        (project / place).write_bytes(content)
    columns = "from anadil.clean.kernels.columns import STATISTICS; print('exclamations' in STATISTICS)"
    assert len(before) == 2
    assert run(project, [sys.executable, "-c", columns]) == "False\n"


@pytest.mark.matrix
def test_a_language_is_added(project: Path) -> None:
    follow(project, "A language")

    stats = json.loads((project.parent / "corpus/stats.json").read_text(encoding="utf-8"))
    assert stats["kept"] > 0


@pytest.mark.slow
def test_a_model_family_is_added(project: Path) -> None:
    assert "model_type='stablelm'" in follow(project, "A model family")


@pytest.mark.matrix
def test_an_optimizer_is_added_and_changes_no_key_of_before(project: Path) -> None:
    plan = follow(project, "An optimizer")

    assert json.loads(plan)["recipe"] == "azerbaijani-1b"
    key = "from anadil.recipe.load import load_recipe; from anadil.runtime.cache_key import recipe_origin; "
    key += "print(recipe_origin(load_recipe('smoke'), ('pretrain',)))"
    assert "optimizer" not in run(project, [sys.executable, "-c", key])
    make_one = (
        "import torch; from anadil.pretrain.optimizer import make_optimizer; "
        "from anadil.recipe.pretrain import Pretrain; settings = Pretrain(optimizer='adam'); "
        "print(type(make_optimizer({'w': torch.nn.Parameter(torch.ones(2, 2))}, settings.phases[1], settings, ())))"
    )
    assert run(project, [sys.executable, "-c", make_one]) == "<class 'torch.optim.adam.Adam'>\n"


@pytest.mark.matrix
def test_an_alert_channel_is_added(project: Path) -> None:
    follow(project, "An alert channel")

    assert "ANADIL_NTFY_URL" in (project.parent / "pipeline.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_metric_is_added(project: Path) -> None:
    assert "'perplexity': 1.0" in follow(project, "A metric")

    gauges = "from anadil.runtime import prometheus; print(prometheus.HELP['anadil_perplexity'])"
    assert run(project, [sys.executable, "-c", gauges]) == "Perplexity of the step per token.\n"


@pytest.mark.matrix
def test_a_callback_is_added(project: Path) -> None:
    follow(project, "A callback")

    code = f"""
import gc, sys
sys.path.append({str(ROOT)!r})
from pathlib import Path
from anadil.pretrain.resilience import garbage
from anadil.pretrain.run import run
from tests.kit.pretraining import SHORT, make_corpus, make_job, make_model, make_recipe, make_tokenizer_artifact
folder = Path("run")
make_corpus(folder / "corpus")
make_tokenizer_artifact(folder / "tokenizer")
garbage.EVERY, collected, collect = 2, [], gc.collect
gc.collect = lambda *generation: collected.append(generation) or collect(*generation)
run(make_job(folder, make_recipe(make_model(folder / "model"), phases=SHORT)))
print(collected.count((1,)), gc.isenabled())
"""
    assert run(project, [sys.executable, "-c", code]).splitlines()[-1] == "2 True"
