"""The stage encode, and what training makes of its tokens."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from anadil.artifacts import artifact
from anadil.artifacts.base_model import read_tokenizer
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.pretrain.data.training_tokens import check_tokenizer, tokens_of
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job, Stream
from anadil.runtime.planned_artifact import planned_artifact
from anadil.text.corpus import read_documents, write_documents
from anadil.tokens.tokens_file import read_facts
from tests.kit.one_text import ONE_TEXT
from tests.kit.parallel import PAIRS, recipe_of_pairs, write_pairs
from tests.kit.pretraining import make_corpus, make_documents, make_tokenizer_artifact, set_bos
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.sources import make_sources_recipe
from tests.kit.tokens import tokens_of_corpus


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer_artifact(tmp_path / "tokenizer")


def test_tokens_given_and_tokens_of_the_corpus_lead_to_the_same_artifact_and_are_compared(
    tmp_path: Path, tokenizer: Path
) -> None:
    corpus, other = make_corpus(tmp_path / "corpus"), make_corpus(tmp_path / "other", PRETRAINING_TEXTS[:2])
    recipe = Recipe.model_validate(
        {
            "base": {"model": "tiny"},
            "pretrain": {"sequence_length": 32},
            "storage": {"root": str(tmp_path / "root")},
        }
    )
    inputs = {"corpus": str(corpus), "tokenizer": str(tokenizer)}
    made = execute.execute(STAGES["encode"], recipe, inputs, (), None)

    of_corpus = planned_artifact(STAGES["pretrain"], recipe, inputs, (), None)
    of_tokens = planned_artifact(
        STAGES["pretrain"], recipe, {"tokens": made.uri, "tokenizer": str(tokenizer)}, (), None
    )

    assert of_tokens.key == of_corpus.key
    assert of_tokens.origin == of_corpus.origin
    strangers = {"tokens": made.uri, "tokenizer": str(tokenizer), "corpus": str(other)}
    with pytest.raises(IntegrityError, match=r"is made from the corpus \w{16}, and .*other is the corpus"):
        planned_artifact(STAGES["pretrain"], recipe, strangers, (), None)


def test_a_stage_that_encodes_by_itself_leaves_out_what_overlap_lists_for_the_source(
    tmp_path: Path, tokenizer: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus.web")
    first = next(read_documents(corpus, "train")).id
    overlap = tmp_path / "overlap.web"
    overlap.mkdir()
    (overlap / "excluded.jsonl").write_text(f'{{"id": "{first}", "reason": "duplicate"}}\n', encoding="utf-8")
    artifact.seal(overlap, kind="overlap", origin={}, recipe={})
    recipe = make_sources_recipe(tmp_path / "model")
    inputs = {"corpus.web": corpus, "tokenizer": tokenizer, "overlap.web": overlap}
    job = Job(recipe=recipe, inputs=inputs, out=tmp_path / "out", work=tmp_path / "work", base_cache=tmp_path)

    tokens = tokens_of(job, "web", write=True)

    assert tokens.facts.left_out["duplicate"] == 1


def test_both_directions_of_pairs_are_documents_of_the_tokens(tmp_path: Path, tokenizer: Path) -> None:
    recipe = recipe_of_pairs(tmp_path, write_pairs(tmp_path / "a.tsv", PAIRS)).of_source("pairs")
    corpus = execute.execute(STAGES["clean"], recipe, {}, (), None)

    made = execute.execute(
        STAGES["encode"], recipe, {"corpus": corpus.uri, "tokenizer": str(tokenizer)}, (), None
    )

    assert made.manifest.records == corpus.manifest.records
    assert sum(made.manifest.records.values()) == 2 * len(PAIRS)
    facts = read_facts(made.uri, made.manifest)
    assert (facts.source, facts.language) == ("pairs", "en-az")


def test_the_stage_makes_the_bytes_that_training_makes_by_itself(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", heldout=PRETRAINING_TEXTS[:2])
    recipe = Recipe.model_validate(
        {"pretrain": {"sequence_length": 32}, "storage": {"root": str(tmp_path / "root")}}
    )
    own = Path(tokens_of_corpus(corpus, tokenizer, tmp_path / "work").uri)

    made = execute.execute(
        STAGES["encode"], recipe, {"corpus": str(corpus), "tokenizer": str(tokenizer)}, (), None
    )

    files = sorted(made.manifest.files)
    assert files == sorted(
        path.relative_to(own).as_posix() for path in own.rglob("*.*") if path.name != "manifest.json"
    )
    assert [(own / name).read_bytes() for name in files] == [
        (Path(made.uri) / name).read_bytes() for name in files
    ]
    artifact.verify_files(Path(made.uri), made.manifest, made.uri)
    assert made.manifest.records == {"train": len(PRETRAINING_TEXTS), "heldout": 2}


def test_tokens_of_another_tokenizer_or_length_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    tokens = tokens_of_corpus(corpus, tokenizer, tmp_path / "work")
    other = make_tokenizer_artifact(tmp_path / "other", vocab_size=290)
    manifest = artifact.finished_manifest(tokens.uri, "work")
    recipe = Recipe.model_validate({"pretrain": {"sequence_length": 64}})
    job = Job(
        recipe=recipe, inputs={"tokenizer": tokenizer}, out=tmp_path, work=tmp_path, base_cache=tmp_path,
        streams={"tokens": Stream(uri=tokens.uri, manifest=manifest)},
    )  # fmt: skip

    with pytest.raises(IntegrityError, match=r"are packed for sequences of 32 tokens.*sequence_length is 64"):
        tokens_of(job, write=True)
    with pytest.raises(IntegrityError, match=r"are tokens of the tokenizer \w{16}, and .*other is"):
        check_tokenizer(tokens.facts, tokens.uri, other)
    # As if transformers read the same directory in another way.
    set_bos(tokenizer)
    with pytest.raises(IntegrityError, match="transformers reads its tokenizer in another way"):
        check_tokenizer(tokens.facts, tokens.uri, tokenizer)


def test_the_key_of_a_model_is_that_of_earlier_releases() -> None:
    files: dict[str, dict[str, str | int]] = {"a": {"bytes": 1, "sha256": "00"}}
    made = {
        word: artifact.Manifest(kind=word, key="k", origin={}, files=files)
        for word in ("corpus", "tokenizer")
    }
    made_from = {f"input {word}": manifest.digest for word, manifest in made.items()}
    tokens = artifact.Manifest(kind="tokens", key="k", origin=made_from, files=files)

    origin = stage_origin(
        STAGES["pretrain"],
        load_recipe("smoke", [ONE_TEXT]),
        {"tokens": tokens, "tokenizer": made["tokenizer"]},
        (),
    )

    # Where it changes, every finished model is made again: only `result_version` of pretrain may change it.
    assert artifact.origin_key(origin) == "c82f70f308575d48"


def test_encoding_in_this_process_leaves_the_guard_of_forks(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)

    tokens_of_corpus(make_corpus(tmp_path / "corpus"), tokenizer, tmp_path / "work")

    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.mark.parametrize("source", ["web", "self"])
def test_control_tokens_are_read_in_what_the_base_wrote_and_in_no_other_text(
    tmp_path: Path, tokenizer: Path, source: str
) -> None:
    recipe = Recipe.model_validate_json(
        json.dumps({
            "language": "az",
            "sources": {"web": {"inputs": ["w.jsonl"]}, "self": {"written_by": "base", "tokens": 1000}},
            "pretrain": {
                "sequence_length": 32,
                "phases": [{"trains": "all", "steps": 1, "lr": 1e-3, "mix": {"web": 1, "self": 1}}],
            },
            "storage": {"root": str(tmp_path / "root")},
        })
    ).of_source(source)  # fmt: skip
    corpus = tmp_path / "corpus"
    write_documents(
        corpus, "train", [replace(each, lang=recipe.language) for each in make_documents([CHAT] * 9)]
    )
    write_documents(corpus, "heldout", [])
    artifact.seal(corpus, kind="corpus", origin={}, recipe=recipe.model_dump(mode="json"))

    made = execute.execute(
        STAGES["encode"], recipe, {"corpus": str(corpus), "tokenizer": str(tokenizer)}, (), None
    )

    words = read_tokenizer(tokenizer)
    shard = load_file(Path(made.uri) / "train/part-00000.safetensors")
    ids = shard["ids"][: shard["starts"][1]].tolist()[1:-1]
    end = words.token_to_id("<|eot_id|>")
    assert ids.count(end) == (2 if source == "self" else 0)
    assert words.decode(ids, skip_special_tokens=False) == CHAT


CHAT = "Salam!<|eot_id|>Salam, necəsən?<|eot_id|>"
