"""Bases as families publish them, each through the stages or refused before the first."""

import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.base_model import read_tokenizer
from anadil.artifacts.base_vocabulary import read_embedding_map
from anadil.core.errors import DataError, PreflightError
from anadil.core.stages import STAGES
from anadil.evaluate.models import open_model
from anadil.model.load import load_model
from anadil.preflight.base_model import inspect_base
from anadil.preflight.checks import refuse
from anadil.pretrain.embedding_init import fit_vocabulary
from anadil.recipe.sections import Recipe
from anadil.release.export.gguf_file import read_vocabulary
from anadil.runtime import execute
from anadil.runtime.check import RECIPE, PlannedRun
from anadil.text.encoder import Encoder
from tests.kit.base_styles import END, ORDINARY, SENTENCE_PIECE, STYLES, make_base, make_base_tokenizer
from tests.kit.families import make_family
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import SHORT, make_corpus
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

BYTE_LEVEL = [style for style in STYLES if style not in SENTENCE_PIECE]
FLOW = ("tokenizer", "trial", "pretrain", "evaluate")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Lines that end in a sign: what GPT-2's pattern cuts and Llama 3's does not.
    lines = ["\n".join(PRETRAINING_TEXTS) + "\n“AB-nin 2024-cü ildəki (yeni) qərarı.”\n"] * 3
    return make_corpus(tmp_path_factory.mktemp("corpus"), lines, PRETRAINING_TEXTS[:6])


def recipe(base: Path, *strategies: str, **tokenizer: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "base": {"model": str(base)},
            "storage": {"root": str(base.parent / "made")},
            "tokenizer": {
                "strategies": strategies,
                "vocab_sizes": [330],
                "pad_to": 32,
                "min_uses": 1,
                "workers": 1,
                **tokenizer,
            },
            "pretrain": {"phases": SHORT, "batch_size": 2, "micro_batch_size": 2, "sequence_length": 32},
            "evaluate": {"max_new_tokens": 4},
        }
    )


def made(settings: Recipe, corpus: Path, stages: tuple[str, ...]) -> dict[str, Path]:
    """Artifact word -> folder, of some stages."""
    found = {"corpus": str(corpus)}
    for name in stages:
        stage = STAGES[name]
        known = {word: found[word] for word in stage.words if word in found}
        found[stage.writes] = execute.execute(stage, settings, known, (), None).uri
    return {word: Path(uri) for word, uri in found.items()}


@pytest.mark.parametrize("style", ["gpt2", "gpt2 by ids"])
def test_replace_keeps_an_end_of_text_that_is_no_added_token(
    tmp_path: Path, corpus: Path, style: str
) -> None:
    base = make_base(tmp_path / "base", style)

    folder = made(recipe(base, "replace"), corpus, ("tokenizer",))["tokenizer"]

    tokenizer = read_tokenizer(folder)
    loaded = open_model("replaced", folder)
    index = tokenizer.token_to_id(END)
    assert (loaded.prefix, loaded.tokenizer.eos_token_id) == (index, index)
    assert open_model("base", base).prefix == ORDINARY
    assert len(loaded.tokenizer) == tokenizer.get_vocab_size() == 330
    rows = read_embedding_map(folder)[0]
    assert rows is not None
    assert index is not None
    assert rows[index] == [read_tokenizer(base).token_to_id(END)]
    model = load_model(base)
    fit_vocabulary(model, folder)
    assert model.get_input_embeddings().weight.shape[0] == 352


def test_a_vocabulary_in_the_place_of_gpt_2s_joins_signs_with_their_neighbours_for_every_reader(
    tmp_path: Path, corpus: Path
) -> None:
    base = make_base(tmp_path / "base", "gpt2")

    folder = made(recipe(base, "replace"), corpus, ("tokenizer",))["tokenizer"]

    tokenizer = read_tokenizer(folder)
    text = "Salam!\n\nAB-nin “sözü” 12345\n(bax)"
    cuts = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert cuts[1:4] == ["!ĊĊ", "AB", "-nin"]
    by_transformers = (
        open_model("replaced", folder)
        .tokenizer(text, split_special_tokens=True, add_special_tokens=False)
        .input_ids
    )
    assert by_transformers == tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(by_transformers) == text
    encoder = Encoder(tokenizer)
    assert encoder.check([text, *PRETRAINING_TEXTS])
    assert encoder.is_fast
    assert read_vocabulary(folder, 352).pre_tokenizer == "llama-bpe"


