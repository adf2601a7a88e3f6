"""The first guide's way: real text in a directory, the recipe as it is copied, to the end and to an answer."""

import itertools
import json
from pathlib import Path

import pytest

from anadil.artifacts import storage
from anadil.cli.main import main
from anadil.recipe.load import load_recipe
from tests.kit.flow import made_folders

pytestmark = [
    pytest.mark.slow,
    # peft's warnings about transformers.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
SHORT = ("evaluate.max_new_tokens=8", "evaluate.max_questions=4", "finetune.epochs=1")
"""What a laptop takes minutes for, and this test is not about."""
DOCUMENTS, CHATS = 16, 8


def beginning(uri: str, count: int) -> str:
    with storage.built_in(uri).open(encoding="utf-8") as lines:
        return "".join(itertools.islice(lines, count))


@pytest.mark.usefixtures("clean_in_this_process")
def test_a_copied_recipe_runs_to_its_end_on_a_small_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anadil.model.tiny.TINY_STEPS", 4)
    for folder, uri, count in (
        ("text", "builtin:az/prose.jsonl", DOCUMENTS),
        ("chats", "builtin:az/questions.jsonl", CHATS),
    ):
        Path(folder).mkdir()
        Path(folder, "all.jsonl").write_text(beginning(uri, count), encoding="utf-8")
    assert main(["recipe", "copy", "own", "my.yaml"]) == 0
    written = Path("my.yaml").read_text(encoding="utf-8")
    Path("my.yaml").write_text(
        written.replace("# finetune:\n#   inputs", "finetune:\n  inputs"), encoding="utf-8"
    )
    assert main(["doctor", "my.yaml"]) == 0
    looked = capsys.readouterr().out
    assert "FAILED" not in looked
    assert f"1 file, {DOCUMENTS} documents" in looked
    assert f"1 file, {CHATS} chats" in looked

    made = made_folders(load_recipe("my.yaml", [f"storage.root={tmp_path}", "tracking.uri=off", *SHORT]))

    training = json.loads((made["model"] / "training.json").read_text(encoding="utf-8"))
    scores = json.loads((made["scores"] / "scores.json").read_text(encoding="utf-8"))["candidates"]
    assert training["sources"]["text"]["epochs"] == pytest.approx(4, abs=0.5)
    assert scores["adapted"]["bits_per_byte"] < scores["base"]["bits_per_byte"]
    assert (made["report"] / "report.html").is_file()
    from anadil.release.chat.conversation import ChatSettings, open_chat

    assert open_chat(str(made["adapter"]), ChatSettings(max_tokens=8)).answers(["Salam!", ""])[1] == ""
