"""`clean.quality: top 15 %`: the best share of the words by a classifier."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anadil.clean.shards.quality_share import Ranking, score_of
from anadil.cli.main import main
from anadil.core.errors import DataError, RecipeError
from anadil.language.fasttext_file import BUCKETS, write_model
from anadil.recipe.load import parse_recipe
from anadil.report.corpus_view import _quality
from anadil.runtime.executors.processes import Processes
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, content, documents, rows, samples, stats, write_jsonl

MODEL = "clean.quality_model=q.bin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A classifier that spreads its scores."""
    path = tmp_path_factory.mktemp("model") / "quality.bin"
    write_model(np.random.default_rng(0).normal(0, 8, BUCKETS + 1).astype(np.float32), path)
    return str(path)


def words_of(share: float, judged: list[dict[str, Any]]) -> set[str]:
    """Ids of the documents with the highest scores, until they hold a share of the words."""
    ranked = sorted(judged, key=lambda row: -row["quality"])
    total, best = sum(row["words"] for row in ranked), set()
    for row in ranked:
        best.add(row["id"])
        if sum(each["words"] for each in ranked if each["id"] in best) >= share * total:
            return best
    raise AssertionError


def test_the_best_share_of_the_words_stays(tmp_path: Path, model: str) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(80), texts(1)[0].upper(), *texts(5)])

    corpus = clean(tmp_path, raw, quality_model=model, quality="top 25 %")

    found = stats(corpus)
    judged = [row for row in rows(corpus) if row["reason"] in (None, "quality")]
    kept = {each.id for each in documents(corpus)}
    assert kept == words_of(0.25, judged) == {row["id"] for row in judged if row["reason"] is None}
    assert found["dropped"] == {"duplicate": 6, "quality": 80 - len(kept)}
    quality = found["quality"]
    assert (quality["documents"], quality["kept"], quality["share"]) == (80, len(kept), 0.25)
    assert 0.25 <= quality["words_kept"] / quality["words"] < 0.25 + 1 / 60
    assert quality["threshold"] == min(row["quality"] for row in judged if row["reason"] is None)
    assert {row["limit"] for row in samples(corpus, "quality")} == {quality["threshold"]}
    assert not any("duplicate_of" in row for row in samples(corpus, "quality"))
    assert all(row["duplicate_of"] is None for row in judged)


def test_tenths_have_a_text_each_without_a_share_too(tmp_path: Path, model: str) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(60))

    corpus = clean(tmp_path, raw, quality_model=model, modes={"quality": "report"})

    quality = stats(corpus)["quality"]
    scores = sorted((row["quality"] for row in rows(corpus)), reverse=True)
    assert [each["documents"] for each in quality["tenths"]] == [6] * 10
    assert [each["from"] for each in quality["tenths"]] == scores[5::6]
    of_source = {row["source"]: row["quality"] for row in rows(corpus)}
    for each, least, most in zip(quality["tenths"], scores[5::6], scores[::6], strict=True):
        assert least <= of_source[each["source"]] <= most
        assert each["text"] == texts(60)[int(each["source"].rpartition(":")[2]) - 1][:300]
    table = _quality({"quality": quality})
    assert len(table.rows) == 10
    assert table.rows[-1][2] == "100 %"


def test_equal_scores_stay_together(tmp_path: Path) -> None:
    write_model(np.zeros(BUCKETS + 1, np.float32), tmp_path / "zero.bin")
    raw = write_jsonl(tmp_path / "a.jsonl", texts(20))

    corpus = clean(tmp_path, raw, quality_model=str(tmp_path / "zero.bin"), quality="top 10 %")

    quality = stats(corpus)["quality"]
    assert (quality["kept"], len(quality["tenths"])) == (20, 1)


@pytest.mark.parametrize("workers", [1, 5])
def test_workers_and_shards_change_no_byte(tmp_path: Path, model: str, workers: int) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(200))
    settings: dict[str, Any] = {"quality_model": model, "quality": "top 40 %"}
    plain = content(clean(tmp_path / "1", raw, **settings))

    cut = content(clean(tmp_path / "2", raw, **settings, executor=Processes(workers), shard_bytes=20_000))

    assert cut == plain


