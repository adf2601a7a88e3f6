"""Vocabularies of SentencePiece's kind: more tokens, or others, and every text that holds none of them as before."""

import json
import unicodedata
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from anadil.artifacts.base_model import read_tokenizer
from anadil.artifacts.sentence_piece import check_pieces, read_pieces, write_pieces
from anadil.core.errors import DataError
from anadil.model.load import load_model, save_model
from anadil.preflight.base_model import inspect_base
from anadil.pretrain.embedding_init import fit_vocabulary
from anadil.recipe.sections import Recipe
from anadil.recipe.sections import Tokenizer as Settings
from anadil.release.export.gguf_file import write_gguf
from anadil.release.export.gguf_refusal import gguf_fault
from anadil.runtime.job import Job
from anadil.text.encoder import Encoder
from anadil.text.pieces import BLANK, piece_symbols
from anadil.tokenizer.candidate import embedding_rows
from anadil.tokenizer.makers import Maker, extensions, surgeries
from anadil.tokenizer.pretokens import count_texts, cutter_of
from anadil.tokenizer.run import run
from tests.kit.llama import small_llama
from tests.kit.llama_3 import SCRIPTS, mixed_documents
from tests.kit.llama_cpp import opened
from tests.kit.pretraining import make_tokenizer
from tests.kit.sentence_pieces import LIKE_GEMMA, LIKE_LLAMA_2, LIKE_MISTRAL, make_pieces
from tests.kit.transformers_4 import python_with_4, read_by_4

from .conftest import SENTENCES, written
from .test_surgery import ENGLISH, JAPANESE, RUSSIAN

LETTERS = [chr(point) for point in range(0x41, 0x1F000) if chr(point).isalpha()]
SCRIPTS_LETTERS = {unicodedata.name(letter, "").partition(" ")[0]: letter for letter in reversed(LETTERS)}
WORDS = ["".join(chr(ord(first) + step) for step in (0, 1, 3, 2)) for first in SCRIPTS_LETTERS.values()]
TEXTS = [
    *(f"  {one} {one}\t{two} 😀👩‍👧\n\n\n    {two}{one}, 2026" for one, two in pairwise(WORDS)), *SCRIPTS, *mixed_documents(100),
    *ENGLISH, *RUSSIAN, *JAPANESE, *SENTENCES, "", " ", "    x", "<td> <eos>",
]  # fmt: skip
STYLES = {"gemma": LIKE_GEMMA, "llama-2": LIKE_LLAMA_2, "mistral": LIKE_MISTRAL}
NUM_NEW = 60
MAKERS: Mapping[str, Maker] = {"extend": extensions, "surgery": surgeries}
REST = b"\x12\x02\x18\x02" + b"\x1a\x03" + b"\x0a\x01x"
"""SentencePiece's settings of training and of the normalizer."""


def base_of(folder: Path, style: str = "gemma") -> Path:
    """A base that has learnt English, Russian and Japanese, and lacks letters of Azerbaijani."""
    return make_pieces(folder, [*ENGLISH, *RUSSIAN, *JAPANESE] * 2, STYLES[style], size=500)


def model_of(folder: Path) -> Path:
    """The same as a model with SentencePiece's file, whose embedding has more rows than there are tokens."""
    tokenizer = read_tokenizer(base_of(folder / "tokenizer"))
    model = small_llama(vocab_size=tokenizer.get_vocab_size() + 33)
    save_model(model, folder / "tokenizer", folder / "model", torch.float32)
    file = folder / "model/tokenizer.model"
    file.write_bytes(REST)
    write_pieces(file, tokenizer, file)
    return folder / "model"


@pytest.fixture(scope="module", params=STYLES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return read_tokenizer(base_of(tmp_path_factory.mktemp("base"), request.param))


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, base: Tokenizer) -> Tokenizer:
    """The base's tokenizer with tokens of Azerbaijani."""
    cutter = cutter_of(base)
    counts = count_texts(cutter, [f"{one} {two}" for one in SENTENCES for two in SENTENCES])
    keep = dict(count_texts(cutter, [f" {text}" for text in ENGLISH]).items())
    (candidate,) = MAKERS[request.param](base, counts, (NUM_NEW,), Settings(min_uses=20), keep)
    return candidate.tokenizer


