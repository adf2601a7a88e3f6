import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.evaluate.preference.pairs import read_pairs
from anadil.evaluate.preference.votes import read_key
from anadil.text.corpus import beginning_of
from tests.kit.browser import browser

OPENINGS = [f"Bakı şəhəri {number}-ci ildə" for number in range(50)]
GOOD, BAD = "böyük bir limandır və Xəzərin sahilində yerləşir.", "the and the and </script><b>the</b>"
Vote = Callable[[int, str, str], str]
"""Place, left and right text -> vote; empty: none."""


def text(prompt: str, words: str, kind: str = "continuation", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "kind": kind, "mode": "greedy", "text": f" {words}", **more}


@pytest.fixture
def scores(tmp_path: Path) -> str:
    """Fifty beginnings, one of them continued alike, and a question that training has seen."""
    folder = tmp_path / "scores"
    folder.mkdir()
    seen = text("Seen?", "x", "answer", seen=True)
    made = {
        "adapted": [*(text(each, GOOD) for each in OPENINGS), seen],
        "base": [text(OPENINGS[0], GOOD), *(text(each, BAD) for each in OPENINGS[1:]), seen],
    }
    candidates = {name: {"generations": texts} for name, texts in made.items()}
    (folder / "scores.json").write_text(json.dumps({"candidates": candidates}), encoding="utf-8")
    artifact.seal(folder, kind="scores", origin={}, recipe={"language": "az"})
    return str(folder)


@pytest.fixture
def out(scores: str, tmp_path: Path) -> Path:
    folder = tmp_path / "judge"
    assert main.main(["judge", "page", scores, "--between", "adapted", "base", "--out", str(folder)]) == 0
    return folder


def data_of(out: Path) -> dict[str, Any]:
    page = (out / "judge.html").read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    return dict(json.loads(found[1]))


def votes_of(out: Path, vote: Vote, judge: str = "Aynur", name: str = "votes.json") -> Path:
    data = data_of(out)
    votes = [
        {"id": pair["id"], "vote": said}
        for place, pair in enumerate(data["pairs"])
        if (said := vote(place, pair["left"], pair["right"]))
    ]
    path = out / name
    path.write_text(json.dumps({"list": data["list"], "judge": judge, "votes": votes}), encoding="utf-8")
    return path


def better(_: int, left: str, right: str) -> str:
    return "left" if left == GOOD else "right"


def opened(capsys: pytest.CaptureFixture[str], out: Path, *paths: Path, says: str = "") -> dict[str, Any]:
    capsys.readouterr()
    assert main.main(["judge", "votes", *map(str, paths), "--key", str(out / "key.json"), "-o", "json"]) == 0
    printed = capsys.readouterr()
    assert says in printed.err
    return dict(json.loads(printed.out))


def test_the_page_says_not_who_wrote_what_and_needs_no_network(out: Path, scores: str) -> None:
    page = (out / "judge.html").read_text(encoding="utf-8")
    pairs = data_of(out)["pairs"]

    assert len(pairs) == 40
    assert not re.search("adapted|base|greedy|salt|seed", page.partition("</style>")[2])
    assert not re.search(r"https?:|src=|url\(|@import", page)
    assert [each["id"] for each in pairs] == [f"{place + 1:03d}" for place in range(40)]
    # Judges prefer a place, so each candidate has each place equally often.
    assert sum(each["left"] == GOOD for each in pairs) == 20
    assert all(
        beginning_of(each["prompt"]) and {each["left"], each["right"]} == {GOOD, BAD} for each in pairs
    )
    places = [each["left"] == GOOD for each in pairs]
    assert places not in ([True, False] * 20, [False, True] * 20)


