"""Documents of a source that stand in others, or hold their held-out text, are left out of training."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from anadil.artifacts.artifact import file_entry, read_manifest
from anadil.core.errors import DataError, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.overlap.heldout_runs import heldout_runs_of, runs_of
from anadil.overlap.source_corpora import find_alike
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.entry_point import main
from anadil.runtime.execute import execute
from anadil.runtime.executors import processes
from anadil.runtime.flow import flow_of, options_of
from anadil.text.corpus import Document, read_documents
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, write_jsonl
from tests.kit.marks import matrix
from tests.kit.overlapping import cleaned, compared, excluded, mixture
from tests.kit.parallel import PAIRS, recipe_of_pairs, write_pairs
from tests.kit.texts import ANOTHER, AZERBAIJANI

OWN = texts(60)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())
    monkeypatch.setattr("anadil.overlap.run.executor_of_this_program", lambda _: InThisProcess())


def edited(text: str) -> str:
    """A near duplicate."""
    words = text.split()
    return " ".join([*words[:-1], "axırıncı."])


def digest_of(text: str) -> str:
    """The id of its document."""
    return hashlib.sha256(text.encode()).hexdigest()


def by_text(uri: str, part: Any) -> dict[str, Document]:
    return {document.text: document for document in read_documents(Path(uri), part)}


def stats(overlap: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((overlap / "overlap.json").read_text(encoding="utf-8"))
    return read


def test_of_documents_in_two_sources_that_of_the_earlier_one_stays(tmp_path: Path) -> None:
    web, news = OWN[:30], [OWN[3], OWN[4].upper(), edited(OWN[5]), *OWN[30:50]]
    recipe = mixture(tmp_path, {"web": web, "news": news}, heldout_max_documents=1)
    corpora = cleaned(recipe)

    rows = excluded(compared(recipe, "news", corpora))

    theirs, ours = by_text(corpora["corpus.web"], "train"), by_text(corpora["corpus.news"], "train")
    expected = {
        (ours[copy].id, reason, theirs[text].id)
        for copy, text, reason in (
            (OWN[3], OWN[3], "duplicate"),
            (OWN[4].upper(), OWN[4], "duplicate"),
            (edited(OWN[5]), OWN[5], "near_duplicate"),
        )
        if copy in ours and text in theirs
    }
    assert {
        (row["id"], row["reason"], row["of_id"]) for row in rows if row["reason"] != "heldout"
    } == expected
    assert len(expected) >= 2
    assert {row["of"] for row in rows} == {"web"}
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert not [row for row in excluded(compared(recipe, "web", corpora)) if row["reason"] != "heldout"]


LAW = "Maddənin ikinci hissəsində nəzərdə tutulmuş hallar istisna olmaqla, digər hallarda tətbiq edilir."
"""A set phrase of laws: 12 words, more than 50 characters."""


def test_a_phrase_that_laws_have_in_common_is_no_held_out_text() -> None:
    heldout = f"Birinci sənəd haqqında mətn. {LAW} Sənədin sonu budur."
    other = f"Tamamilə başqa bir qanun layihəsi. {LAW} Qüvvəyə minmə tarixi göstərilməyib."

    assert not np.isin(np.concatenate(runs_of(other)), heldout_runs_of(heldout)).any()
    assert np.isin(np.concatenate(runs_of(f"{heldout} Davamı.")), heldout_runs_of(heldout)).any()


def test_a_text_without_spaces_is_compared_by_characters() -> None:
    sentence = "この文章は日本語で書かれていて、" * 4
    heldout = heldout_runs_of(f"前文。{sentence}")

    assert np.isin(np.concatenate(runs_of(f"English words around {sentence} and after.")), heldout).any()
    assert not np.isin(np.concatenate(runs_of(sentence[:30])), heldout).any()


def test_held_out_documents_of_every_source_are_left_out_of_the_others(tmp_path: Path) -> None:
    """Copies, near copies and quotations, whether the source comes before or behind."""
    first = mixture(
        tmp_path, {"web": OWN[:20], "news": OWN[20:40]}, heldout_fraction=0.2, heldout_max_documents=2
    )
    heldout = {
        source: [each.text for each in read_documents(Path(uri), "heldout")]
        for source, uri in cleaned(first).items()
    }
    quoted = {
        source: f"{' '.join(each[0].split()[20:34])} {' '.join(OWN[50 + place].split()[:60])}"
        for place, (source, each) in enumerate(heldout.items())
    }
    web = [*OWN[:20], edited(heldout["corpus.news"][1]), quoted["corpus.news"]]
    news = [*OWN[20:40], heldout["corpus.web"][1].upper(), quoted["corpus.web"]]
    recipe = mixture(
        tmp_path / "planted", {"web": web, "news": news}, heldout_fraction=0.2, heldout_max_documents=2
    )
    corpora = cleaned(recipe)
    for source, uri in corpora.items():
        assert [each.text for each in read_documents(Path(uri), "heldout")] == heldout[source]

    for source, other, planted in (("web", "news", web[20:]), ("news", "web", news[20:])):
        overlap = compared(recipe, source, corpora)

        ids = {by_text(corpora[f"corpus.{source}"], "train")[text].id for text in planted}
        held = {each.id for each in read_documents(Path(corpora[f"corpus.{other}"]), "heldout")}
        rows = excluded(overlap)
        assert {row["id"] for row in rows} == ids
        assert {(row["reason"], row["of"]) for row in rows} == {("heldout", other)}
        assert {row["of_id"] for row in rows} == held
        counts = stats(overlap)
        assert counts["by_source"] == {other: {"heldout": 2}}
        assert (counts["documents"], counts["remaining"]) == (20, 18)


def test_held_out_documents_that_are_alike_stay_and_are_counted(tmp_path: Path) -> None:
    # Low hashes are held out.
    shared = next(text for text in OWN if max(digest_of(text), digest_of(text.upper())) < "8")
    sources = {"web": [shared, *OWN[50:54]], "news": [shared.upper(), *OWN[54:58]]}
    recipe = mixture(tmp_path, sources, heldout_fraction=0.95)
    corpora = cleaned(recipe)
    assert shared in by_text(corpora["corpus.web"], "heldout")
    assert shared.upper() in by_text(corpora["corpus.news"], "heldout")

    overlap = compared(recipe, "news", corpora)

    assert excluded(overlap) == []
    assert stats(overlap)["heldout"] == {"documents": 4, "alike": 1}


def test_a_run_that_many_documents_hold_is_a_common_phrase(tmp_path: Path) -> None:
    footer = "Bu mətnin bütün hüquqları qorunur və icazəsiz heç bir yerdə dərc edilə bilməz."
    web = [f"{text} {footer}" for text in OWN[:10]]
    few = [*(f"{text} {footer}" for text in OWN[20:29]), *OWN[30:45]]
    many = [f"{text} {footer}" for text in OWN[20:45]]

    for texts_of_news, num_excluded in ((few, True), (many, False)):
        recipe = mixture(
            tmp_path / str(num_excluded),
            {"web": web, "news": texts_of_news},
            heldout_max_documents=1,
            max_shared=1,
        )
        overlap = compared(recipe, "news", cleaned(recipe))

        counts = stats(overlap)
        assert (counts["documents"] - counts["remaining"] > 0) is num_excluded
        assert (counts["boilerplate"]["documents"] > 10) is not num_excluded


def test_a_list_that_stays_the_same_is_the_same_artifact_for_its_reader(tmp_path: Path) -> None:
    news = [OWN[3], *OWN[30:50]]
    digests, heldout = set[str](), set[str]()
    for number, web in enumerate((OWN[:20], OWN[:24], [*OWN[:20], edited(OWN[3])])):
        recipe = mixture(tmp_path / str(number), {"web": web, "news": news})
        corpora = cleaned(recipe)
        overlap = compared(recipe, "news", corpora)
        manifest = read_manifest(str(overlap))
        assert manifest is not None
        digests.add(manifest.digest)
        heldout.add(manifest.key)

    assert len(heldout) == 3
    assert len(digests) == 1


def test_kernels_are_loaded_before_processes_are_copies_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    class Noting(InThisProcess):
        def __enter__(self) -> Self:
            steps.append("processes")
            return self

    recipe = mixture(tmp_path, {"web": OWN[:20], "news": OWN[20:40]})
    corpora = cleaned(recipe)
    monkeypatch.setattr("anadil.overlap.run.executor_of_this_program", lambda _: Noting())
    monkeypatch.setattr("anadil.overlap.run.runs_of", lambda _: steps.append("kernels"))

    compared(recipe, "news", corpora)

    assert steps == ["kernels", "processes"]


def test_the_order_of_sources_decides_and_is_part_of_the_key(tmp_path: Path) -> None:
    web, news = OWN[:20], [*OWN[2:6], *OWN[30:50]]
    recipe = mixture(tmp_path, {"web": web, "news": news})
    corpora = cleaned(recipe)
    turned = recipe.model_copy(update={"sources": dict(reversed(recipe.sources.items()))})

    first = compared(recipe, "news", corpora)
    second = compared(turned, "news", dict(reversed(corpora.items())))

    assert first != second
    assert stats(first)["left_out"].get("duplicate", 0) >= 3
    assert "duplicate" not in stats(second)["left_out"]


def test_a_source_of_which_nothing_is_left_is_refused_and_a_large_loss_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    twice = mixture(tmp_path / "twice", {"web": OWN[:20], "news": OWN[:20]})

    with pytest.raises(
        DataError,
        match=r"sources\.news: .*: all of its 19 documents stand in other sources, too \(19 in web\), so nothing is left "
        r"to train on; name other files in sources\.news\.inputs",
    ):
        compared(twice, "news", cleaned(twice))

    most = mixture(tmp_path / "most", {"web": OWN[:20], "news": [*OWN[:20], *OWN[30:35]]})
    assert stats(compared(most, "news", cleaned(most)))["remaining"] > 0
    assert "sources may be named twice" in caplog.text


def test_corpora_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    recipe = mixture(tmp_path, {"web": OWN[:10], "news": OWN[10:20]})
    corpora = cleaned(recipe)

    with pytest.raises(RecipeError, match="fewer than two sources"):
        compared(recipe, "news", {"corpus.news": corpora["corpus.news"]})
    settings = {"news": {"inputs": ["b"], "clean": {"minhash_shingle": 4}}}
    with pytest.raises(
        RecipeError, match=r"sources\.news\.clean: .* \(14, 8, 4\).* sources\.web \(14, 8, 5\)"
    ):
        parse_recipe(json.dumps({"sources": {"web": {"inputs": ["a"]}, **settings}}), "recipe")
    others = mixture(tmp_path / "others", {"web": OWN[:10], "news": OWN[10:20]}, minhash_bands=7)
    with pytest.raises(
        DataError, match=r"other settings \(bands 14 there and 7 here\).*clean source web again"
    ):
        compared(others, "news", corpora)
    made_before = Path(shutil.copytree(corpora["corpus.web"], tmp_path / "before"))
    manifest = json.loads((made_before / "manifest.json").read_text("utf-8"))
    for name in [name for name in manifest["files"] if name.startswith("index/")]:
        (made_before / name).unlink()
        del manifest["files"][name]
        manifest["varying"].remove(name)
    del manifest["seal"]
    (made_before / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(DataError, match=r"no index to compare it with.*clean source web again"):
        compared(recipe, "news", {**corpora, "corpus.web": str(made_before)})


def test_a_recipe_with_fewer_than_two_sources_goes_without_the_stage(tmp_path: Path) -> None:
    two = mixture(tmp_path, {"web": OWN[:2], "news": OWN[2:4]})

    assert [step.name for step in flow_of(two) if step.stage.name == "overlap"] == [
        "overlap-web",
        "overlap-news",
    ]
    for recipe in (Recipe(), mixture(tmp_path, {"web": OWN[:2]})):
        assert "overlap" not in {step.stage.name for step in flow_of(recipe)}


@pytest.mark.parametrize("num_workers", [matrix(1), 3])
def test_a_killed_run_resumes_and_workers_decide_nothing(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.shards.since.INDEX_DOCUMENTS", 7)
    monkeypatch.setattr("anadil.clean.dedup.sorted_documents.PART_DOCUMENTS", 11)
    recipe = mixture(tmp_path, {"web": OWN[:30], "news": [*OWN[20:50], edited(OWN[2])]})
    corpora = cleaned(recipe)
    expected = compared(recipe, "news", corpora)
    monkeypatch.setattr(
        "anadil.overlap.run.executor_of_this_program", lambda _: processes.Processes(num_workers)
    )
    out = tmp_path / "again"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr("anadil.overlap.run.find_alike", killed)
        with pytest.raises(KeyboardInterrupt):
            execute(STAGES["overlap"], recipe.of_source("news"), corpora, (), str(out))
    work = tmp_path / "again.work/overlap"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("keys.npy")}
    assert len(before) > 4
    changed: list[Path] = []

    def observed(*arguments: Any) -> None:
        changed.extend(path for path, when in before.items() if path.stat().st_mtime_ns != when)
        find_alike(*arguments)

    monkeypatch.setattr("anadil.overlap.run.find_alike", observed)

    execute(STAGES["overlap"], recipe.of_source("news"), corpora, (), str(out))

    assert changed == []
    for name in ("excluded.jsonl", "overlap.json"):
        assert (out / name).read_bytes() == (expected / name).read_bytes()
    assert len(excluded(out)) >= 10


def test_an_index_of_another_corpus_is_refused(tmp_path: Path) -> None:
    recipe = mixture(tmp_path, {"web": OWN[:10], "news": OWN[10:20]})
    corpora = cleaned(recipe)
    mixed = Path(shutil.copytree(corpora["corpus.web"], tmp_path / "mixed"))
    shutil.copyfile(Path(corpora["corpus.news"]) / "index/part-00000.npy", mixed / "index/part-00000.npy")
    manifest = json.loads((mixed / "manifest.json").read_text("utf-8"))
    manifest["files"]["index/part-00000.npy"] = file_entry(mixed / "index/part-00000.npy")
    del manifest["seal"]
    (mixed / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    with pytest.raises(IntegrityError, match=r"mixed: its index lacks document [0-9a-f]{32} of the corpus"):
        compared(recipe, "news", {**corpora, "corpus.web": str(mixed)})


def test_the_command_line_names_the_corpus_of_each_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = mixture(tmp_path, {"web": OWN[:10], "news": [*OWN[10:20], OWN[2]]})
    path = tmp_path / "recipe.json"
    path.write_text(recipe.model_dump_json(), encoding="utf-8")
    corpora = cleaned(recipe)
    command = ["--recipe", str(path), "--source", "news", *options_of(corpora)]

    assert main("overlap", command) == 0

    assert Path(capsys.readouterr().out.strip()) == compared(recipe, "news", corpora)
    assert main("overlap", command[:-2]) == RecipeError.exit_code


def test_equal_text_of_a_language_without_spaces_is_found_in_one_with_spaces(tmp_path: Path) -> None:
    """Their keys differ, and their ids do not."""
    words = mixture(tmp_path, {"web": OWN[:5], "news": OWN[5:10]})
    corpora = cleaned(words)
    index = Path(shutil.copytree(corpora["corpus.news"], tmp_path / "other_keys"))
    theirs = np.load(Path(corpora["corpus.web"]) / "index/part-00000.npy")
    ours = np.load(index / "index/part-00000.npy")
    train = {int(each.id[:16], 16) for each in read_documents(Path(corpora["corpus.web"]), "train")}
    row = theirs[[high in train for high in theirs["id_high"].tolist()]][:1].copy()
    row["exact_high"], row["exact_low"], row["bands"] = 1, 2, 3
    np.save(index / "index/part-00000.npy", np.sort(np.concatenate((ours, row)), order=("id_high", "id_low")))
    manifest = json.loads((index / "manifest.json").read_text("utf-8"))
    manifest["files"]["index/part-00000.npy"] = file_entry(index / "index/part-00000.npy")
    del manifest["seal"]
    (index / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    rows = excluded(compared(words, "news", {**corpora, "corpus.news": str(index)}))

    assert [(each["reason"], each["of_id"][:16]) for each in rows] == [
        ("duplicate", f"{int(row['id_high'][0]):016x}")
    ]


def test_a_pair_that_holds_held_out_text_is_left_out_in_both_directions(tmp_path: Path) -> None:
    # One of the two texts is held out, and a pair quotes each.
    quoting = [
        ("Last night a strong wind blew in the city and some trees fell.", AZERBAIJANI.split(". ")[0]),
        ("My grandmother baked bread every Sunday and we listened to her tales.", ANOTHER.split(". ")[0]),
    ]
    recipe = recipe_of_pairs(tmp_path, write_pairs(tmp_path / "a.tsv", [*PAIRS, *quoting]))
    write_jsonl(tmp_path / "web.jsonl", [ANOTHER, AZERBAIJANI])
    corpora = cleaned(recipe)

    overlap = compared(recipe, "pairs", corpora)

    [heldout] = read_documents(Path(corpora["corpus.web"]), "heldout")
    [quoted] = [azerbaijani for _, azerbaijani in quoting if azerbaijani in heldout.text]
    [row] = excluded(overlap)
    train = list(read_documents(Path(corpora["corpus.pairs"]), "train"))
    assert [quoted in each.text for each in train if each.id == row["id"]] == [True, True]
    assert (row["reason"], row["of"]) == ("heldout", "web")
    counts = json.loads((overlap / "overlap.json").read_text(encoding="utf-8"))
    num_pairs = len({each.id for each in train})
    assert (counts["documents"], counts["remaining"]) == (num_pairs, num_pairs - 1)
    assert counts["heldout"]["documents"] == len(PAIRS) + 2 - num_pairs
