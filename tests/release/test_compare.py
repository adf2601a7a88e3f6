import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from anadil.cli import main
from anadil.core.errors import IntegrityError
from anadil.evaluate import bootstrap
from anadil.page.compared import ScorePair
from anadil.release.compare.comparison import Comparison, compare
from tests.kit import compared_run
from tests.kit.compared_run import make_run, recipe, scores


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """How good the intervals are is for the tests of `bootstrap` to show."""
    monkeypatch.setattr(bootstrap, "DRAWS", 60)


def pair(found: Comparison, candidate: str, measure: str) -> ScorePair:
    return next(each for each in found.scores if (each.candidate, each.measure) == (candidate, measure))


def both(root: Path, a: Any = None, b: Any = None) -> Comparison:
    make_run(root, "run-a", **(a or {}))
    make_run(root, "run-b", **(b or {}))
    return compare("run-a", "run-b", work=root)


def test_the_same_text_is_compared_document_by_document(tmp_path: Path) -> None:
    found = both(tmp_path, b={"scores": scores(better=0.1)})

    text = pair(found, "adapted", "bits_per_byte")
    assert found.more["heldout_text"] == "same"
    assert text.difference == pytest.approx(-0.1, abs=1e-9)
    assert text.low is not None
    assert text.low == pytest.approx(
        -0.1, abs=1e-6
    )  # each document moved by as much: the interval is a point
    assert (text.better, text.clear, text.unsure, text.num_documents) == ("b", True, False, 120)
    assert found.verdict[0].startswith("B is better on held-out text (adapted model)")


def test_retained_languages_are_compared_document_by_document_if_both_scored_the_same(tmp_path: Path) -> None:
    found = both(tmp_path, a={"scores": with_retained(0.0)}, b={"scores": with_retained(0.1)})
    other = both(
        tmp_path / "other", a={"scores": with_retained(0.0)}, b={"scores": with_retained(0.1, count=9)}
    )

    english, russian = (pair(found, "adapted", f"retained.{code}") for code in ("en", "ru"))
    assert [english.difference, english.low] == pytest.approx([0.1, 0.1], abs=1e-6)
    assert (english.better, english.num_documents, english.unsure) == ("a", 12, True)
    assert (russian.clear, russian.better) == (False, None)
    alone = pair(other, "adapted", "retained.en")
    assert alone.low is None


def with_retained(more: float, count: int = 12) -> Any:
    """Scores with documents of two languages, of which one costs some bits per byte more."""
    made = scores()
    bits = {"en": 2.0 + more, "ru": 3.0}
    made["candidates"]["adapted"]["retained"] = bits
    made["retained"] = {
        "documents": [
            {"id": f"{code}{n}", "lang": code, "num_bytes": 90 + n, "nats": {"adapted": value * (90 + n) * math.log(2)}}
            for code, value in bits.items()
            for n in range(count)
        ]
    }  # fmt: skip
    return made


def test_texts_that_have_documents_in_common_are_compared_on_those(tmp_path: Path) -> None:
    found = both(tmp_path, b={"scores": scores(better=0.1, text="other")})

    text, fertility = (pair(found, "adapted", each) for each in ("bits_per_byte", "fertility"))
    assert found.more["heldout_text"] == "partly the same"
    assert (text.num_documents, text.unsure) == (60, True)
    assert text.difference == pytest.approx(-0.1, abs=1e-9)
    assert fertility.difference is None
    assert fertility.why_not == "only a part of the text is common"
    assert "those of the documents that both scored" in " ".join(found.notes)


def test_other_texts_are_not_compared_and_it_is_said_why(tmp_path: Path) -> None:
    found = both(tmp_path, b={"scores": scores(better=0.1, text="other", first=500)})

    text = pair(found, "adapted", "bits_per_byte")
    assert found.more["heldout_text"] == "different"
    assert text.a is not None
    assert text.b is not None
    assert (text.difference, text.better, text.why_not) == (None, None, "other held-out text")
    assert not any("held-out text" in each for each in found.verdict)
    assert "bits per byte compare on the same text only" in " ".join(found.notes)
    assert "not comparable: other held-out text" in "".join(found.lines())


