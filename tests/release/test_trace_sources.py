"""The chain behind a model of several sources, on small sealed artifacts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.recipe.sections import Recipe
from anadil.release.compare.run_facts import find_facts
from anadil.release.trace.lineage import Chain, TrainedText, trace, trained_corpora
from anadil.release.trace.training_summary import is_unidentified, training_summary
from anadil.report.model_card import model_card


def sealed(root: Path, kind: str, key: str, origin: dict[str, str], text: str) -> Manifest:
    folder = root / kind / key
    folder.mkdir(parents=True)
    (folder / "stats.json").write_text(text, encoding="utf-8")
    recipe = {"language": "az", "base": {"model": "tiny"}, "sources": {"web": {}, "en": {}}}
    return artifact.seal(folder, kind=kind, origin=origin, recipe=recipe)


def run_of_two(root: Path) -> tuple[str, Manifest]:
    """A model that was made from the corpora `web` and `en`."""
    origin = {}
    for name, kept in (("en", 3), ("web", 4)):
        file = root / f"{name}.jsonl"
        file.write_text(name, encoding="utf-8")
        made_of = {f"file {file}": artifact.file_entry(file)["sha256"]}
        text = f'{{"in": 9, "kept": {kept}, "words_out": 10}}'
        origin[f"input corpus.{name}"] = sealed(root, "corpus", name, made_of, text).digest  # type: ignore[arg-type]
    return str(root / "model" / "m"), sealed(root, "model", "m", origin, "{}")


def test_the_chain_of_a_model_finds_the_corpus_of_every_source(tmp_path: Path) -> None:
    chain = Chain([str(tmp_path)])

    chain.follow(*run_of_two(tmp_path))

    assert [(link.word, link.state) for link in chain.links] == [
        ("model", "verified"), ("corpus.en", "verified"), ("corpus.web", "verified"),
    ]  # fmt: skip
    assert {file.key: (file.state, file.is_text) for file in chain.files} == {
        "sources.en.inputs": ("verified", True), "sources.web.inputs": ("verified", True),
    }  # fmt: skip
    assert len(trained_corpora(chain.whole)) == 2
    # With one of them gone nobody knows which documents the model has seen.
    assert trained_corpora(chain.whole[:-1]) == []


def test_the_card_of_a_model_lists_the_corpora_beside_it(tmp_path: Path) -> None:
    uri, _ = run_of_two(tmp_path)

    card = model_card(uri)

    rows = [line.split(" | ")[:4] for line in card.splitlines() if line.startswith(("| web |", "| en |"))]
    assert rows == [["| web", "az", "9", "4"], ["| en", "az", "9", "3"]]
    assert "documents kept | 7" in card


def test_comparison_knows_the_corpora_of_a_model(tmp_path: Path) -> None:
    uri, manifest = run_of_two(tmp_path)

    facts = find_facts(uri, None)

    assert set(facts.digests) == {"model", "corpus.web", "corpus.en"}
    assert facts.digests["model"] == manifest.digest


def test_the_summary_states_what_was_done_to_the_text_of_each_source(tmp_path: Path) -> None:
    traced = trace(run_of_two(tmp_path)[0])
    recipe = Recipe.model_validate({"clean": {"pii": False}}).model_dump(mode="json")
    web = recipe | {"clean": recipe["clean"] | {"pii": True, "url_lists": ["/lists/adult"]}}
    counts = {"personal_data": {"EMAIL": 3}}
    texts = (
        TrainedText(source="web", recipe=web, stats=counts),
        TrainedText(source="en", recipe=recipe | {"language": "en"}, stats={}),
    )

    summary = training_summary(replace(traced, texts=texts))

    assert "- web: Placeholders replace personal data" in summary
    assert "Placeholders written: EMAIL 3." in summary
    assert "- en: Personal data was not searched for (clean.pii is off)" in summary
    assert "| addresses that are skipped | web: adult; en: none |" in summary
    assert "| words that drop a document | none |" in summary
    assert "were left out of the text: yes (clean.url\\_lists of web)" in summary
    assert "Azerbaijani (az), English (en); documents identified" in summary


def test_a_trace_knows_the_text_of_each_source(tmp_path: Path) -> None:
    traced = trace(run_of_two(tmp_path)[0])

    assert [(text.source, text.stats["kept"]) for text in traced.texts] == [("en", 3), ("web", 4)]
    assert traced.stats["kept"] == 7


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"language": "en", "clean": {"rules": {"min_words": 3}}}, False),
        ({"language": None, "clean": {"rules": {}}}, False),
        ({"language": "none"}, True),
        ({"clean": {"rules": "none"}}, True),
    ],
)
def test_the_summary_knows_sources_whose_language_was_not_checked(
    source: dict[str, object], *, expected: bool
) -> None:
    assert is_unidentified(source) == expected


def test_a_branch_names_its_checkpoint_and_the_texts_of_the_run_that_wrote_it(tmp_path: Path) -> None:
    run, first = run_of_two(tmp_path)
    place = tmp_path / "step-00000034"
    place.mkdir()
    checkpoint = artifact.seal(place, kind="checkpoint", origin={"input tokenizer": "0"}).digest
    begin = {"place": str(place), "digest": checkpoint, "step": 34, "run": run}

    def chain_of(key: str, begin: dict[str, object]) -> Chain:
        folder = tmp_path / "model" / key
        folder.mkdir()
        (folder / "training.json").write_text(json.dumps({"start_from": begin}), encoding="utf-8")
        corpus = first.origin["input corpus.web"]
        origin = {"input corpus.web": corpus, "input pretrain.start_from": checkpoint, "key": key}
        branch = artifact.seal(folder, kind="model", origin=origin, recipe=first.recipe)
        chain = Chain([str(tmp_path)])
        chain.follow(str(folder), branch)
        return chain

    links = chain_of("one", begin).links

    assert [(each.word, each.needed_by) for each in links] == [
        ("model", ""),
        ("corpus.web", "model"),
        ("checkpoint", "model"),
        ("model", "checkpoint"),
        ("corpus.en", "model"),
    ]
    assert {each.state for each in links} == {"verified"}
    # A model that was moved is found by its key.
    moved = chain_of("two", {**begin, "run": "/elsewhere/model/m"})
    assert [each.uri for each in moved.links[2:4]] == [str(place), run]
    gone = chain_of("three", {**begin, "run": "/elsewhere/model/none"})
    assert "the run of the checkpoint has no finished model there" in gone.links[-1].why
    other = chain_of("four", {**begin, "digest": "0"})
    assert "training.json names another checkpoint than the manifest" in other.links[2].why
    # A run removes its checkpoints: that is no fault of the chain.
    (place / "manifest.json").unlink()
    assert chain_of("five", begin).links[2].state == "unknown"


def test_empty_lists_of_overlap_do_not_lead_to_the_text_of_another_week(tmp_path: Path) -> None:
    corpora = [sealed(tmp_path, "corpus", name, {"name": name}, name) for name in ("early", "late")]
    lists = [
        sealed(tmp_path, "overlap", f"of-{number}", {"input corpus.web": each.digest}, "")
        for number, each in enumerate(corpora)
    ]
    assert lists[0].digest == lists[1].digest
    for number, corpus in enumerate(corpora):
        inputs = {"input overlap.web": lists[0].digest, "input corpus.web": corpus.digest}
        model = sealed(tmp_path, "model", str(number), inputs, str(number))
        chain = Chain([str(tmp_path)])

        chain.follow(str(tmp_path / "model" / str(number)), model)

        places = {link.word: link.uri for link in chain.links}
        assert [link.digest for link in chain.links if link.word == "corpus.web"] == [corpus.digest]
        assert places["overlap.web"] == str(tmp_path / f"overlap/of-{number}")
