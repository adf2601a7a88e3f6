import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anadil
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError
from anadil.core.stages import STAGES
from anadil.release import python_calls
from tests.kit.clean_stage import write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

ROOT = Path(__file__).parents[2]
LOOK = """
import json, signal, sys, time
before = (signal.getsignal(2), signal.getsignal(15))
modules, start = set(sys.modules), time.process_time()
import anadil
seconds, loaded = time.process_time() - start, set(sys.modules) - modules
anadil.run, anadil.stage
after = (signal.getsignal(2), signal.getsignal(15))
print(json.dumps([seconds, sorted(loaded), before == after, [m for m in ("torch", "kfp", "mlflow") if m in sys.modules]]))
"""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of each command in place of its run; a stage prints the place of what it writes."""
    words: list[list[str]] = []

    def instead(arguments: list[str], _: object) -> str:
        words.append(arguments)
        if arguments[0] == "run":
            return json.dumps({"tokenizer": "w/tokenizer/1", "report": "w/report/1/report.html"})
        return f"w/{STAGES[arguments[0]].writes}/1\n"

    monkeypatch.setattr(python_calls, "_output", instead)
    return words


def test_an_import_is_quick_and_leaves_signals_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60
    )

    seconds, loaded, untouched, heavy = json.loads(done.stdout)
    assert seconds < 0.15
    assert not [name for name in loaded if name.startswith("anadil.")]
    assert (untouched, heavy) == (True, [])
    with pytest.raises(AttributeError, match=r"no attribute 'rnu'; it offers run and stage"):
        _ = anadil.rnu


def test_a_run_is_the_command_with_its_options(commands: list[list[str]]) -> None:
    made = anadil.run("smoke", until="report", set={"seed": 1, "base.model": "tiny"}, work="w")
    anadil.run(set=["seed=2"])

    assert made["report"] == "w/report/1/report.html"
    assert commands[0] == [
        "run", "smoke", "--work", "w", "--until", "report", "--output", "json", "--set", "seed=1", "--set",
        'base.model="tiny"',
    ]  # fmt: skip
    assert commands[1][-2:] == ["--set", "seed=2"]


def test_a_stage_names_artifacts_by_their_words_and_writes_to_the_work_directory(
    commands: list[list[str]], tmp_path: Path
) -> None:
    made = anadil.stage(
        "pretrain", set=["pretrain.batch_size=4"], work=tmp_path, tokenizer="t", corpus={"az": "a", "en": Path("e")}
    )  # fmt: skip
    anadil.stage("clean", set={"storage.root": "s3://b/r"}, source="az")

    assert made == "w/model/1"
    assert commands[0] == [
        "pretrain", "--recipe", "smoke", "--set", "pretrain.batch_size=4", "--set", f'storage.root="{tmp_path}"',
        "--tokenizer", "t", "--corpus", "az=a", "--corpus", "en=e",
    ]  # fmt: skip
    assert commands[1][-4:] == ["--set", 'storage.root="s3://b/r"', "--source", "az"]


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("pretarin", {}, "stage 'pretarin': not one of replay, .*; did you mean 'pretrain'?"),
        ("clean", {"tokens": "t"}, "clean reads no tokens; it reads written"),
        ("clean", {"set": {"clean.pii_": True}}, "clean.pii_: unknown key; did you mean 'pii'"),
    ],
)
def test_a_mistake_starts_nothing(
    name: str, more: dict[str, Any], words: str, commands: list[list[str]]
) -> None:
    with pytest.raises(RecipeError, match=words):
        anadil.stage(name, **more)

    assert commands == []


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("print('a: error: 2 mistakes\\n  one\\nnext', file=sys.stderr); sys.exit(4)", PreflightError, "^2 mistakes\n  one$"),
        ("sys.exit(9)", AnadilError, "exit code 9"),
        ("sys.exit(130)", KeyboardInterrupt, "^$"),
    ],
)  # fmt: skip
def test_an_exit_is_the_exception_that_it_stands_for(
    code: str, error: type[BaseException], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_program(monkeypatch, f"import sys; {code}")

    with pytest.raises(error, match=words):
        anadil.run()


def replace_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run some code in place of `python -m anadil`."""
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **more: start([sys.executable, "-c", code], **more))


def test_an_interrupt_reaches_a_run_once_and_waits_until_it_has_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
import signal, sys, time
caught = []
signal.signal(signal.SIGINT, lambda *_: caught.append(1))
print("ready", file=sys.stderr, flush=True)
deadline = time.monotonic() + 20
while not caught and time.monotonic() < deadline: time.sleep(0.02)
time.sleep(0.2)
print("saved", len(caught), file=sys.stderr, flush=True)
sys.exit(130)
"""
    replace_program(monkeypatch, code)
    lines: list[str] = []

    class Screen:
        def write(self, line: str) -> None:
            lines.append(line)
            if line == "ready\n":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", Screen())

    with pytest.raises(KeyboardInterrupt):
        anadil.run()
    assert lines == ["ready\n", "saved 1\n"]


@pytest.mark.parametrize("page", ["docs/guides/python.md", "examples/stages.ipynb"])
def test_code_for_users_runs(
    page: str, commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if page.endswith(".ipynb"):
        cells = [each for each in json.loads(text)["cells"] if each["cell_type"] == "code"]
        assert [each["outputs"] for each in cells] == [[]] * len(cells)
        blocks = ["".join(each["source"]) for each in cells]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    for block in blocks:
        exec(block, names)

    started = [words[0] for words in commands]
    chain = ["clean", "tokenizer", "pretrain", "finetune", "evaluate"]
    assert [name for name in chain if name in started] == chain


@pytest.mark.slow
def test_a_real_stage_makes_an_artifact_and_is_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [AZERBAIJANI, ANOTHER])
    keys = {"language": "az", "clean.inputs": [file], "clean.as_is": True}

    first, second = (anadil.stage("clean", set=keys, work=tmp_path / "w") for _ in range(2))

    assert first == second
    assert json.loads((Path(first) / "manifest.json").read_text())["figures"]["kept"] == 2
    assert "reused" in capsys.readouterr().err
    with pytest.raises(DataError, match="no file matches"):
        anadil.run(set=keys | {"clean.inputs": ["/none.jsonl"]}, work=tmp_path / "w", until="clean")