def test_ids_that_users_gave_make_no_two_texts_the_same(tmp_path: Path) -> None:
    mine, others = scores(), scores(text="other", first=500)
    for table in (mine, others):
        for place, document in enumerate(table["documents"]):
            document |= {"id": str(place), "num_bytes": 900}

    assert both(tmp_path, {"scores": mine}, {"scores": others}).more["heldout_text"] == "different"


def test_other_tokenizers_are_compared_in_bits_per_byte(tmp_path: Path) -> None:
    found = both(tmp_path, b={"tokenizer": "two", "scores": scores(better=0.1)})

    assert found.same["tokenizer"] is False
    assert pair(found, "adapted", "bits_per_byte").better == "b"
    assert "losses per token do not" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("b", "measure", "reason"),
    [
        ({"recipe": recipe(language="tr")}, "fertility", "other language, which counts words otherwise"),
        ({"scores": scores(num_prompts=3)}, "output_language.own", "other prompts"),
    ],
)
def test_figures_under_other_conditions_are_not_compared(
    b: dict[str, Any], measure: str, reason: str, tmp_path: Path
) -> None:
    found = both(tmp_path, b=b)

    assert pair(found, "adapted", measure).why_not == reason
    assert ("The languages differ (az and tr)" in " ".join(found.notes)) == ("recipe" in b)


def test_a_recipe_s_keys_that_differ_have_both_values(tmp_path: Path) -> None:
    other = recipe(
        pretrain={"phases": [{"trains": "all", "steps": 7, "lr": 0.1}]}, storage={"root": "/data/leyla/runs"}
    )
    found = both(
        tmp_path,
        {"recipe": recipe(pretrain={"phases": [{"trains": "all", "steps": 9, "lr": 0.1}]})},
        {"recipe": other},
    )

    changes = {each.key: (each.a, each.b, each.decides) for each in found.recipe}
    assert changes == {
        "pretrain.phases.0.steps": (9, 7, True),
        "storage.root": (None, "/data/leyla/runs", False),
    }  # fmt: skip
    assert "pretrain.phases.0.steps: 9 -> 7" in list(found.lines())


def test_a_question_that_one_run_has_trained_on_counts_for_neither(tmp_path: Path) -> None:
    seen = scores(better=0.1)
    for question in seen["questions"]["listed"][:20]:
        question["seen"] = True

    found = both(tmp_path, b={"scores": seen})

    assert pair(found, "finetuned", "questions.bits_per_byte").num_documents == 100
    assert "Only one run saw 20 of the questions in training" in " ".join(found.notes)


def test_a_share_that_is_not_clearly_another_says_so(tmp_path: Path) -> None:
    other = scores()
    other["candidates"]["adapted"]["output_language"] |= {"own": 0.75}

    own = pair(both(tmp_path, b={"scores": other}), "adapted", "output_language.own")

    assert own.difference == pytest.approx(-0.125)
    assert (own.clear, own.better) == (False, None)


@pytest.mark.parametrize("word", ["scores", "model", "adapter"])
def test_an_artifact_stands_for_its_run(tmp_path: Path, word: str) -> None:
    make_run(tmp_path, "run-a", record=False)
    make_run(tmp_path, "run-b", record=False, scores=scores(better=0.1))
    names = [str(tmp_path / word / f"run-{each}-{word}") for each in "ab"]

    found = compare(*names, work=None)

    assert found.a.uris.keys() == {"corpus", "tokenizer", "model", "adapter", "scores"}
    assert pair(found, "adapted", "bits_per_byte").better == "b"
    assert [word for word, same in found.same.items() if same] == ["corpus", "tokenizer"]


def test_a_work_directory_stands_for_its_latest_run_wherever_it_was_moved(tmp_path: Path) -> None:
    make_run(tmp_path / "before", "run-a")
    (tmp_path / "before").rename(tmp_path / "after")

    found = compare(str(tmp_path / "after"), str(tmp_path / "after"))

    assert found.a.label == "smoke run-a"
    assert "Both have the same scores" in " ".join(found.notes)
    assert found.verdict[0].startswith("A and B are the same on held-out text")


