"""The texts that `examples/` makes, and that its recipes load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.recipe.load import load_recipe

ROOT = Path(__file__).parents[1]
PREPARE = ROOT / "examples/basque/prepare.py"
PAGES = 60


def write_page(file: Path, heading: str, paragraphs: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(f'<p id="par_{i}" class="paragraph">{text}</p>' for i, text in enumerate(paragraphs))
    file.write_text(
        f'<p id="par_0">menu</p><div id="DisplayArea"><h1 id="hd">{heading}</h1>{body}</div>'
        '<div id="SearchFrame"></div><p id="par_1">a footer that is no text.</p>'
    )


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    """Two languages with the same pages. Every page repeats one paragraph, and one page is in Basque alone."""
    for i in range(PAGES):
        name = Path("scalc", f"{i}.html")
        write_page(
            tmp_path / "text/eu" / name,
            f"{i}. orria",
            [
                f"{i}. gelaxkaren <b>edukia</b> &amp; formatua aldatzen ditu.",
                "Leihoa ixten du eta gordetzen du.",
            ],
        )
        write_page(
            tmp_path / "text/en" / name,
            f"Page {i}",
            [f"Changes content &amp; format of cell {i}.", "Closes and saves the window."],
        )
    write_page(tmp_path / "text/eu/only.html", "Bakarrik", ["Orri hau ez dago beste hizkuntzan inon."])
    subprocess.run([sys.executable, PREPARE], cwd=tmp_path, check=True)
    return tmp_path


def rows(file: Path) -> list[tuple[str, str]]:
    turns = [json.loads(line)["messages"] for line in file.read_text().splitlines()]
    return [(question["content"], answer["content"]) for question, answer in turns]


def test_paragraphs_of_one_name_are_translations_and_headings_are_explained(handbook: Path) -> None:
    chats = rows(handbook / "chats.jsonl")
    pages = [page.stem for page in (handbook / "text/eu/scalc").iterdir()]

    for page in pages:
        answer = f"{page}. gelaxkaren edukia & formatua aldatzen ditu."
        questions = {question for question, other in chats if other == answer}
        translation = f"Translate into Basque: Changes content & format of cell {page}."
        assert questions <= {translation, f"Zertarako da hau: {page}. orria?"}
        assert len(questions) == 1
    assert (
        "Translate into Basque: Closes and saves the window.",
        "Leihoa ixten du eta gordetzen du.",
    ) in chats
    assert len({answer for _, answer in chats}) == len(chats)
    assert not any("menu" in text or "footer" in text for chat in chats for text in chat)


def test_questions_come_from_pages_that_training_never_reads(handbook: Path) -> None:
    training = "".join(file.read_text() for file in (handbook / "text").rglob("*.html"))
    questions = rows(handbook / "questions.jsonl")

    assert questions
    assert not any(
        ">" + answer.replace("edukia &", "<b>edukia</b> &amp;") in training for _, answer in questions
    )
    assert not any("Leihoa" in answer for _, answer in questions)  # every page repeats it
    assert {file.name for file in (handbook / "heldout/eu").rglob("*.html")} == {
        file.name for file in (handbook / "heldout/en").rglob("*.html")
    }


def test_it_may_be_given_again_where_it_was_stopped(handbook: Path) -> None:
    before = (handbook / "chats.jsonl").read_bytes(), (handbook / "questions.jsonl").read_bytes()

    subprocess.run([sys.executable, PREPARE], cwd=handbook, check=True)

    assert before == ((handbook / "chats.jsonl").read_bytes(), (handbook / "questions.jsonl").read_bytes())


@pytest.mark.parametrize(
    "file", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda file: file.parent.name
)
def test_a_recipe_of_an_example_loads(file: Path) -> None:
    assert load_recipe(str(file), []).base.model == "smollm2"
