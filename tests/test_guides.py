"""Every command of README and the guides: known to the program that takes it, and run where that takes no cluster."""

import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from anadil.artifacts.chat_files import read_chats
from anadil.cli.main import STAGE_VERBS, command_parser, main, verb_parser
from anadil.core.stages import IMAGES, STAGES
from anadil.estimate.text_use import TextSize, plan_text
from anadil.preflight.inputs import inspect_files
from anadil.recipe.load import load_recipe
from anadil.runtime.entry_point import stage_parser
from anadil.text.chats import DroppedChats
from tests.kit.page_commands import BLOCK, commands, lines

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
GUIDE = ROOT / "docs/guides/your-own-data.md"
OTHERS = {"alias",
    "aws", "curl", "find", "grype", "hf", "hyp", "less", "llama-server", "mlflow", "ollama", "openssl", "podman",
    "source", "vllm", "wget", "xargs", "yoxla",
}  # fmt: skip
"""Programs of others that guides name, and that no test starts."""
OFFLINE = (
    ["recipe"],
    ["plan"],
    ["compile"],
    ["language", "list"],
    ["submit", "--dry-run"],
    ["schedule", "--dry-run"],
    ["cluster", "--dry-run"],
    ["launch", "--dry-run"],
)
"""Words of commands that run here: with neither cluster, network, nor hours of time."""
NOT_HERE = (
    "--measured",
    "--prices",
    "delete",
    "my-cluster.yaml",
    "crh.yaml",
    "import",
)
"""Words of those that have tests of their own, or need files that the page says to write."""
REFUSED = {"plan my.yaml --instance g5.xlarge --nodes 1": 4}
"""Exit code of those that a page shows because they are refused."""


ALL = [(page, words) for page in PAGES for line in lines(page) for words in commands(line)]


def named(page: Path, words: Sequence[str]) -> str:
    return f"{page.name}: {shlex.join(words)}"


def check_anadil(words: list[str]) -> None:
    """Have the real command line parse it; argparse ends the test where it does not know a word."""
    if words[0] in STAGES and words[1] in STAGE_VERBS.get(words[0], {}):
        verb_parser(words[0], words[1]).parse_args(words[1:])
    elif words[0] in STAGES:
        stage_parser(STAGES[words[0]]).parse_args(words[1:])
    else:
        command_parser(words[0]).parse_args(words)


