"""A retraining encodes new files only: what its champion's tokens hold stays byte for byte."""

from pathlib import Path

import numpy as np
import pytest

from anadil.artifacts import artifact, s3, storage
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.pretrain.data.training_tokens import tokens_of
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job
from anadil.tokens import encode_file as encode_files
from anadil.tokens.encode_file import EncodeTask
from anadil.tokens.tokens_file import EarlierFacts
from tests.kit.pretraining import make_tokenizer_artifact
from tests.kit.weeks import WEEKS, facts_of, ids_of, make_corpus, opened, overlap_of, recipe_of, tokens_made


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer_artifact(tmp_path / "tokenizer")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that are encoded from now on."""
    names: list[str] = []
    encode_file = encode_files.encode_file

    def noted(task: EncodeTask) -> None:
        names.append(f"{task.file.parent.name}/{task.file.name}")
        encode_file(task)

    monkeypatch.setattr(encode_files, "encode_file", noted)
    return names


def test_earlier_shards_and_blocks_stay_and_new_files_alone_are_encoded(
    tmp_path: Path, tokenizer: Path, encoded: list[str]
) -> None:
    corpora = [make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2, 3, 4)]
    before = tokens_made(recipe_of(tmp_path / "root"), corpora[0], tokenizer)

    for number, corpus in enumerate(corpora[1:], 1):
        encoded.clear()
        champion = {"corpus": str(corpora[number - 1]), "tokens": before.uri}
        made = tokens_made(recipe_of(tmp_path / "root", champion), corpus, tokenizer)

        assert encoded == [f"train/part-{number:05}.jsonl.zst"]
        old, facts = facts_of(before), facts_of(made)
        assert facts.train[:-1] == old.train
        assert facts.blocks[:-1] == old.blocks
        assert facts.heldout == old.heldout
        assert facts.earlier == EarlierFacts.of(old.train, old.blocks)
        assert (facts.earlier.shards, facts.earlier.blocks) == (number, number)
        for name in before.manifest.files.keys() - {"tokens.json"}:
            theirs, ours = Path(before.uri) / name, Path(made.uri) / name
            assert theirs.read_bytes() == ours.read_bytes()
            assert theirs.samefile(ours), "a link takes no room"
        before = made

    whole = tokens_made(recipe_of(tmp_path / "whole"), corpora[3], tokenizer)
    assert ids_of(opened(made)) == ids_of(opened(whole))
    tokens = opened(made)
    targets = sum(len(ids) - 1 for ids in ids_of(tokens))
    assert tokens.packed.targets_of(np.arange(tokens.packed.num_sequences)) == targets
    assert '"earlier"' not in (Path(whole.uri) / "tokens.json").read_text("utf-8")


def test_another_champion_is_another_artifact_and_another_model(tmp_path: Path, tokenizer: Path) -> None:
    corpora = [make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2, 3)]
    places = [{"corpus": str(each)} for each in corpora[:2]]
    recipes = [recipe_of(tmp_path / "root", place) for place in (None, *places)]
    made = [tokens_made(recipe, corpora[2], tokenizer) for recipe in recipes]
    words = {"tokenizer": artifact.finished_manifest(str(tokenizer), "tokenizer")}
    corpus = artifact.finished_manifest(str(corpora[2]), "corpus")

    origins = [
        stage_origin(STAGES["pretrain"], recipe, {"tokens": each.manifest, **words}, ())
        for recipe, each in zip(recipes, made, strict=True)
    ]

    assert len({each.uri for each in made}) == 3
    assert len({artifact.origin_key(origin) for origin in origins}) == 3
    # Training that encodes by itself divides the text alike, and is the same model.
    assert origins == [
        stage_origin(STAGES["pretrain"], recipe, {"corpus": corpus, **words}, ()) for recipe in recipes
    ]
    of_source = recipe_of(tmp_path / "root", {"corpus.web": str(corpora[0])}, source=True)
    tokens = tokens_made(of_source, corpora[2], tokenizer).manifest
    origin = stage_origin(STAGES["pretrain"], of_source, {"tokens.web": tokens, **words}, ())
    assert origin["input earlier corpus.web"] == artifact.finished_manifest(str(corpora[0]), "corpus").digest


def test_training_that_encodes_by_itself_divides_the_text_alike(tmp_path: Path, tokenizer: Path) -> None:
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2))
    before = tokens_made(recipe_of(tmp_path / "root", source=True), first, tokenizer)
    champion = {"corpus.web": str(first), "tokens.web": before.uri}
    made = tokens_made(recipe_of(tmp_path / "root", champion, source=True), second, tokenizer)
    job = Job(
        recipe=recipe_of(tmp_path / "root", champion, source=True),
        inputs={"corpus.web": second, "tokenizer": tokenizer},
        out=tmp_path / "out", work=tmp_path / "work", base_cache=tmp_path,
    )  # fmt: skip

    assert tokens_of(job, "web", write=True).facts == facts_of(made)


def test_a_shard_whose_documents_are_left_out_now_is_made_again_with_its_block(
    tmp_path: Path, tokenizer: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.tokens.shard_plan.BLOCK_TOKENS", 1)
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (3, 4))
    lists = [
        overlap_of(tmp_path / "old", WEEKS[0][0]),
        overlap_of(tmp_path / "new", WEEKS[0][0], WEEKS[1][1]),
    ]
    before = tokens_made(recipe_of(tmp_path / "root", source=True), first, tokenizer, overlap=lists[0])
    encoded.clear()
    champion = {"corpus.web": str(first), "tokens.web": before.uri, "overlap.web": str(lists[0])}

    made = tokens_made(
        recipe_of(tmp_path / "root", champion, source=True), second, tokenizer, overlap=lists[1]
    )

    assert encoded == ["train/part-00001.jsonl.zst", "train/part-00003.jsonl.zst"]
    old, facts = facts_of(before), facts_of(made)
    assert [new == kept for new, kept in zip(facts.blocks, old.blocks, strict=False)] == [True, False, True]
    assert facts.left_out == {"duplicate": 2}
    assert (facts.earlier.shards, facts.earlier.documents) == (3, old.documents - 1)
    assert facts.stream != old.stream
    left = [text for week in WEEKS for text in week if text not in (WEEKS[0][0], WEEKS[1][1])]
    assert len(ids_of(opened(made))) == len(left)
    opened(made).packed.pieces[:]  # every block is whole


def test_a_list_that_is_gone_lets_all_be_encoded(
    tmp_path: Path, tokenizer: Path, encoded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2))
    old, new = overlap_of(tmp_path / "old", WEEKS[0][0]), overlap_of(tmp_path / "new")
    before = tokens_made(recipe_of(tmp_path / "root", source=True), first, tokenizer, overlap=old)
    encoded.clear()

    champion = {"corpus.web": str(first), "tokens.web": before.uri}
    made = tokens_made(recipe_of(tmp_path / "root", champion, source=True), second, tokenizer, overlap=new)

    assert len(encoded) == 3
    assert facts_of(made).earlier.documents == 3
    assert f"{before.uri}: tokens of another tokenizer, corpus, list or program" in caplog.text


@pytest.mark.parametrize("loss", ["tokens", "tokenizer"])
def test_without_usable_tokens_all_is_encoded_and_the_border_stays(
    tmp_path: Path, tokenizer: Path, encoded: list[str], loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (2, 3))
    champion = {"corpus": str(first), "tokens": str(tmp_path / "gone")}
    if loss == "tokenizer":
        other = make_tokenizer_artifact(tmp_path / "other", vocab_size=290)
        champion["tokens"] = tokens_made(recipe_of(tmp_path / "root"), first, other).uri
    encoded.clear()

    made = tokens_made(recipe_of(tmp_path / "root", champion), second, tokenizer)

    assert len(encoded) == 4
    facts = facts_of(made)
    assert (facts.earlier.shards, facts.earlier.blocks, len(facts.blocks)) == (2, 1, 2)
    assert (
        "no finished tokens of the champion there" if loss == "tokens" else "another tokenizer"
    ) in caplog.text


def test_a_corpus_that_does_not_begin_with_the_champions_is_new_text(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_corpus(tmp_path / "first", WEEKS[:1]), make_corpus(tmp_path / "second", WEEKS[1:])
    before = tokens_made(recipe_of(tmp_path / "root"), first, tokenizer)

    champion = {"corpus": str(first), "tokens": before.uri}
    made = tokens_made(recipe_of(tmp_path / "root", champion), second, tokenizer)

    assert facts_of(made).earlier == EarlierFacts()
    assert "does not begin with the champion's corpus" in caplog.text


def test_new_text_that_is_left_out_adds_no_block(tmp_path: Path, tokenizer: Path) -> None:
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2))
    empty = overlap_of(tmp_path / "overlap-0")
    before = tokens_made(recipe_of(tmp_path / "root", source=True), first, tokenizer, overlap=empty)
    champion = {"corpus.web": str(first), "tokens.web": before.uri, "overlap.web": str(empty)}

    made = tokens_made(
        recipe_of(tmp_path / "root", champion, source=True), second, tokenizer,
        overlap=overlap_of(tmp_path / "overlap-1", *WEEKS[1]),
    )  # fmt: skip

    facts = facts_of(made)
    assert (facts.sequences, facts.earlier.sequences) == (facts_of(before).sequences,) * 2
    assert facts.left_out == {"duplicate": 2}


def test_an_equal_corpus_gives_the_champions_tokens(
    tmp_path: Path, tokenizer: Path, encoded: list[str]
) -> None:
    corpus = make_corpus(tmp_path / "corpus", WEEKS[:2])
    before = tokens_made(recipe_of(tmp_path / "root"), corpus, tokenizer)
    encoded.clear()

    champion = {"corpus": str(corpus), "tokens": before.uri}
    made = tokens_made(recipe_of(tmp_path / "root", champion), corpus, tokenizer)

    assert encoded == []
    assert facts_of(made).earlier.tokens == facts_of(made).tokens
    assert facts_of(made).stream == facts_of(before).stream


def test_the_limit_of_tokens_is_that_of_the_new_text(
    tmp_path: Path, tokenizer: Path, encoded: list[str]
) -> None:
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (2, 3))
    whole = tokens_made(recipe_of(tmp_path / "root", source=True), first, tokenizer)
    most = facts_of(whole).train[0].tokens - 1
    before = tokens_made(recipe_of(tmp_path / "root", source=True, max_tokens=most), first, tokenizer)
    champion = {"corpus.web": str(first), "tokens.web": before.uri}
    encoded.clear()

    made = tokens_made(
        recipe_of(tmp_path / "root", champion, source=True, max_tokens=most), second, tokenizer
    )

    facts = facts_of(made)
    assert [shard.file for shard in facts.train] == [f"train/part-0000{n}.safetensors" for n in (0, 2)]
    assert facts.train[0] == facts_of(before).train[0]
    assert facts.train[1].tokens <= most
    assert set(encoded) == {"train/part-00002.jsonl.zst"}
    third = make_corpus(tmp_path / "corpus-4", WEEKS)
    champion = {"corpus.web": str(second), "tokens.web": made.uri}
    again = tokens_made(
        recipe_of(tmp_path / "root", champion, source=True, max_tokens=most), third, tokenizer
    )
    assert facts_of(again).train[:2] == facts.train
    assert facts_of(again).left_out["max_tokens"] == 9 - facts_of(again).documents


def test_a_changed_byte_of_the_champions_tokens_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2))
    before = tokens_made(recipe_of(tmp_path / "root"), first, tokenizer)
    shard = Path(before.uri) / "train/part-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[1030] ^= 1
    shard.unlink()  # the work directory may hold a link
    shard.write_bytes(content)
    champion = {"corpus": str(first), "tokens": before.uri}

    with pytest.raises(
        IntegrityError, match=r"part-00000\.safetensors: differs from its manifest; run `anadil remove"
    ):
        tokens_made(recipe_of(tmp_path / "root", champion), second, tokenizer)


@pytest.mark.parametrize("target", ["s3", "local"])
def test_within_s3_shards_are_copied_and_never_fetched(
    tmp_path: Path, tokenizer: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ANADIL_WORK", str(tmp_path / "work"))
    # The check of sizes reads the smallest files, which all of these are.
    monkeypatch.setattr(artifact, "SMALL_BYTES", 0)
    first, second = (make_corpus(tmp_path / f"corpus-{n}", WEEKS[:n]) for n in (1, 2))
    before = tokens_made(recipe_of(f"{bucket}/root"), first, tokenizer)
    champion = {"corpus": str(first), "tokens": before.uri}
    asked: list[str] = []
    s3.s3_client().meta.events.register(
        "before-call.s3.GetObject", lambda params, **_: asked.append(params["url_path"])
    )

    root = f"{bucket}/other" if target == "s3" else str(tmp_path / "root")
    made = tokens_made(recipe_of(root, champion), second, tokenizer)

    fetched = [path for path in asked if "/train/" in path or "/blocks/" in path]
    assert bool(fetched) == (target == "local")
    for name in before.manifest.files.keys() - {"tokens.json"}:
        assert made.manifest.files[name] == before.manifest.files[name]
        theirs, ours = (storage.store(each.uri).read(f"{each.uri}/{name}") for each in (before, made))
        assert theirs == ours
    artifact.check_sizes(made.uri, made.manifest)
    assert len(ids_of(opened(made))) == 5


OWN = ("Bakı Azərbaycanın paytaxtıdır və ən böyük şəhəridir.", "Gəncə şəhəri Bakıdan sonra ikincidir.")
FOREIGN = ("Příliš žluťoučký kůň úpěl ďábelské ódy, řekl číšník.",)


def words_of(*texts: str) -> dict[str, int]:
    """Counts of a corpus as `clean` writes them."""
    return {
        "words_out": sum(len(text.split()) for text in texts),
        "bytes_out": sum(len(text.encode()) for text in texts),
    }


@pytest.mark.parametrize("new", [OWN[1:], FOREIGN], ids=["own", "foreign"])
def test_tokens_a_word_of_new_text_stand_beside_those_of_the_champions(
    tmp_path: Path, new: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer")
    first = make_corpus(tmp_path / "first", [OWN[:1]], stats=words_of(*OWN[:1]))
    second = make_corpus(tmp_path / "second", [OWN[:1], new], stats=words_of(*new))
    before = tokens_made(recipe_of(tmp_path / "root"), first, tokenizer)
    champion = {"corpus": str(first), "tokens": before.uri}

    made = tokens_made(recipe_of(tmp_path / "root", champion), second, tokenizer)

    facts, figures = facts_of(made), made.manifest.figures
    tokens = facts.tokens - facts.earlier.tokens
    earlier, later = (
        (facts.earlier.tokens - 2) / words_of(*OWN[:1])["words_out"],
        (tokens - 2) / words_of(*new)["words_out"],
    )
    assert figures["tokens_per_word_earlier"] == pytest.approx(earlier, abs=1e-3)
    assert figures["tokens_per_word_new"] == pytest.approx(later, abs=1e-3)
    assert figures["tokenizer_drift"] == pytest.approx(later / earlier - 1, abs=1e-4)
    assert figures["bytes_per_token_new"] == pytest.approx(
        words_of(*new)["bytes_out"] / (tokens - 2), abs=1e-3
    )
    assert (figures["new_documents"], figures["new_tokens"]) == (1, tokens)
    assert f"{later:.2f} tokens a word" in caplog.text
    assert ("anadil retrain --from-base" in caplog.text) == (new is FOREIGN)


def test_a_language_whose_words_are_not_counted_has_bytes_a_token(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer")
    first, second = (make_corpus(tmp_path / name, [OWN[:1], FOREIGN][:n]) for n, name in ((1, "a"), (2, "b")))

    made = tokens_made(recipe_of(tmp_path / "root", {"corpus": str(first)}), second, tokenizer)

    figures = made.manifest.figures
    assert "tokens_per_word_new" not in figures
    ratio = float(figures["bytes_per_token_earlier"]) / float(figures["bytes_per_token_new"])
    assert figures["tokenizer_drift"] == pytest.approx(ratio - 1, abs=2e-3)


def test_a_run_without_a_champion_and_a_week_without_text_have_no_drift(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer")
    corpus = make_corpus(tmp_path / "corpus", [OWN])
    plain = tokens_made(recipe_of(tmp_path / "root"), corpus, tokenizer)

    again = tokens_made(recipe_of(tmp_path / "root", {"corpus": str(corpus)}), corpus, tokenizer)

    assert facts_of(plain).earlier == EarlierFacts()
    assert "new_tokens" not in plain.manifest.figures
    assert again.manifest.figures["new_tokens"] == 0
    assert "tokenizer_drift" not in again.manifest.figures
