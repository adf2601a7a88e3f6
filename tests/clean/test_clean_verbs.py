"""What clean did can be asked: for one document, between two corpora, of a whole corpus."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli.main import main
from anadil.core.stages import STAGES
from anadil.language.identify_sample import identify_sample
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute
from anadil.text.language_pack import LanguagePack
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, page, warc_record, write_jsonl, write_warc
from tests.kit.constructed import documents
from tests.kit.texts import AZERBAIJANI, TURKISH

LINES = [*texts(5), AZERBAIJANI, AZERBAIJANI.upper(), TURKISH, "Salam."]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())
    write_jsonl(tmp_path / "a.jsonl", LINES)

    def make(name: str, **settings: Any) -> Path:
        data = {"language": "az", "clean": {"inputs": [str(tmp_path / "a.jsonl")], **settings}}
        recipe = parse_recipe(json.dumps(data), "recipe", ())
        (tmp_path / f"{name}.yaml").write_text(json.dumps(data))
        return Path(execute(STAGES["clean"], recipe, {}, (), str(tmp_path / name)).uri)

    return make


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Explains a record of a raw file, by a recipe that names no input."""

    def explain(source: str, raw: Path, **settings: Any) -> Any:
        (tmp_path / "r.yaml").write_text(json.dumps({"language": "az", **settings}))
        return said(capsys, "explain", source, "--recipe", str(tmp_path / "r.yaml"), "--raw", str(raw))

    return explain


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["clean", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN, which is no JSON


def test_explain_tells_every_rule_with_value_and_limit(
    tmp_path: Path, make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, recipe = make("one"), ("--recipe", str(tmp_path / "one.yaml"))

    found = said(capsys, "explain", "a.jsonl:9", *recipe)

    assert found["verdict"] == "short"
    short = next(rule for rule in found["rules"] if rule["statistic"] == "words" and rule["rule"] == "short")
    assert (short["value"], short["at"], short["verdict"]) == (1, "least", "drops")
    twin = said(capsys, "explain", "a.jsonl:7", *recipe, "--corpus", str(corpus))
    assert twin["in_corpus"][0]["reason"] in ("duplicate", None)
    by_id = said(capsys, "explain", twin["id"], *recipe, "--corpus", str(corpus))
    assert by_id["source"] == "a.jsonl:7"


def test_explain_tells_what_keeps_a_text_from_being_in_a_learnt_language(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = documents(120)
    identification = identify_sample("qaa", own[:80], own[80:], {}, None)[0]
    pack = LanguagePack(code="qaa", name="Qaa", script="Latn", identification=identification)
    (tmp_path / "qaa.json").write_text(pack.model_dump_json())
    dialect = re.sub(r"(?<=\w\w)(om|ul|isk)\b", r"\1u", own[1])
    raw = write_jsonl(tmp_path / "a.jsonl", [own[0], dialect])
    recipe = tmp_path / "r.yaml"
    recipe.write_text(json.dumps({"language": str(tmp_path / "qaa.json"), "clean": {"inputs": [str(raw)]}}))

    kept, dropped = (said(capsys, "explain", f"a.jsonl:{place}", "--recipe", str(recipe)) for place in (1, 2))

    assert (kept["identify"]["is_language"], dropped["identify"]["is_language"]) == (True, False)
    rows = {row["statistic"]: row for row in dropped["rules"] if row["rule"] == "language"}
    new = rows["new_endings"]
    assert (new["verdict"], new["at"], new["value"] > new["limit"]) == ("drops", "most", True)
    assert rows["association"]["verdict"] == "passes"
    assert {row["verdict"] for row in kept["rules"] if row["rule"] == "language"} == {"passes"}


def test_explain_tells_of_a_page_that_is_dropped_unread_how_far_it_came(
    tmp_path: Path, explain: Callable[..., Any]
) -> None:
    html = b"<html lang=en><p>" + b"Nothing of this is in the language. " * 9

    found = explain("a.warc.gz:0", write_warc(tmp_path / "a.warc.gz", [warc_record(html)]))

    assert found["verdict"] == found["page"]["dropped"] == "language"
    assert not found.keys() & {"extract", "normalize", "rules"}


def test_explain_tells_of_lists_evaluation_questions_and_personal_data(
    tmp_path: Path, explain: Callable[..., Any]
) -> None:
    text = f"{texts(1)[0]} Ünvan: aysel@mail.az"
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "domains").write_text("bad.az\n")
    write_jsonl(tmp_path / "heldout.jsonl", [texts(1)[0]])
    raw = write_warc(tmp_path / "a.warc.gz", [warc_record(page(text))])
    settings = {"url_lists": [str(tmp_path / "lists")], "pii": True, "decontaminate": True}

    found = explain(
        "a.warc.gz:0", raw, clean=settings, evaluate={"heldout": [str(tmp_path / "heldout.jsonl")]}
    )

    assert found["page"]["dropped"] is None
    assert text[:40] in found["extract"]["begins"]
    assert found["url_lists"] == {"is_blocked": False}
    assert found["decontaminate"] == {"items": ["heldout.jsonl:1"]}
    assert found["personal_data"] == {"EMAIL": 1}
    assert found["verdict"] == "contaminated"


def test_a_document_is_named_by_the_path_of_its_file(
    tmp_path: Path,
    make: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make("one")
    recipe = str(tmp_path / "one.yaml")
    monkeypatch.chdir(tmp_path.parent)

    for source in (f"{tmp_path}/a.jsonl:9", f"{tmp_path.name}/a.jsonl:9", f"./{tmp_path.name}/a.jsonl:9"):
        assert said(capsys, "explain", source, "--recipe", recipe)["source"] == "a.jsonl:9"


def test_explain_lists_the_limits_that_a_document_breaks_and_counts_the_others(
    tmp_path: Path, make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    make("one")
    recipe = str(tmp_path / "one.yaml")
    rules = said(capsys, "explain", "a.jsonl:9", "--recipe", recipe)["rules"]

    assert main(["clean", "explain", "a.jsonl:9", "--recipe", recipe]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["source     a.jsonl:9", "verdict    short"]
    broken = [line.split() for line in lines if line.startswith(("drops ", "reported "))]
    assert ["drops", "short", "words", "1", "at", "least"] in [line[:6] for line in broken]
    assert lines[-1].split()[:2] == ["passes", str(len(rules) - len(broken))]


def test_explain_refuses_an_unknown_source_and_tells_why_a_record_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "a.jsonl"
    raw.write_text('{"text": "bir"}\n' + "{cut\n" * 20)
    (tmp_path / "r.yaml").write_text("language: az\n")
    command = ["clean", "explain", "--recipe", str(tmp_path / "r.yaml"), "--raw", str(raw), "--"]

    assert main([*command, "a.jsonl:99"]) == 3
    assert "no such record" in capsys.readouterr().err
    assert main([*command, f"{raw}:17"]) == 3
    assert f"{raw}:17: is bad and skipped: not JSON: " in capsys.readouterr().err
    monkeypatch.setattr("anadil.clean.filters.judge_record.identify_language", lambda *_: 1 / 0)
    assert main([*command, "a.jsonl:1"]) == 3
    assert "a.jsonl:1: is bad and skipped: ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_explain_tells_which_limit_a_page_exceeds(tmp_path: Path, explain: Callable[..., Any]) -> None:
    raw = tmp_path / "a.html"
    raw.write_bytes(page(texts(1)[0] + "<div>" * 5_000))

    found = explain("a.html", raw)

    assert found["page"].items() >= {
        "dropped": "page_limits", "statistic": "depth", "value": 5_004, "limit": 3_000
    }.items()  # fmt: skip


def test_a_document_is_named_by_its_place_where_the_record_names_a_source_of_its_own(
    tmp_path: Path, make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": text, "source": f"https://a.az/{number}"} for number, text in enumerate(texts(12))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus, recipe = make("one"), str(tmp_path / "one.yaml")

    alone = said(capsys, "explain", "a.jsonl:1", "--recipe", recipe)
    found = said(capsys, "explain", "a.jsonl:1", "--recipe", recipe, "--corpus", str(corpus))

    assert alone["source"] == found["source"] == "a.jsonl:1 https://a.az/0"
    assert [row["source"] for row in found["in_corpus"]] == [found["source"]]


def test_diff_names_documents_that_changed_verdict(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = make("one"), make("two", rules={"max_words": 70})

    found = said(capsys, "diff", str(first), str(second))

    assert found["counts"]["kept"] == [6, 5]
    assert [sum(found["counts"][part][side] for part in ("train", "heldout")) for side in (0, 1)] == [6, 5]
    assert {(each["before"], each["after"]): each["documents"] for each in found["changed"]} == {
        ("kept", "long"): 1,
        ("duplicate", "long"): 1,
    }
    assert found["only_in_first"] == found["only_in_second"] == found["other_text"] == 0
    assert main(["clean", "diff", str(first), str(second)]) == 0
    assert "duplicate -> long: 1 document, such as a.jsonl:" in capsys.readouterr().out


def test_diff_takes_the_same_line_of_another_week_for_another_document(
    tmp_path: Path, make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first = make("one")
    write_jsonl(tmp_path / "a.jsonl", [f"{text} Yeni sözlər." for text in reversed(LINES)])
    second = make("two")

    found = said(capsys, "diff", str(first), str(second))

    assert found["changed"] == []
    assert found["only_in_first"] == found["only_in_second"] == len(LINES)
    assert found["other_text"] == 0


def test_verify_accepts_a_whole_corpus_and_refuses_counts_that_do_not_add_up(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make("one")
    assert set(said(capsys, "verify", str(corpus))) == {"files", "documents", "counts"}

    stats = json.loads((corpus / "stats.json").read_text())
    stats["kept"] += 1
    (corpus / "stats.json").write_text(json.dumps(stats))
    assert main(["clean", "verify", str(corpus)]) == 5
    manifest = json.loads((corpus / "manifest.json").read_text())
    manifest["files"]["stats.json"] = artifact.file_entry(corpus / "stats.json")
    del manifest["seal"]
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()

    assert main(["clean", "verify", str(corpus)]) == 5
    assert "documents in are not those kept and dropped" in capsys.readouterr().err


@pytest.mark.parametrize(("place", "source"), [("", "lines.jsonl:1"), (":2", "lines.jsonl:2")])
def test_a_file_is_explained_without_naming_the_inputs(
    place: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "Salam."}\n{"text": "Sağ ol."}\n', encoding="utf-8")

    assert main(["clean", "explain", f"{path}{place}"]) == 0

    assert capsys.readouterr().out.split()[:2] == ["source", source]