def test_a_work_directory_of_artifacts_alone_stands_for_its_newest_scores(tmp_path: Path) -> None:
    make_run(tmp_path, "run-a", record=False)

    found = compare(str(tmp_path), str(tmp_path))

    assert found.a.label == f"scores/{found.a.manifests['scores'].key}"


def test_runs_of_a_store_are_compared_without_fetching_weights(tmp_path: Path, bucket: str) -> None:
    from anadil.artifacts import s3

    root = make_run(tmp_path / "here", "run-a", record=False)
    client = s3.s3_client()
    for file in root.rglob("*"):
        if file.is_file():
            client.upload_file(str(file), bucket.removeprefix("s3://"), file.relative_to(root).as_posix())
    read: list[str] = []
    client.meta.events.register(
        "before-parameter-build.s3.GetObject", lambda params, **_: read.append(params["Key"])
    )

    found = compare(f"{bucket}/scores/run-a-scores", f"{bucket}/model/run-a-model", work=None)

    assert found.more["heldout_text"] == "same"
    assert not any(key.endswith(("weights", "tokenizer.json")) for key in read)


def test_a_run_without_scores_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    found = both(tmp_path, b={"without": ("scores", "adapter")})

    assert "B has no scores here" in " ".join(found.notes)
    assert pair(found, "adapted", "bits_per_byte").why_not.startswith("a run has no scores")


def test_a_file_that_is_not_what_its_manifest_says_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path, "run-a")
    (tmp_path / "scores" / "run-a-scores" / "scores.json").write_text("{}")

    with pytest.raises(IntegrityError, match=r"scores\.json: differs from its manifest"):
        compare("run-a", "run-a", work=tmp_path)


def test_a_comparison_is_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both(tmp_path / "w", b={"scores": scores(better=0.1)})
    words = ["compare", "run-a", "run-b", "--work", str(tmp_path / "w")]

    assert main.main(words) == 0
    table = capsys.readouterr().out
    assert main.main([*words, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)

    assert "B is better on held-out text" in table
    assert re.search(r"adapted +bits per byte .* -0\.1000 to -0\.1000 +120 +B\n", table)
    assert data["heldout_text"] == "same"
    assert data["scores"][0].keys() >= {"a", "b", "difference", "low", "high", "better", "why_not"}
    assert data["same_artifacts"]["tokenizer"] is True


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run-a", "run-z"], 3, "run-z: neither a work directory nor an artifact nor a run of"),
        (["run-", "run-a"], 2, "several begin so (run-a, run-b)"),
        (["run-a", "{root}/corpus/run-a-corpus"], 3, "a corpus is a part of many runs"),
        (["run-a", "{root}/empty"], 3, "neither an artifact nor a work directory with a run"),
        (["run-a", "gs://bucket/scores/1"], 4, "storage gs:// is not supported"),
        (["run-a", "failed"], 3, "none of its artifacts exists: failed, no text"),
        (["run-a", "{root}/scores/run-b-scores/scores.json"], 0, ""),
    ],
)
def test_a_wrong_name_is_told(
    words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "run-a")
    make_run(tmp_path, "run-b")
    make_run(tmp_path, "failed", without=tuple(compared_run.STAGES))
    path = tmp_path / "runs" / "failed.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"exit_code": 3, "message": "no text"}))
    (tmp_path / "empty").mkdir()

    ended = main.main(["compare", *(word.format(root=tmp_path) for word in words), "--work", str(tmp_path)])

    said = capsys.readouterr().err
    assert ended == code
    assert told in said
    assert "Traceback" not in said


def test_a_secret_in_a_recipe_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghij")
    found = both(
        tmp_path, b={"recipe": recipe(clean={"inputs": ["https://leyla:hf_abcdefghij@host/a.jsonl"]})}
    )

    assert "hf_abcdefghij" not in json.dumps(found.to_dict()["recipe"]) + "".join(found.lines())
