"""New text is compared with the earlier weeks of its source."""

import json
import shutil
from pathlib import Path

import pytest

from anadil.core.errors import DataError
from tests.kit.admissions import add_files, add_week, admission, corpus_of_weeks, rows_of
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess
from tests.kit.texts import TURKISH

ROWS = rows_of(texts(150))


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())


def test_a_clean_week_is_admitted_with_each_figure_beside_the_usual_one(tmp_path: Path) -> None:
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], ROWS[60:120]])

    admitted = admission(tmp_path, {"corpus": corpus})

    assert (admitted["admitted"], admitted["documents"], admitted["earlier_weeks"]) == (True, 60, 1)
    assert [check["name"] for check in admitted["checks"]] == [
        *("language", "duplicates", "contaminated", "unusable", "personal_data", "contaminated"),
        *("growth", "growth", "mix", "quality"),
    ]
    assert all(check["passed"] for check in admitted["checks"])


def test_a_week_in_another_language_is_refused_with_figure_limit_key_and_place(tmp_path: Path) -> None:
    foreign = [{"text": f"{TURKISH} {number}", "url": "https://a.az"} for number in range(30)]
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], [*ROWS[60:90], *foreign]])

    with pytest.raises(DataError) as refusal:
        admission(tmp_path, {"corpus": corpus})

    text = str(refusal.value)
    assert "the new text is refused for 1 reason: 50.0 % of 60 documents are in another language" in text
    assert "(usual 0, limit 0.1: retrain.limits.language)" in text
    assert f"Look at rejected/ and stats/ of {corpus}" in text


def test_all_reasons_are_told_at_once(tmp_path: Path) -> None:
    poisoned = [*ROWS[:25], *({"text": row["text"][:20], "url": row["url"]} for row in ROWS[60:95])]
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], poisoned])

    with pytest.raises(DataError, match=r"refused for 2 reasons.*duplicates.*unusable"):
        admission(tmp_path, {"corpus": corpus})


@pytest.mark.parametrize("pii", [True, False], ids=["counted by clean", "read by admit"])
def test_personal_data_above_the_usual_share_is_refused_also_where_it_stays(
    tmp_path: Path, pii: bool
) -> None:
    private = [row | {"text": f"{row['text']} ali.veli{place}@example.com"} for place,
        row in enumerate(ROWS[60:120])]  # fmt: skip
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], private], pii=pii)

    with pytest.raises(DataError, match=r"100 % of .* hold personal data"):
        admission(tmp_path, {"corpus": corpus}, clean={"pii": pii})


def test_a_host_that_grew_tenfold_is_refused_and_the_limit_is_a_key(tmp_path: Path) -> None:
    more = texts(320)[150:]
    news, blog = rows_of(more[:100]), rows_of(more[100:], "blog.az")
    corpus = corpus_of_weeks(tmp_path, [[*ROWS[:90], *news, *blog[:17]], [*ROWS[90:], *blog[17:]]])

    with pytest.raises(DataError, match=r"host blog.az is .* times as large as usual.*retrain.limits.growth"):
        admission(tmp_path, {"corpus": corpus})
    lax = {"limits": {"growth": None, "mix": None}}
    assert admission(tmp_path, {"corpus": corpus}, retrain=lax)["admitted"]


def test_a_larger_week_of_files_that_an_admitted_week_was_made_of_is_admitted(tmp_path: Path) -> None:
    rows = rows_of(texts(660))
    champion = add_week(tmp_path, "all", rows[:400])
    small = add_week(tmp_path, "week-1", rows[400:460], champion)
    # Such as the next one with a week that the gate refused.
    large = add_week(tmp_path, "week-2", rows[460:], small)

    assert admission(tmp_path, {"corpus": large})["admitted"]


@pytest.mark.parametrize(("num_weeks", "num_laws"), [(1, 0), (1, 1), (3, 0)])
def test_one_of_two_feeds_that_delivers_alone_is_admitted(
    tmp_path: Path, num_weeks: int, num_laws: int
) -> None:
    laws = [f"Maddə {number}. {text[:200]}" for number, text in enumerate(texts(320)[160:])]
    news, law = rows_of(texts(160), "xeber.az"), rows_of(laws, "qanun.az")
    corpus = ""
    for number in range(num_weeks):
        files = {f"news-{number}": news[40 * number :][:40], f"laws-{number}": law[40 * number :][:40]}
        corpus = add_files(tmp_path, f"week-{number}", files, corpus)

    alone = add_files(tmp_path, "alone", {"news-9": news[120:], "laws-9": law[120:][:num_laws]}, corpus)

    assert admission(tmp_path, {"corpus": alone})["admitted"]