def new_tokens(base: Tokenizer, made: Tokenizer) -> dict[str, int]:
    known = base.get_vocab()
    return {token: index for token, index in made.get_vocab().items() if token not in known}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_every_text_without_a_new_token_keeps_its_ids_and_any_text_decodes_as_by_the_base(
    base: Tokenizer, made: Tokenizer
) -> None:
    new, lost = new_tokens(base, made), {*new_tokens(made, base).values()}
    num_alike = 0
    for text in TEXTS:
        before, after = ids(base, text), ids(made, text)
        assert made.decode(after, skip_special_tokens=False) == base.decode(before, skip_special_tokens=False)
        if lost.isdisjoint(before) and not any(
            token.lstrip(BLANK) in text.replace(" ", BLANK) for token in new
        ):
            assert after == before
            num_alike += 1
    assert len(WORDS) > 40
    assert num_alike > 100
    assert all(ids(base, text) == ids(made, text) for text in ENGLISH)
    encoder = Encoder(made)
    assert encoder.check(TEXTS)
    assert encoder.is_fast == (base.normalizer is not None)


def test_new_tokens_are_reached_and_their_rows_spell_them(base: Tokenizer, made: Tokenizer) -> None:
    new, words = new_tokens(base, made), "\n".join(SENTENCES)
    tokens, rows = {index: token for token, index in base.get_vocab().items()}, embedding_rows(base, made)

    assert "ə" in new  # two tokens of bytes never merge
    assert len(new) >= NUM_NEW
    assert not any(character.isdigit() or character == "\n" for character in "".join(new))
    assert len(ids(made, words)) < 0.8 * len(ids(base, words))
    assert sorted(made.get_vocab().values()) == list(range(made.get_vocab_size()))
    for token, index in new.items():
        assert [piece.value for piece in made.model.tokenize(token)] == [token]
        assert "".join(piece_symbols(tokens[piece]) for piece in rows[index]) == piece_symbols(token)
    assert gguf_fault(base) == gguf_fault(made) == ""  # llama.cpp joins the same neighbours


def test_a_token_on_the_way_to_one_of_the_base_is_not_made(tmp_path: Path) -> None:
    # SentencePiece and llama.cpp would join `xy` and `z` to `xyz`, which the base makes of `x` and `yz` alone.
    base = read_tokenizer(make_pieces(tmp_path, ["yz xyz yz xyz a b"] * 9, LIKE_GEMMA, size=40))
    assert {"xyz", "yz"} <= base.get_vocab().keys() - {"xy"}
    counts = count_texts(cutter_of(base), ["xyab xya"] * 9)

    (candidate,) = extensions(base, counts, (3,), Settings(min_uses=1), {})

    assert new_tokens(base, candidate.tokenizer).keys() - {"xy"}
    assert "xy" not in candidate.tokenizer.get_vocab()


