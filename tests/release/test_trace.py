"""From a model back to every document: chains by verified digests, and where they break."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.cli import main
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release.compare.comparison import find_facts
from anadil.release.trace import corpus_rows
from anadil.release.trace.chain import Chain, Trace, TrainedText, trace, trained_corpora
from anadil.release.trace.training_summary import is_unidentified, listed_domains, training_summary
from anadil.report.model_card import model_card
from anadil.runtime.execute import execute
from anadil.runtime.executors.engines import LOCAL_ENGINES
from tests.kit import clean_stage
from tests.kit.clean_inputs import texts
from tests.kit.texts import TURKISH
from tests.report.test_page import HOSTILE

PLANTED = 1_000
LICENCES = ("CC BY 4.0", "own work", None)
Json = dict[str, Any]


def row(place: int, text: str) -> Json:
    """A planted document, at an address of its own."""
    licence = LICENCES[place % 3]
    named = {} if licence is None else {"license": licence}
    return {"text": text, "url": f"https://host{place % 40}.example/{place}"} | named


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus by the real stage, and a model and an adapter that name it; a directory with `raw/` and `root/`."""
    folder = tmp_path_factory.mktemp("trace")
    raw = folder / "raw"
    raw.mkdir()
    own = [row(place, text) for place, text in enumerate(texts(PLANTED))]
    for number in range(2):
        lines = [*own[number::2], {"text": TURKISH, "url": "https://tr.example/"}]
        (raw / f"{number}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
        )
    (raw / "chats.jsonl").write_text("{}\n", encoding="utf-8")
    told = {
        "clean": {"inputs": [f"{raw}/0.jsonl", f"{raw}/1.jsonl"], "heldout_fraction": 0.05},
        "storage": {"root": str(folder / "root")},
        "tracking": {"uri": "off"},
    }
    recipe = parse_recipe(json.dumps(told), "recipe")
    corpus = execute(STAGES["clean"], recipe, {}, (), None, {"processes": clean_stage.executor})
    origin = {"input corpus": corpus.manifest.digest, "recipe base.model": '"org/base-1B"'}
    dumped = recipe.model_dump(mode="json") | {"base": {"model": "org/base-1B", "revision": None}}
    model = seal(folder / "root/model", "model", origin, dumped, "model.safetensors")
    chats = str(raw / "chats.jsonl")
    more = {"input model": model, f"file {chats}": storage.LocalStore().fingerprint(chats)}
    more[f"file {chats} of evaluate.questions"] = more[f"file {chats}"]
    seal(folder / "root/adapter", "adapter", more, dumped, "merged/model.safetensors")
    return folder


def seal(place: Path, kind: str, origin: dict[str, str], told: Json, weights: str) -> str:
    """An artifact of a stage that costs too much here; its digest."""
    out = place / artifact.origin_key(origin)
    (out / weights).parent.mkdir(parents=True)
    (out / weights).write_bytes(random.Random(kind).randbytes(10_000))
    return artifact.seal(out, kind=kind, origin=origin, recipe=told).digest


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """One to break; its recipe still names the other root, which is away."""
    root = tmp_path / "copy"
    shutil.copytree(made / "root", root)
    return root


def only(place: Path) -> Path:
    (found,) = (each for each in place.iterdir() if each.suffix == "")
    return found


def adapter_of(root: Path) -> str:
    return str(only(root / "adapter"))


@pytest.fixture(scope="module")
def found(made: Path) -> Trace:
    questions = [f"https://host{place % 40}.example/{place}" for place in range(PLANTED)]
    return trace(adapter_of(made / "root"), documents=[*questions, "0.jsonl:501", "nobody"])


