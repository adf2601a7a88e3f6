"""`import anadil`: what it offers, what it leaves alone, and the guide's code."""

import ast
import asyncio
import inspect
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anadil
from anadil.core.errors import DataError, RecipeError
from anadil.release import child_process
from anadil.release.notebook import html_table, text_table
from anadil.release.runs import Run, find_run
from tests.kit.compared_run import make_run, recipe, scores
from tests.kit.marks import slow

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/notebook.md"
STUB = ROOT / "components/anadil/__init__.pyi"
LOOK = """
import logging, signal, sys, time
before = (logging.root.handlers[:], logging.root.level, signal.getsignal(2), signal.getsignal(15))
modules, start = set(sys.modules), time.process_time()
import anadil
seconds, loaded = time.process_time() - start, set(sys.modules) - modules
anadil.list_runs("/nowhere"), anadil.compare, anadil.load_recipe("smoke"), anadil.run
after = (logging.root.handlers[:], logging.root.level, signal.getsignal(2), signal.getsignal(15))
import json
print(json.dumps([seconds, sorted(loaded), before == after, [m for m in ("torch", "kfp", "mlflow") if m in sys.modules]]))
"""


def test_an_import_is_quick_and_leaves_logs_and_signals_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60
    )

    seconds, loaded, untouched, heavy = json.loads(done.stdout)
    assert seconds < 0.15
    assert [name for name in loaded if not name.startswith("importlib")] == ["anadil"]
    assert untouched is True
    assert heavy == []


def test_what_is_offered_has_types_and_says_what_it_takes_and_raises() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    typed = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert typed == anadil.OFFERED
    assert set(dir(anadil)) == {*anadil.OFFERED, "__version__"}
    for name in anadil.OFFERED:
        offered = getattr(anadil, name)
        told = inspect.getdoc(offered) or ""
        assert told, name
        if not inspect.isclass(offered):
            assert "Args:" in told, name
            assert "Raises:" in told, name


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'comprae'; it offers .*compare"):
        _ = anadil.comprae  # type: ignore[attr-defined]  # what the test is about


class Echo:
    """A model in place of one that takes seconds; `test_chat.py` has real ones."""

    def __init__(self, uri: str, settings: anadil.ChatSettings) -> None:
        self.name = f"{Path(uri).name} at {settings.temperature:g}"

    def answers(self, questions: list[str]) -> list[str]:
        return [f"{self.name}: {question}" for question in questions]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_guide_s_code_runs_in_an_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def instead(name: str, *, work: str, overrides: list[str]) -> Run:
        """A finished run in place of one that takes minutes; a real one has a test below."""
        seed = int(overrides[0].partition("=")[2])
        run = f"run-{seed}"
        bits = {"bits_per_byte": 1.7 - seed / 10, "base_bits_per_byte": 2.9}
        given = {"scores": scores(better=seed / 10), "recipe": recipe(seed=seed)}
        make_run(
            Path(work), run, name=name, figures={"seconds": 60.0, "released": "adapted", **bits}, **given
        )
        return find_run(run, work)

    monkeypatch.setitem(vars(anadil), "run", instead)
    monkeypatch.setitem(vars(anadil), "open_chat", Echo)
    shown: list[Any] = []

    async def notebook() -> None:
        names: dict[str, Any] = {}
        for block in blocks():
            *lines, last = ast.parse(block).body
            exec(compile(ast.Module(lines, []), "guide", "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), "guide", "eval"), names))
            else:
                exec(compile(ast.Module([last], []), "guide", "exec"), names)

    asyncio.run(notebook())

    assert shown[0] == ("finished", 1.7)
    assert shown[1] == 60
    assert [run.id for run in shown[2]] == ["run-1", "run-0"]
    assert "<table>" in shown[2]._repr_html_()
    assert shown[3][0] == "run-1"
    assert "srcdoc=" in shown[4]._repr_html_()
    assert shown[5]["adapted", "bits per byte"][0] == pytest.approx(-0.1)
    assert (tmp_path / "compare.html").is_file()
    assert "The chain holds: 4 artifacts" in shown[-2]._repr_html_()
    assert shown[-1] == ["run-1-adapter at 0: Balansı necə yoxlayım?"]


@pytest.mark.slow
def test_a_run_out_of_an_event_loop_is_a_process_of_its_own(raw: Path, tmp_path: Path) -> None:
    told: list[str] = []
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    data = {"base": {"model": "tiny"}, "clean": {"inputs": [str(raw)]}, "tracking": {"uri": "off"}}
    asked = anadil.load_recipe(json.dumps(data))

    async def cell() -> Run:
        return anadil.run(asked, work=tmp_path / "work", until="clean", say=told.append)

    run = asyncio.run(cell())

    assert (run.state, run.recipe, run.progress) == ("finished", "notebook", "1 of 1")
    assert Path(run.artifacts["corpus"], "manifest.json").is_file()
    assert any("clean: running" in line for line in told)
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["nonsense=1"], RecipeError, "unknown key"),
        slow(["clean.inputs=[/none.jsonl]"], DataError, "no file matches '/none.jsonl'"),
    ],
)
def test_a_run_that_fails_raises_what_its_exit_code_stands_for(
    settings: list[str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    told: list[str] = []

    with pytest.raises(error) as raised:
        anadil.run(work=tmp_path / "w", overrides=settings, until="clean", say=told.append)

    assert words in "\n".join([str(raised.value), *told])


def test_an_interrupt_reaches_a_run_once_and_waits_until_it_has_saved() -> None:
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
    told: list[str] = []

    def hear(line: str) -> None:
        told.append(line)
        if line == "ready":
            raise KeyboardInterrupt

    ended = child_process.follow([sys.executable, "-c", code], hear, {})

    assert (told, ended.exit_code) == (["ready", "saved 1"], 130)


def test_tables_align_numbers_and_escape_markup() -> None:
    assert text_table(("a", "n"), [("x", "1"), ("long", "22")], (1,)) == ["a      n", "x      1", "long  22"]
    assert "<b>" not in html_table("<b>", ("<b>",), [("<b>",)], note="<b>")