def test_records_and_the_base_are_counted_by_the_bases_own_cut(tmp_path: Path, corpus: Path) -> None:
    base = make_base(tmp_path / "base", "gpt2")

    both = made(recipe(base, "extend", "replace"), corpus, ("tokenizer",))["tokenizer"]
    alone = made(recipe(base, "extend"), corpus, ("tokenizer",))["tokenizer"]

    records = [
        json.loads((each / "manifest.json").read_text(encoding="utf-8"))["records"] for each in (both, alone)
    ]
    assert records[0] == records[1]
    tables = [json.loads((each / "fertility.json").read_text(encoding="utf-8")) for each in (both, alone)]
    assert tables[0]["candidates"]["extend-330"] == tables[1]["candidates"]["extend-330"]


@pytest.mark.parametrize("style", SENTENCE_PIECE)
def test_sentence_piece_is_not_replaced_but_refused_before_anything_runs(tmp_path: Path, style: str) -> None:
    base = make_base(tmp_path / "base", style)

    with pytest.raises(DataError, match=r"SentencePiece's kind .* Leave replace out of tokenizer.strategies"):
        inspect_base(recipe(base, "base", "replace"))
    assert inspect_base(recipe(base, "base", "replace"), vocabulary=False).status == "passed"
    assert inspect_base(recipe(base, "base", "extend", "surgery")).status == "passed"


def test_a_base_without_an_end_of_text_is_refused_before_anything_runs(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "gpt2 by ids")
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    (base / "config.json").write_text(json.dumps(config | {"eos_token_id": None}), encoding="utf-8")

    with pytest.raises(DataError, match="no file says which token ends a text"):
        inspect_base(recipe(base, "base"))


def test_a_trial_of_a_type_whose_compute_is_not_known_is_refused_before_anything_runs(tmp_path: Path) -> None:
    base = make_base_tokenizer(tmp_path / "base", "phi")
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    del config["model_type"]
    make_family(base, "diffllama", **config)

    with pytest.raises(PreflightError, match=r"tokenizer.trial: .* model type 'diffllama'"):
        refuse(PlannedRun(by=RECIPE, recipe=recipe(base, "base", "extend", trial={"steps": 4})))


@pytest.mark.parametrize(
    "style", [(slow if style in ("gpt2", "phi") else matrix)(style) for style in BYTE_LEVEL]
)
def test_a_byte_level_base_goes_through_the_trial_to_the_scores(
    tmp_path: Path, corpus: Path, style: str
) -> None:
    settings = recipe(make_base(tmp_path / "base", style), "base", "extend", "replace", trial={"steps": 4})
    assert inspect_base(settings).status == "passed"

    found = made(settings, corpus, FLOW)

    trial = json.loads((found["trial"] / "trial.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in trial["finalists"]] == ["base", "extend-330", "replace-330"]
    assert (found["scores"] / "scores.json").is_file()


@pytest.mark.parametrize(
    ("style", "strategy"),
    [
        *((slow if style == "gemma" else matrix)(style, "base") for style in STYLES),
        matrix("phi", "extend"),
        *((slow if style == "gemma" else matrix)(style, "extend") for style in SENTENCE_PIECE),
        slow("phi", "replace"),
    ],
)
def test_every_base_is_trained_and_scored(
    tmp_path: Path, corpus: Path, style: str, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = recipe(make_base(tmp_path / "base", style), strategy)
    assert inspect_base(settings).status == "passed"

    found = made(settings, corpus, ("tokenizer", "pretrain", "evaluate"))

    assert (found["scores"] / "scores.json").is_file()
    assert "loses text" not in caplog.text