def check_pip(words: list[str]) -> None:
    ours = re.fullmatch(r"anadil\[(.*)\]", words[-1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert words[0] == "install"
    assert not ours or set(ours[1].split(",")) <= set(project["optional-dependencies"])


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
    else:
        assert (ROOT / words[0]).is_file()


def check_kubectl(words: list[str]) -> None:
    places = [word for word in words if word.startswith("manifests/")]
    assert all((ROOT / place / "kustomization.yaml").is_file() for place in places)


def check_helm(words: list[str]) -> None:
    places = [word for word in words if word.startswith("charts/")]
    assert all((ROOT / place / "Chart.yaml").is_file() for place in places)
    assert words[0] in ("install", "upgrade", "uninstall", "test", "template")


def check_make(words: list[str]) -> None:
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def check_docker(words: list[str]) -> None:
    place = next(place for place, word in enumerate(words) if word.startswith("anadil/laptop:"))
    check_anadil(words[place + 1 :])


CHECKS = {
    "anadil": check_anadil,
    "docker": check_docker,
    "helm": check_helm,
    "kubectl": check_kubectl,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_known_to_the_program_that_takes_it(page: Path) -> None:
    for own, (program, *words) in ALL:
        if own != page or program in OTHERS:
            continue
        if program.startswith("images/"):
            assert (ROOT / program).is_file(), named(page, [program, *words])
            assert not words or words[0] in ("all", "laptop", *IMAGES.values()) or "/" in words[0]
            continue
        assert program in CHECKS, f"{named(page, [program, *words])}: no program that is known"
        try:
            CHECKS[program](words)
        except (SystemExit, AssertionError) as error:
            raise AssertionError(f"{named(page, [program, *words])}: {error}") from None


@pytest.mark.parametrize(
    "line", ["anadil run --no-such-option", "anadil chta URI", "anadil clean --corpus x", "unheard-of --help"]
)
def test_a_command_that_is_not_known_is_found(line: str) -> None:
    ((program, *words),) = commands(line)

    if program in CHECKS:
        with pytest.raises(SystemExit):
            CHECKS[program](words)
    else:
        assert program not in OTHERS


def test_a_line_is_cut_into_its_commands() -> None:
    line = "HF_HOME=/x anadil chat 'a # b' --seed 1 < in.txt > out.txt | less && make test  # then"

    assert list(commands(line)) == [["anadil", "chat", "a # b", "--seed", "1"], ["less"], ["make", "test"]]


def offline() -> list[list[str]]:
    """The commands that run here, each once."""
    found = {
        tuple(words[1:])
        for _, words in ALL
        if words[0] == "anadil"
        and any(words[1] == kind[0] and set(kind) <= set(words) for kind in OFFLINE)
        and not set(NOT_HERE) & set(words)
        and words[1:3] != ["recipe", "copy"]
    }
    return [list(words) for words in sorted(found)]


def test_commands_that_need_no_cluster_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    copies = {tuple(words[1:]) for _, words in ALL if words[1:3] == ["recipe", "copy"]}
    for copy in sorted(copies):
        (tmp_path / copy[-1]).unlink(missing_ok=True)
        assert main(copy) == 0
    assert "own" in {name for _, _, name, *_ in copies}
    for words in offline():
        given = [word.replace("my.yaml", "cluster.yaml") for word in words]
        code = REFUSED.get(" ".join(words), 0)
        assert main(given) == code, f"{shlex.join(words)}\n{capsys.readouterr().err}"
        capsys.readouterr()


def blocks(kind: str) -> list[str]:
    """The blocks of one kind in the guide on one's own data."""
    return [block for name, block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) if name == kind]


def examples(folder: Path) -> dict[str, Path]:
    """The example of each input format, as a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first, chats = blocks("json")
    text, warc, table, _plan = blocks("text")
    rows = [re.split(r"\s{2,}|(?<=\.\.\.) ", line.strip()) for line in table.splitlines()]
    pq.write_table(
        pa.table({name: [value] for name, value in zip(*rows, strict=True)}), folder / "rows.parquet"
    )
    contents = {
        "news.jsonl": first, "story.txt": text, "page.html": blocks("html")[0], "chats.jsonl": chats,
        "crawl.warc": warc.rstrip("\n").replace("\n", "\r\n") + "\r\n\r\n",
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode())
    return {path.name: path for path in folder.iterdir()}


def test_the_example_of_each_format_is_read(tmp_path: Path) -> None:
    files = examples(tmp_path)
    chats = files.pop("chats.jsonl")
    recipe = load_recipe("own", ["clean.max_bad_records=0"])

    assert set(files) == {"news.jsonl", "story.txt", "page.html", "crawl.warc", "rows.parquet"}
    for path in files.values():
        assert inspect_files(STAGES["clean"], recipe, [str(path)]).detail.startswith("1 file, 1 document"), (
            path.name
        )
    dropped = DroppedChats()
    assert sum(1 for _ in read_chats([str(chats)], dropped)) == 9
    assert not dropped.total


def test_the_recipe_for_ones_own_text_asks_for_three_keys() -> None:
    recipe = load_recipe("own")
    page = GUIDE.read_text(encoding="utf-8")

    assert recipe.storage.root is None
    assert recipe.tokenizer.vocab_sizes == "auto"
    assert recipe.cluster.instance is None
    for line in re.findall(r"^\| [\d.]+ MB \| .*", page, re.MULTILINE):
        size, tokens, steps = (
            float(each.replace(",", "")) for each in re.findall(r"([\d.,]+)(?: MB| million)? \|", line)[:3]
        )
        # Passes are those over one's own text, and replay is read beside it until it runs out.
        text = {"text": round(tokens * 1e6), "en": 13_000}
        sized = {name: TextSize(basis="given", tokens=each) for name, each in text.items()}
        assert plan_text(recipe, sized)[0].pretrain.steps == pytest.approx(steps, rel=0.02)
        assert size / tokens == pytest.approx(2.6, rel=0.02)
    assert json.loads(blocks("json")[0])["text"]