def test_every_one_of_a_thousand_planted_documents_is_found_and_the_chain_is_verified(found: Trace) -> None:
    planted = found.documents[:PLANTED]

    assert (found.breaks, found.gaps) == ((), ())
    assert [each.word for each in found.links] == ["adapter", "model", "corpus"]
    assert {each.state for each in planted} == {"trained on", "held out"}
    assert sum(each.state == "trained on" for each in planted) == found.stats["records"]["train"]
    assert all(each.question == each.url and len(each.id) == 32 for each in planted)
    sources = {f"{place % 2}.jsonl:{place // 2 + 1}" for place in range(PLANTED)}
    assert {each.source for each in planted} == sources
    dropped, strange = found.documents[PLANTED:]
    assert (dropped.state, dropped.reason) == ("dropped", "language")
    assert strange.state == "not found"


def test_a_document_is_named_by_the_path_of_its_source_file_which_is_no_list_of_questions(made: Path) -> None:
    raw = made / "raw"

    documents = trace(adapter_of(made / "root"), documents=[f"{raw}/0.jsonl:501", f"{raw}/0.jsonl"]).documents

    assert [(each.question, each.state) for each in documents] == [
        ("0.jsonl:501", "dropped"),
        ("0.jsonl", "not found"),
    ]


def test_files_are_told_with_documents_licences_and_rules(made: Path, found: Trace) -> None:
    corpus = found.corpora[0]
    first = corpus.files[0]

    assert [file.uri for file in found.files if file.key == "clean.inputs"] == [
        f"{made}/raw/{n}.jsonl" for n in (0, 1)
    ]
    assert {(file.key, file.state) for file in found.files if file.read_by == "adapter"} == {
        ("finetune.inputs", "verified"), ("evaluate.questions", "verified")
    }  # fmt: skip
    assert (first.name, first.documents, first.dropped) == ("0.jsonl", PLANTED // 2, {"language": 1})
    assert sum(file.licences["CC BY 4.0"] for file in corpus.files) == 334
    assert sum(file.words for file in corpus.files) == found.stats["words_out"]
    assert corpus.num_hosts == 40


def test_questions_may_be_ids_sources_and_lines_of_a_file(
    made: Path, tmp_path: Path, found: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = found.documents[:3]
    asked = tmp_path / "asked.jsonl"
    asked.write_text(f"{json.dumps({'url': first.url})}\n\n{second.source}\n", encoding="utf-8")

    answers = trace(adapter_of(made / "root"), documents=[str(asked), third.id]).documents

    assert [each.id for each in answers] == [first.id, second.id, third.id]
    asked.write_text('{"name": "x"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"asked\.jsonl:1: names no document"):
        trace(adapter_of(made / "root"), documents=[str(asked)])
    asked.write_text('x\n{"url": ', encoding="utf-8")
    with pytest.raises(DataError, match=r"asked\.jsonl:2: not JSON"):
        trace(adapter_of(made / "root"), documents=[str(asked)])
    monkeypatch.setattr(corpus_rows, "MAX_QUESTIONS", 2)
    asked.write_text("a\nb\nc\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"asked\.jsonl: names more than 2 documents"):
        trace(adapter_of(made / "root"), documents=[str(asked)])


@pytest.mark.parametrize("start", ["merged", "export"])
def test_a_merged_directory_and_an_export_lead_to_their_artifact(
    made: Path, tmp_path: Path, start: str
) -> None:
    adapter = adapter_of(made / "root")
    uri = str(tmp_path / "hub") if start == "export" else f"{adapter}/merged"
    if start == "export":
        shutil.copytree(f"{adapter}/merged", uri)
        (tmp_path / "hub/consolidated.safetensors").write_bytes(b"of another format")

    assert trace(uri, roots=[str(made / "root")]).uri == adapter


def test_an_export_of_nobody_and_other_artifacts_are_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")

    with pytest.raises(DataError, match="no artifact with these weights lies below the storage roots"):
        trace(str(tmp_path), roots=[str(made / "root")])
    with pytest.raises(DataError, match="holds a corpus, not a model"):
        trace(str(only(made / "root/corpus")))


def test_a_token_in_a_uri_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["trace", "s3://user:secret@bucket/model"]) == 2

    assert "secret" not in "".join(capsys.readouterr())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "broken",
    ["adapter/*/merged/model.safetensors", "model/*/model.safetensors", "corpus/*/train/part-00000.jsonl.zst", "corpus/*/stats/part-00000.parquet"],
)  # fmt: skip
def test_one_changed_byte_is_named_and_ends_with_exit_code_5(
    copied: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = copied.glob(broken)
    flip(path)

    assert main.main(["trace", adapter_of(copied), "--document", "nobody"]) == 5

    out, err = capsys.readouterr()
    assert "CHANGED" in out
    assert f"{path}: differs from its manifest" in err
    assert ("unknown        nobody" in out) == broken.startswith(("corpus", "model"))


def test_a_manifest_that_names_other_sources_than_it_was_made_from_is_told(copied: Path) -> None:
    path = only(copied / "corpus") / "manifest.json"
    text = path.read_text(encoding="utf-8").replace("/0.jsonl", "/9.jsonl")
    path.write_text(re.sub(r',\s*"seal": "\w+"', "", text), encoding="utf-8")

    with pytest.raises(IntegrityError, match="its key is not that of what it says that it was made from"):
        trace(adapter_of(copied)).check()


def test_a_changed_source_file_is_told_and_one_that_is_gone_is_known_by_its_digest(
    made: Path, copied: Path
) -> None:
    first, second = made / "raw/0.jsonl", made / "raw/1.jsonl"
    content = first.read_bytes()
    try:
        first.write_bytes(content + b"\n")
        second.rename(made / "away")
        found = trace(adapter_of(copied))
    finally:
        first.write_bytes(content)
        (made / "away").rename(second)

    assert [text.partition(": ")[0] for text in found.breaks] == [str(first)]
    assert [file.state for file in found.files if file.key == "clean.inputs"] == ["changed", "missing"]


def test_where_the_chain_ends_is_told_with_the_digest_that_is_missing(
    made: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "anadil.release.trace.chain.roots_of",
        lambda place, _manifest, more: [str(Path(place).parents[1]), *more],
    )
    away = copied.parent / "away/corpus"
    away.parent.mkdir()
    (copied / "corpus").rename(away)

    assert main.main(["trace", adapter_of(copied)]) == 3
    err = capsys.readouterr().err
    assert "the model was made from the corpus" in err
    assert "--root" in err
    assert main.main(["trace", adapter_of(copied), "--root", str(away.parent)]) == 0


def test_the_command_writes_summary_and_list(
    made: Path, found: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, listed = (tmp_path / name for name in ("s.md", "l.jsonl"))
    more = ["--summary", str(summary), "--list", str(listed)]

    assert main.main(["trace", adapter_of(made / "root"), "-o", "json", *more]) == 0

    told = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in listed.read_text(encoding="utf-8").splitlines()]
    assert told["links"][-1]["word"] == "corpus"
    assert len(rows) == found.stats["records"]["train"] < PLANTED
    assert {"id", "source", "url"} == rows[0].keys()
    assert "TO BE FILLED IN" in summary.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.jsonl", "s.md"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_documents_stays_text(found: Trace, text: str) -> None:
    corpus = found.corpora[0]
    hostile = replace(
        found,
        files=(replace(found.files[0], name=text, key="clean.inputs"),),
        corpora=(
            replace(
                corpus,
                files=(replace(corpus.files[0], name=text, licences={text: 3}, dropped={text: 1}),),
                hosts=(replace(corpus.hosts[0], host=text),),
                words_by_licence={text: 9},
            ),
        ),
        documents=(replace(found.documents[0], question=text, source=text),),
    )

    summary = training_summary(hostile)

    assert "<script>" not in summary
    assert "<svg" not in summary


def test_the_summary_lists_a_tenth_of_the_domains_and_of_small_providers_a_twentieth(found: Trace) -> None:
    assert len(listed_domains(found)[0]) == 4
    assert len(listed_domains(found, is_sme=True)[0]) == 2
    assert 0.05 < listed_domains(found, is_sme=True)[2] < 0.1


def test_hosts_are_counted_on_disk_whatever_the_pieces(
    made: Path, found: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_rows, "BATCH_ROWS", 7)
    corpus = str(only(made / "root/corpus"))
    manifest = artifact.finished_manifest(corpus, "corpus")

    assert corpus_rows.sum_rows(corpus, manifest) == found.corpora[0]


def test_artifacts_in_s3_are_compared_where_they_lie(made: Path, copied: Path, bucket: str) -> None:
    root = f"{bucket}/root"
    for place in [each for each in copied.glob("*/*") if (each / "manifest.json").is_file()]:
        uri = f"{root}/{place.relative_to(copied)}"
        storage.store(uri).put_directory(place, uri)
    adapter = f"{root}/adapter/{only(made / 'root/adapter').name}"
    first = "https://host0.example/0"

    whole = trace(adapter, documents=[first])
    weights = f"{root}/model/{only(made / 'root/model').name}/model.safetensors"
    content = storage.store(weights).read(weights)
    storage.store(weights).write(weights, content[:-1] + b"?")

    assert {each.uri.startswith(bucket) for each in whole.links} == {True}
    assert (whole.breaks, whole.gaps) == ((), ())
    assert whole.documents[0].url == first
    assert f"{weights}: differs from its manifest" in trace(adapter).breaks[0]


def test_models_trained_one_after_another_are_traced_to_the_first_and_list_no_text_twice(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOCAL_ENGINES, "processes", clean_stage.executor)
    first, since = only(copied / "model"), str(only(copied / "corpus"))
    champion = artifact.finished_manifest(str(first), "model")
    new = tmp_path / "new.jsonl"
    rows_ = [row(PLANTED + place, text) for place, text in enumerate(texts(PLANTED + 20)[PLANTED:])]
    new.write_text("".join(json.dumps(each) + "\n" for each in rows_), encoding="utf-8")
    told = {
        "clean": {"inputs": [str(new)], "heldout_fraction": 0.05, "since": since},
        "storage": {"root": str(copied)}, "tracking": {"uri": "off"},
    }  # fmt: skip
    corpus = execute(STAGES["clean"], parse_recipe(json.dumps(told), "r"), {}, (), None)
    origin = {"input corpus": corpus.manifest.digest, "input pretrain.start_from": champion.digest}
    last = copied / "model" / artifact.origin_key(origin)
    last.mkdir()
    (last / "model.safetensors").write_bytes(b"week 2")
    # The champion was moved since.
    begin = {"place": str(tmp_path / "away"), "digest": champion.digest, "step": 0, "run": ""}
    (last / "training.json").write_text(json.dumps({"start_from": begin}), encoding="utf-8")
    artifact.seal(last, kind="model", origin=origin, recipe=told)

    whole = trace(str(last), documents=["https://host0.example/0", "https://host19.example/1019"])

    listed = [each["url"] for each in whole.list_documents()]
    assert (whole.breaks, whole.gaps) == ((), ())
    assert [each.word for each in whole.links].count("model") == 2
    assert whole.stats["records"]["train"] == len(listed) == len(set(listed))
    assert {(each.state, each.others) for each in whole.documents} <= {("trained on", 0), ("held out", 0)}
    assert {each.name for each in whole.files} >= {"new.jsonl", "0.jsonl", "1.jsonl"}
    new.write_text("{}\n", encoding="utf-8")
    shutil.rmtree(since)
    broken = trace(str(last))
    assert [each.name for each in broken.files if each.state == "changed"] == ["new.jsonl"]
    assert f"none with that digest lies in {copied}/corpus" in broken.gaps[0]


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


def test_the_summary_knows_sources_whose_language_was_not_checked() -> None:
    assert not is_unidentified({"language": "en", "clean": {"rules": {"min_words": 3}}})
    assert not is_unidentified({"language": None, "clean": {"rules": {}}})
    assert all(map(is_unidentified, ({"language": "none"}, {"clean": {"rules": "none"}})))


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