@pytest.mark.parametrize("strategy", MAKERS)
def test_new_ids_land_on_their_rows_in_every_reader_where_the_base_has_spare_ones(
    tmp_path: Path, make_job: Callable[..., Job], strategy: str
) -> None:
    folder = model_of(tmp_path)
    base, model = read_tokenizer(folder), load_model(folder)
    table = model.get_input_embeddings().weight.data.clone()
    job = make_job(str(folder), strategies=[strategy], vocab_sizes=[NUM_NEW], min_uses=20, pad_to=64)
    run(job)
    fit_vocabulary(model, job.out)
    save_model(model, job.out, tmp_path / "made", torch.float32)
    write_gguf(tmp_path / "made", tmp_path / "m.gguf", name="test")

    made, loaded = read_tokenizer(job.out), AutoTokenizer.from_pretrained(tmp_path / "made")
    reloaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    rows = reloaded.get_input_embeddings().weight.data
    assert len(rows) == (len(table) if strategy == "surgery" else -(-made.get_vocab_size() // 64) * 64)
    for token, index in new_tokens(base, made).items():
        pieces = [piece.id for piece in base.model.tokenize(token)]
        assert loaded.convert_tokens_to_ids(token) == index
        assert torch.allclose(rows[index], table[pieces].mean(0), atol=1e-6)
    texts = [text.replace("\0", "") for text in TEXTS]
    with opened(tmp_path / "m.gguf") as by_llama_cpp:
        assert [by_llama_cpp.encode(text) for text in texts] == [ids(made, text) for text in texts]
    check_pieces(tmp_path / "made", made)
    pieces_of_file, rest = read_pieces(tmp_path / "made/tokenizer.model")
    assert ([piece.text for piece in pieces_of_file], rest) == (
        [made.id_to_token(index) for index in range(made.get_vocab_size())], REST
    )  # fmt: skip
    old_pieces = read_pieces(folder / "tokenizer.model")[0]
    assert strategy == "surgery" or pieces_of_file[: len(old_pieces)] == old_pieces
    old = {piece.text: piece.score for piece in old_pieces}
    assert max(each.score for each in pieces_of_file if each.text not in old) < min(old.values())
    assert written(job, "fertility")["encoder"]["fast"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("like", "strategy"), [("gemma", "surgery"), ("gemma", "extend"), ("bytes", "extend")]
)
def test_every_reader_computes_the_same_with_new_ids_on_spare_rows(
    tmp_path: Path, make_job: Callable[..., Job], like: str, strategy: str
) -> None:
    folder = model_of(tmp_path) if like == "gemma" else tmp_path / "model"
    if like == "bytes":
        tokens = make_tokenizer(tmp_path / "tokenizer", 400)
        save_model(small_llama(vocab_size=431), tokens, folder, torch.float32)
    base, model = read_tokenizer(folder), load_model(folder)
    job = make_job(str(folder), strategies=[strategy], vocab_sizes=[NUM_NEW], min_uses=20, pad_to=64)
    run(job)
    fit_vocabulary(model, job.out)
    save_model(model, job.out, tmp_path / "made", torch.float32)
    write_gguf(tmp_path / "made", tmp_path / "m.gguf", name="test")
    new = sorted(new_tokens(base, read_tokenizer(job.out)).values())
    row = torch.tensor([new])

    read_by_4(python_with_4(), [tmp_path / "made"], row, tmp_path)
    by_4 = torch.load(tmp_path / "made/logits.pt", weights_only=True)
    reloaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    with torch.no_grad():
        by_5, expected = reloaded(input_ids=row).logits, model(input_ids=row).logits
    with opened(tmp_path / "m.gguf") as loaded:
        by_llama_cpp = torch.from_numpy(loaded.logits(new))

    assert len(new) >= NUM_NEW
    assert expected.shape[-1] > max(new)
    assert all((each - expected).abs().max() < 1e-4 for each in (by_4, by_5, by_llama_cpp[None]))


def test_a_kept_text_that_begins_with_a_word_of_the_corpus_is_cut_as_before(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    folder, kept = base_of(tmp_path / "base", "llama-2"), [text.split()[1] for text in SENTENCES[:9]]
    (tmp_path / "kept.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in kept))
    keep = [str(tmp_path / "kept.jsonl")]
    job = make_job(str(folder), strategies=["extend"], vocab_sizes=[NUM_NEW], min_uses=20, keep=keep)

    run(job)

    assert all(ids(read_tokenizer(job.out), text) == ids(read_tokenizer(folder), text) for text in kept)


def unigram(content: Any) -> None:
    vocab = [[f"<{token}>", 0.0] for token in ("pad", "eos", "bos", "unk")]
    content |= {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab},
        "added_tokens": content["added_tokens"][:4],
    }


def swap(content: Any) -> None:
    vocab = content["model"]["vocab"]
    vocab["▁the"], vocab["▁of"] = vocab["▁of"], vocab["▁the"]


@pytest.mark.parametrize(
    ("change", "settings", "reason"),
    [
        (unigram, {}, "its model is Unigram, .*new tokens have none.* set tokenizer.strategies to"),
        (lambda content: content["added_tokens"].append(content["added_tokens"][-1] | {"id": 7}), {},
         "added_tokens names '<start>' twice, with ids 5 and 7"),
        (lambda content: content.update(decoder=None), {}, r"does not join tokens of bytes \(ByteFallback\)"),
        (lambda content: content.update(normalizer={"type": "NFKC"}), {}, r"normalizes texts \(NFKC\)"),
        (len, {"strategies": ["replace"]}, "which replace does not make. Leave replace out"),
        (len, {"prune": True}, "tokenizer.prune does not take out. Set it to false"),
        (swap, {"strategies": ["base"]}, r"tokenizer.model: id \d+ is '▁.*', and '▁.*' in tokenizer.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_is_refused_before_anything_runs(
    tmp_path: Path, change: Callable[[Any], object], settings: dict[str, Any], reason: str
) -> None:
    folder = model_of(tmp_path)
    recipe = {"base": {"model": str(folder)}, "tokenizer": {"strategies": ["base", "extend"], **settings}}
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match=reason):
        inspect_base(Recipe.model_validate(recipe))
    (folder / "tokenizer.model").write_bytes(b"no pieces")
    if change is swap:
        with pytest.raises(DataError, match="is no file of SentencePiece"):
            inspect_base(Recipe.model_validate(recipe))
