import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from anadil import __version__
from anadil.cli import main
from anadil.core.stages import FLOW
from anadil.recipe.load import load_recipe
from tests.golden.render import SCHEMA

HEAVY = ("pydantic", "yaml", "torch", "kfp", "mlflow", "boto3", "numpy", "transformers", "zstandard")
MAX_HELP_CPU_S = 0.5


def anadil(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "anadil", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | (env or {})
    )


def test_help_is_immediate_and_names_every_stage_in_order_and_every_exit_code() -> None:
    told = anadil("--help").stdout
    places = [told.index(f"\n    {stage.name} ") for stage in FLOW]
    assert places == sorted(places)
    for code in (0, 2, 3, 4, 5, 6, 7, 70, 130, 138, 143):
        assert re.search(rf"\s{code} \w", told), code
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert anadil("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(times) < MAX_HELP_CPU_S


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom anadil.cli import main as cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('loaded', sorted(set(sys.modules) & set({HEAVY!r})))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("command", [name for name, row in main.COMMANDS.items() if row.module])
def test_a_command_explains_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--help"])

    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert told.startswith(f"usage: anadil {command} ")
    assert command in ("bases", "chat") or main.COMMANDS[command].help in " ".join(told.split())


@pytest.mark.parametrize("stage", [stage.name for stage in FLOW])
def test_a_stage_explains_its_inputs(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([stage, "--help"])

    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert told.startswith(f"usage: anadil {stage} ")
    for word in next(item for item in FLOW if item.name == stage).words:
        assert f"--{word} URI" in told or f"--{word} [SOURCE=]URI" in told


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["help"], "usage: anadil [-h]"),
        (["version"], f"anadil {__version__} (commit "),
        (["--version"], f"anadil {__version__} (commit "),
        (["help", "run"], "usage: anadil run "),
        (["-v", "help", "clean"], "usage: anadil clean "),
        (["help", "recipe", "copy"], "usage: anadil recipe copy "),
    ],
)
def test_help_and_version_are_words_too(
    words: list[str], begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(begins)


@pytest.mark.parametrize(
    "words",
    [
        *([], ["nonsense"], ["recipe", "nonsense"], ["clean", "--nonsense"], ["compile", "smoke"]),
        *(["run", "--until", "x"], ["run", "--work", ""]),
    ],
)
def test_a_wrong_command_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)

    assert ended.value.code == 2
    assert "usage: anadil" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["rn"], "run"),
        (["run", "--wrk", "x"], "--work"),
        (["run", "--until", "cleen"], "clean"),
        (["clean", "--ot=x"], "--out"),
        (["clean", "explain", "a.jsonl:1", "--recpe", "smoke"], "--recipe"),
        (["recipe", "chek", "smoke"], "check"),
        (["-v", "doctr"], "doctor"),
        (["clean", "explan", "x"], "explain"),
    ],
)
def test_the_nearest_word_is_named_where_one_is_unknown(
    words: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)

    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean '{nearest}'?\n")


def test_verbose_may_stand_before_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["-v", "tokenizer", "--recipe", "smoke"]) == 2
    assert "tokenizer: --corpus az=URI missing" in capsys.readouterr().err


