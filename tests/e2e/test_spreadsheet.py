"""The guide from a spreadsheet to a chat: its commands and its recipe, with 300 questions."""

import json
import re
import shlex
from pathlib import Path

import pytest

from anadil.artifacts import storage
from anadil.cli.main import main
from anadil.recipe.load import load_recipe
from tests.kit.flow import made_folders
from tests.kit.page_commands import BLOCK, lines
from tests.kit.workbooks import write_workbook

GUIDE = Path(__file__).parents[2] / "docs/guides/from-a-spreadsheet.md"
COMMANDS = [shlex.split(line) for line in lines(GUIDE)]
INSTALL, COPY, COPY_REAL, DOCTOR, RUN, CHAT = COMMANDS
SHORT = (
    "pretrain.phases=[{trains: embeddings, steps: 2, lr: 0.003}, {trains: all, steps: 4, lr: 0.002}]",
    "finetune.epochs=0.2", "evaluate.max_new_tokens=8", "evaluate.max_questions=4", "tracking.uri=off",
)  # fmt: skip
"""Settings that take minutes, and that this test is not about."""


def questions() -> list[tuple[str, str]]:
    with storage.built_in("builtin:az/questions.jsonl").open(encoding="utf-8") as file:
        rows = [[turn["content"] for turn in json.loads(line)["messages"]] for line in file]
    made = [(asked, answer) for asked, answer in rows]
    numbers = range(300 - len(made))
    return [
        *made,
        *((f"{number} nömrəli tarif neçəyədir?", f"Ayda {number + 3} manat.") for number in numbers),
    ]


def put_recipe(copy: list[str], block: int) -> None:
    """Copy a recipe, and put the guide's lines for it in place of two sections."""
    assert main(copy[1:]) == 0
    blocks = [text for kind, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) if kind == "yaml"]
    recipe = Path("faq.yaml").read_text(encoding="utf-8")
    Path("faq.yaml").write_text(recipe[: recipe.index("\nfinetune:") + 1] + blocks[block], encoding="utf-8")


@pytest.fixture(autouse=True)
def spreadsheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anadil.model.tiny.TINY_STEPS", 4)
    write_workbook(
        tmp_path / "suallar.xlsx", {"Suallar": [("Sual", "Cavab"), *questions()], "Qeyd": [("a",)]}
    )


def test_a_chat_is_at_most_six_commands_away() -> None:
    assert [words[:2] for words in COMMANDS] == [
        ["pip", "install"], ["anadil", "recipe"], ["anadil", "recipe"], ["anadil", "doctor"], ["anadil", "run"],
        ["anadil", "chat"],
    ]  # fmt: skip


def test_the_real_model_takes_the_same_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    put_recipe(COPY_REAL, 1)
    assert load_recipe("faq.yaml").base.model == "smollm2"

    assert main([*DOCTOR[1:], "--set", "base.model=tiny"]) == 0  # the real one is 93 MB of downloads

    assert "2 files, 378 chats" in capsys.readouterr().out


@pytest.mark.matrix
@pytest.mark.usefixtures("clean_in_this_process")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_guide_leads_to_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_recipe(COPY, 0)
    assert main(DOCTOR[1:]) == 0
    assert "1 file, 300 chats" in capsys.readouterr().out

    made = made_folders(
        load_recipe("faq.yaml", [f"storage.root={tmp_path}/{RUN[-1]}", *SHORT]), until="finetune"
    )

    audit = json.loads((made["adapter"] / "mask_audit.json").read_text(encoding="utf-8"))
    heldout = (made["adapter"] / "heldout_chats.jsonl").read_text(encoding="utf-8").splitlines()
    assert audit["rows"] + len(heldout) == 300
    assert not audit["dropped"]
    assert re.sub(r"/[0-9a-f]{16}$", "", CHAT[-1]) == str(made["adapter"].parent.relative_to(tmp_path))
    from anadil.release.chat.conversation import ChatSettings, open_chat

    assert (
        len(open_chat(str(made["adapter"]), ChatSettings(max_tokens=8)).answers(["Balansımı necə yoxlayım?"]))
        == 1
    )