def test_a_first_week_of_one_file_is_admitted(tmp_path: Path) -> None:
    rows = rows_of(texts(420))
    names = "news laws books blogs notes essays letters tales songs plays poems talks"
    files = {name: rows[30 * place :][:30] for place, name in enumerate(names.split())}
    champion = add_files(tmp_path, "first", files)

    week = add_files(tmp_path / "next", "week", {"news": rows[360:]}, champion, root=tmp_path)

    assert admission(tmp_path, {"corpus": week})["admitted"]


def test_few_long_documents_are_judged_by_their_text(tmp_path: Path) -> None:
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], ROWS[60:100]])
    foreign = [{"text": "\n".join(f"{TURKISH} {line}" for line in range(60 * number, 60 * number + 60)), "url": "https://a.az"}
               for number in range(4)]  # fmt: skip
    language = add_week(tmp_path, "foreign", [*ROWS[100:], *foreign], corpus)
    with pytest.raises(DataError, match=r"of the text are in another language.*retrain\.limits\.language"):
        admission(tmp_path, {"corpus": language})

    long = [{"text": "\n".join(texts(1_200)[150 + 20 * number :][:20]),
        "url": "https://a.az"} for number in range(52)]  # fmt: skip
    large = add_week(tmp_path, "large", long, corpus)
    with pytest.raises(DataError, match=r"times as large as usual \([\d,]+ bytes of text, usually"):
        admission(tmp_path, {"corpus": large})


def test_files_that_were_a_small_part_of_every_earlier_week_are_refused(tmp_path: Path) -> None:
    rows = rows_of(texts(660))
    champion = add_week(tmp_path, "all", rows[:400])
    named = {"week-1.jsonl": rows[400:403], "daily-1.jsonl": rows[403:460]}
    for name, lines in named.items():
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    mixed = add_week(tmp_path, "mixed", [], champion, inputs=[str(tmp_path / name) for name in named])
    only = add_week(tmp_path, "week-2", rows[460:], mixed)

    with pytest.raises(DataError, match=r"files week-#.jsonl is .* times as large as usual"):
        admission(tmp_path, {"corpus": only})


def test_the_only_source_is_compared_with_its_own_weeks(tmp_path: Path) -> None:
    first = corpus_of_weeks(tmp_path, [ROWS[:60]])
    second = add_week(tmp_path, "second", ROWS[60:72], first)
    large = add_week(tmp_path, "large", ROWS[72:132], second)

    words = r"it is 5\.0 times as large as usual \(60 documents, usually 12\), and its files are 5\.0 times as large"
    with pytest.raises(DataError, match=words):
        admission(tmp_path, {"corpus": large})

    # Weeks that a schedule missed come in files of the usual size.
    lines = (tmp_path / "large.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    files = [tmp_path / f"missed-{number}.jsonl" for number in range(5)]
    for number, file in enumerate(files):
        file.write_text("".join(lines[12 * number : 12 * number + 12]), encoding="utf-8")
    missed = add_week(tmp_path, "missed", [], second, inputs=list(map(str, files)))
    assert admission(tmp_path, {"corpus": missed})["admitted"]


def test_a_week_of_one_document_is_admitted_and_one_of_copies_leaves_nothing(tmp_path: Path) -> None:
    one = corpus_of_weeks(tmp_path / "one", [ROWS[:60], ROWS[60:61]])
    copy = corpus_of_weeks(tmp_path / "copy", [ROWS[:60], ROWS[:1]])

    assert admission(tmp_path, {"corpus": one})["documents"] == 1
    with pytest.raises(DataError, match=r"nothing is left to train on: of 1 document that came.*duplicate 1"):
        admission(tmp_path, {"corpus": copy})


def test_a_figure_above_its_limit_that_chance_explains_says_so(tmp_path: Path) -> None:
    corpus = corpus_of_weeks(tmp_path, [ROWS[:60], [*ROWS[60:64], ROWS[0]]])

    checks = {each["name"]: each for each in admission(tmp_path, {"corpus": corpus})["checks"]}

    duplicates = checks["duplicates"]
    assert (duplicates["passed"], duplicates["value"] > duplicates["limit"]) == (True, True)
    assert "20.0 % of 5 documents are alike" in duplicates["words"]
    assert duplicates["words"].endswith("1.77 % is sure")
    others = [each["words"] for name, each in checks.items() if name != "duplicates"]
    assert not any("may be chance" in words for words in others)


def test_an_earlier_week_that_is_gone_is_said_and_no_fault(tmp_path: Path) -> None:
    first = corpus_of_weeks(tmp_path, [ROWS[:60]])
    second = add_week(tmp_path, "second", ROWS[60:120], first)
    shutil.rmtree(first)

    admitted = admission(tmp_path, {"corpus": second})

    assert (admitted["earlier_weeks"], admitted["checks"]) == (0, [])
    assert "no finished corpus there" in admitted["notes"][0]
    assert "there is no earlier text to compare with" in admitted["notes"][1]