def test_recipes_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["recipe", "list"]) == 0
    table = capsys.readouterr().out
    assert main.main(["recipe", "list", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    names = "azerbaijani-1b azerbaijani-8b japanese-1b japanese-70b own real smoke"
    assert " ".join(listed) == names
    assert table.splitlines()[0].startswith("azerbaijani-1b  Llama 3.2 1B")
    assert all(listed.values())


def test_a_recipe_is_copied_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "my.yaml"

    first = main.main(["recipe", "copy", "smoke", str(path)])
    printed = capsys.readouterr()
    path.write_text("mine", encoding="utf-8")
    second = main.main(["recipe", "copy", "smoke", str(path)])

    assert (first, second) == (0, 2)
    assert printed.out == f"{path}\n"
    assert f"{path}: exists already; choose another name" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_shown_recipe_is_complete_and_can_be_used(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["recipe", "show", "smoke", "--set", "seed=5", "-o", form]) == 0
    path = tmp_path / f"shown.{form}"
    path.write_text(capsys.readouterr().out, encoding="utf-8")

    assert load_recipe(str(path)) == load_recipe("smoke", ["seed=5"])


def test_a_recipe_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("seed: x\nlanguage: xx\n", encoding="utf-8")

    good, bad = main.main(["recipe", "check", "smoke"]), main.main(["recipe", "check", str(path)])

    printed = capsys.readouterr()
    assert (good, bad) == (0, 2)
    assert printed.out == "smoke: no mistakes\n"
    assert f"{path}: 2 mistakes" in printed.err


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("hf://datasets/a/b@main/x.parquet", "'main' is not a commit and can change; write @ and its 40"),
        ("hf://datasets/a/b/x.parquet", "names no commit"),
        ("s3:/b/x.parquet", "is no address, write s3://b/x.parquet"),
        ("https:/x.org/a.jsonl", "storage https:// is not supported; use a local path or s3:// or hf://"),
    ],
)
def test_an_address_that_no_run_takes_is_a_mistake_of_the_recipe(
    uri: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("base: {model: tiny}\n", encoding="utf-8")

    for command in (["recipe", "check"], ["compile", "-f", str(tmp_path / "p.yaml")]):
        assert main.main([*command, str(path), "--set", f"clean.inputs=['{uri}']"]) == 2
        assert f"clean.inputs: {uri}: {fault}" in capsys.readouterr().err


def test_the_schema_command_prints_the_shipped_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["recipe", "schema"]) == 0

    assert capsys.readouterr().out == SCHEMA.read_text(encoding="utf-8")


def test_output_in_a_pipe_has_no_colour() -> None:
    done = anadil("recipe", "list", env={"FORCE_COLOR": "1", "NO_COLOR": ""})

    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_a_place_that_may_not_be_looked_at_is_one_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir = Path.is_dir

    def refuse(path: Path) -> bool:
        if path.name == "work":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refuse)  # root, who tests, may look everywhere

    assert main.main(["run", "--work", str(tmp_path / "work")]) == 4
    assert f"--work: {tmp_path}/work: Permission denied; give another place" in capsys.readouterr().err


def test_a_removed_directory_is_no_bug(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()

    assert [main.main([command]) for command in ("doctor", "list", "run")] == [4, 4, 4]
    assert capsys.readouterr().err.count("is removed; go into another, and run it again\n") == 3


def test_a_pipeline_is_compiled_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "pipeline.yaml"

    codes = [main.main(["compile", "smoke", "-f", f"{path.with_suffix(end)}"]) for end in (".yaml", ".zip")]

    assert codes == [0, 2]
    said = capsys.readouterr()
    assert said.out == f"{path}\n"
    assert "a pipeline is YAML; give a name that ends in .yaml" in said.err
    made = next(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert made["pipelineInfo"]["name"] == "anadil-adapt"


NO_DIRECTORY = "is a file, not a directory; give another place or remove it"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "--work", "{folder}/file"], 2, NO_DIRECTORY),
        (["run", "--work", "{folder}/work", "--set", "storage.root={folder}/file"], 2, NO_DIRECTORY),
        (["clean", "--source", "az", "--out", "{folder}/file/below"], 2, NO_DIRECTORY),
        (["clean", "--source", "az", "--set", "storage.root={folder}/file"], 2, NO_DIRECTORY),
        (["run", "--work", "{folder}/loop"], 2, NO_DIRECTORY),
        # Where root cannot write either.
        (["run", "--work", "/proc/anadil/work"], 4, "--work: /proc cannot be written; give another place"),
        (["doctor", "--work", "/proc/anadil/work"], 4, "--work: /proc cannot be written; give another place"),
        (["run", "--work", f"{{folder}}/{'long' * 100}"], 2, "longlong: File name too long"),
    ],
)
def test_a_place_that_holds_no_directory_is_told(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    ended = main.main([word.format(folder=tmp_path) for word in words])

    said = capsys.readouterr()
    assert ended == code
    assert message in said.out + said.err
    assert "Traceback" not in said.err