def test_sentences_that_a_host_shares_go_before_documents_are_ranked(tmp_path: Path, model: str) -> None:
    footer = "Bu saytın bütün hüquqları qorunur və paylaşılır."
    raw = write_jsonl(tmp_path / "a.jsonl", [f"{text}\n{footer}" for text in texts(40)])
    alone = write_jsonl(tmp_path / "b.jsonl", texts(40))

    first, second = (
        clean(tmp_path / str(file.stem), file, quality_model=model, quality="top 30 %")
        for file in (raw, alone)
    )

    assert {each.text for each in documents(first)} == {each.text for each in documents(second)}


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["clean.quality=top 15 %"], r"clean.*quality: top 15 % needs scores\. Name a classifier as quality_model"),
        ([MODEL, "clean.quality=top 15 %", "clean.rules={min_quality: .5}"], "and rules.min_quality both say what stays"),
        ([MODEL, "clean.quality=top 15 %", "clean.modes={quality: report}"], "and modes.quality both say what stays"),
        ([MODEL, "clean.rules=none", "clean.quality=top 15 %"], "so quality_model and quality would decide nothing"),
        *(
            ([MODEL, f"clean.quality=top {share} %"], "is no share of the best. Write one above 0 and below 100")
            for share in ("0", "100", "101", "-1", "x", "0.0")
        ),
        ([MODEL, "clean.quality=0.15"], "is no share of the best. Write one above 0 and below 100, such as `top 15 %`"),
        (["sources={a: {inputs: [a], quality: top 15 %}}"], "needs scores. Name a classifier"),
        (["sources={a: {inputs: [a], pairs: [en, az], clean: {quality_model: m}, quality: top 1 %}}"], "would decide nothing"),
    ],
)  # fmt: skip
def test_what_cannot_rank_is_refused(sets: list[str], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse_recipe("", "r", sets)


def test_a_source_has_a_share_of_its_own() -> None:
    best = "clean: {quality_model: m.bin, quality: top 50 %}\nsources: {web: {inputs: [a], quality: top 15 %}, books: {inputs: [b]}}"
    recipe = parse_recipe(
        best, "r", ["pretrain.phases=[{trains: all, steps: 1, lr: 1e-4, mix: {web: .5, books: .5}}]"]
    )

    assert [recipe.of_source(name).clean.best_share for name in ("web", "books")] == [0.15, 0.5]


def test_a_share_of_so_little_that_one_document_stays_is_refused(tmp_path: Path, model: str) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(20))

    with pytest.raises(DataError, match=r"1 document after cleaning.*dropped: quality 19"):
        clean(tmp_path, raw, quality_model=model, quality="top 1 %")


def test_bounds_are_the_scores_of_a_plain_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    keys = rng.beta(0.3, 3, 5_000).astype(np.float32).view(np.uint32)
    words = rng.integers(50, 900, 5_000).astype(float)
    pieces = [
        (np.arange(5_000)[part], keys[part], words[part]) for part in (slice(0, 1_700), slice(1_700, None))
    ]
    monkeypatch.setattr(Ranking, "pieces", lambda self: iter(pieces))
    order = np.argsort(-keys.astype(np.int64), kind="stable")

    bounds = Ranking(shards=(), starts=(), verdicts=None).bounds([0.01, 0.5, 0.99], of_words=True)  # type: ignore[arg-type]  # not asked

    shares = np.cumsum(words[order]) / words.sum()
    assert bounds == [int(keys[order][np.searchsorted(shares, share)]) for share in (0.01, 0.5, 0.99)]
    assert score_of(bounds[0]) > score_of(bounds[2]) > 0


def test_explain_says_that_the_share_decides_later(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(1))
    sets = ("language=az", f"clean.quality_model={model}", "clean.quality=top 5 %")

    assert main(["clean", "explain", f"{raw}:1", "--recipe", "smoke", "-o", "json", *(
        part for each in sets for part in ("--set", each)
    )]) == 0  # fmt: skip

    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict == "kept, unless it is a duplicate or not of the best (top 5 %)"