def test_the_same_seed_gives_the_same_page_and_another_key_is_not_overwritten(
    out: Path, scores: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    command = ["judge", "page", scores, "--between", "adapted", "base", "--out", str(out)]

    assert main.main(command) == 0
    assert {each.name: each.read_bytes() for each in out.iterdir()} == before
    assert main.main([*command, "--seed", "1"]) == 2
    assert "is the key of another page" in capsys.readouterr().err
    assert main.main([*command[:-1], f"{out}1", "--seed", "1"]) == 0
    assert [each["left"] for each in data_of(Path(f"{out}1"))["pairs"]] != [
        each["left"] for each in data_of(out)["pairs"]
    ]


def test_a_judge_who_sees_the_better_text_prefers_its_candidate(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = opened(
        capsys, out, votes_of(out, lambda place, *texts: "same" if place < 4 else better(place, *texts))
    )

    assert (figures["wins"], figures["losses"], figures["same"], figures["share"]) == (36, 0, 4, 1)
    low, high = figures["interval"]
    assert 0.85 < low < high == 1
    assert 0.3 < figures["left_share"] < 0.7


def test_a_judge_who_always_takes_the_first_prefers_nobody(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = opened(capsys, out, votes_of(out, lambda *_: "left"))

    assert (figures["share"], figures["left_share"]) == (0.5, 1)
    assert figures["left_interval"][0] > 0.8


def test_two_judges_of_the_same_pairs_are_no_surer_than_one_if_they_agree(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rule(place: int, left: str, right: str) -> str:
        other = {"left": "right", "right": "left"}
        return better(place, left, right) if place % 3 else other[better(place, left, right)]

    first, second = votes_of(out, rule), votes_of(out, rule, "Rauf", "votes-2.json")
    figures = opened(capsys, out, first, second)

    assert figures["agreement"] == 1
    assert figures["interval"] == pytest.approx(figures["judges"]["Aynur"]["interval"])
    assert figures["votes"] == 80


def test_half_of_the_votes_count_and_the_log_says_so(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = votes_of(out, lambda place, *texts: better(place, *texts) if place < 12 else "")
    figures = opened(capsys, out, path, says="Aynur: judged 12 of 40 pairs. The others do not count")

    assert (figures["pairs"], figures["votes"]) == (12, 12)


def test_the_same_votes_twice_count_once(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = votes_of(out, better)

    assert opened(capsys, out, path, path, says="40 votes were given twice and count once")["votes"] == 40


def test_a_text_that_repeats_its_prompt_is_shown_so(scores: str, out: Path) -> None:
    path = Path(scores) / "scores.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    for each in table["candidates"]["base"]["generations"]:
        each["text"] = each["prompt"] + each["text"]

    pairs = read_pairs(scores, table, ("adapted", "base"), kind="continuation", mode="greedy", seen=False)

    assert all(other == f"{prompt} {BAD}" for prompt, _, other in pairs[1:])


def test_votes_join_those_that_were_opened_before(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, both = str(out / "key.json"), str(out / "opened.json")
    first, second = votes_of(out, better), votes_of(out, better, "Rauf", "votes-2.json")

    assert main.main(["judge", "votes", str(first), "--key", key, "--out", both]) == 0
    assert main.main(["judge", "votes", str(second), "--key", both, "--out", both]) == 0

    assert {judge for each in read_key(Path(both), both).pairs for judge in each.votes} == {"Aynur", "Rauf"}
    edit(first, lambda table: table["votes"][0].update(vote="same"))
    assert main.main(["judge", "votes", str(first), "--key", both]) == 3
    assert "'Aynur' judged pair 001 otherwise before" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--key"])
def test_only_files_of_this_machine_are_written_and_read(
    option: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command = ["judge", "votes", str(votes_of(out, better)), "--key", str(out / "key.json")]

    with pytest.raises(SystemExit, match="2"):
        main.main([*command, option, "s3://bucket/x.json"])

    assert f"{option}: s3://bucket/x.json is no local path" in capsys.readouterr().err
    assert not (tmp_path / "s3:").exists()


def test_a_damaged_key_is_not_overwritten(out: Path, scores: str, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "key.json").write_bytes(b"\xff")

    assert main.main(["judge", "page", scores, "--between", "adapted", "base", "--out", str(out)]) == 2
    assert "is the key of another page" in capsys.readouterr().err


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    change(table)
    path.write_text(json.dumps(table), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(list="0" * 64), r"votes\.json: judges other pairs \(00000000\) than the key"),
        (lambda table: table["votes"][0].update(id="041"), r"vote 1: id '041' is not a pair of the key \(40 pairs\)"),
        (lambda table: table["votes"][0].update(vote="both"), r"votes\.0\.vote: must be 'left', 'right' or 'same' \(got 'both'\)"),
        (lambda table: table["votes"].append({"id": "001", "vote": "same"}), r"vote 41: 'Aynur' judged pair 001 otherwise before, and now 'same'"),
        (lambda table: table.update(judge=" "), r'judge: must have at least 1 .*with a name at "judge"'),
        (lambda table: table.update(judge="Ay\ud800"), r"judge: Input should be a valid string"),
        (lambda table: table.update(judge="x" * 61), r"judge: must have at most 60"),
        (lambda table: table.update(votes=[]), r"hold no vote"),
        (lambda table: table.pop("votes"), r"votes: is missing.*Give the file that the page saved"),
    ],
)  # fmt: skip
def test_votes_that_do_not_fit_are_refused(
    out: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = votes_of(out, better)
    edit(path, change)

    assert main.main(["judge", "votes", str(path), "--key", str(out / "key.json")]) == 3
    assert re.search(message, capsys.readouterr().err)


def test_a_key_that_was_edited_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, key = votes_of(out, better), out / "key.json"
    edit(key, lambda table: table["pairs"][3].update(left=1 - table["pairs"][3]["left"]))

    assert main.main(["judge", "votes", str(path), "--key", str(key)]) == 5
    assert "was edited" in capsys.readouterr().err


def test_scores_without_such_texts_say_what_they_hold(
    scores: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*between: str) -> list[str]:
        return ["judge", "page", scores, "--out", str(tmp_path / "out"), "--between", *between]

    assert main.main(command("adapted", "champion")) == 3
    assert "holds no candidate 'champion'. Name two of adapted, base" in capsys.readouterr().err
    assert main.main(command("adapted", "adapted")) == 2
    assert main.main([*command("adapted", "base"), "--kind", "answer"]) == 3
    assert "Training has seen all: add --seen" in capsys.readouterr().err
    assert main.main([*command("adapted", "base"), "--mode", "sampled"]) == 3


@pytest.mark.slow
def test_a_person_votes_by_keys_and_buttons_goes_on_later_and_saves_the_votes(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = (out / "judge.html").as_uri()
    shown = "document.getElementById('{}').textContent"
    with browser() as page:
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved"))
        page.open(address)
        page.show(390, dark=True)
        page.value(
            "document.getElementById('judge').value = 'Aynur'; document.querySelector('#intro button').click()"
        )
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        for place in range(40):
            if place == 20:
                page.open(address)
                assert page.value("document.getElementById('judge').value") == "Aynur"
                page.value("document.querySelector('#intro button').click()")
            assert page.value(shown.format("count")) == f"{place + 1} of 40"
            is_left = page.value(shown.format("left")) == GOOD
            keys = ("1", "ArrowLeft") if is_left else ("2", "ArrowRight")
            if place % 3 == 2:
                page.value(f"document.querySelector('[data-vote={'left' if is_left else 'right'}]').click()")
            else:
                page.value(f"dispatchEvent(new KeyboardEvent('keydown', {{ key: '{keys[place % 3]}' }}))")
        page.value("document.getElementById('save').click()")
        saved = tmp_path / "saved"
        page.wait("true")
        for _ in range(100):
            if files := [*saved.glob("votes-Aynur-*.json")]:
                break
            page.value("new Promise((done) => setTimeout(done, 50))")
        assert page.errors == []
        # Where no file can be saved, the page shows the votes and says so.
        page.value(
            "URL.createObjectURL = () => { throw new Error(); }; document.getElementById('save').click()"
        )
        assert page.value(
            "!document.getElementById('no-file').hidden && document.getElementById('copy').open"
        )
        assert json.loads(page.value("document.getElementById('text').value")) == json.loads(
            files[0].read_text()
        )

    assert opened(capsys, out, files[0])["wins"] == 40
