import json
import logging
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tokenizers import normalizers

from anadil.artifacts import artifact
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.core.format import GIB
from anadil.estimate.fit import FITS
from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.estimate.stage_memory import harness_parts, scoring_parts
from anadil.evaluate import models as scored_models
from anadil.evaluate import run
from anadil.evaluate.bits_per_byte import score
from anadil.evaluate.models import ScoredModel, encode_for_all, load_for_scoring, open_artifact, open_model
from anadil.evaluate.run import refuse_other_rank
from anadil.model import load as model_loading
from anadil.model.decoding import Decoder
from anadil.model.load import document_ids, load_model, load_tokenizer, max_memory
from tests.evaluate.conftest import TEXTS, document, save_model, train_tokenizer
from tests.kit.pretraining import set_bos

from .conftest import tiny_model

NFD = unicodedata.normalize("NFD", "Çörək süfrədədir.")


def candidate(name: str, vocab_size: int, *, normalizes: bool = False) -> ScoredModel:
    tokenizer = train_tokenizer(vocab_size)
    if normalizes:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return ScoredModel(name=name, path=Path(name), tokenizer=tokenizer, prefix=0)


def test_each_candidate_encodes_the_same_documents() -> None:
    documents = [document(text) for text in TEXTS]

    encoded = encode_for_all([candidate("base", 300), candidate("adapted", 420)], documents)

    assert encoded.documents == tuple(documents)
    assert encoded.altered == ()
    assert [len(ids) for ids in encoded.ids.values()] == [len(TEXTS)] * 2
    assert sum(map(len, encoded.ids["adapted"])) < sum(map(len, encoded.ids["base"]))
    assert all(ids.dtype == np.int32 for ids in encoded.ids["base"])


def test_a_document_that_one_tokenizer_alters_is_left_out_for_all(caplog: pytest.LogCaptureFixture) -> None:
    documents = [*(document(f"{n}. {TEXTS[0]}", f"d{n}") for n in range(120)), document(NFD, "nfd")]

    with caplog.at_level(logging.WARNING):
        encoded = encode_for_all(
            [candidate("base", 300, normalizes=True), candidate("adapted", 420)], documents
        )

    assert encoded.altered == ("nfd",)
    assert len(encoded.documents) == len(encoded.ids["base"]) == len(encoded.ids["adapted"]) == 120
    assert "a tokenizer alters 1 documents, skipped: nfd" in caplog.text


def test_a_tokenizer_that_alters_many_documents_is_a_data_error() -> None:
    documents = [document(f"{n} {NFD}", f"d{n}") for n in range(5)]

    with pytest.raises(DataError, match=r"document d0: the tokenizer of base \(base\) does not give it back"):
        encode_for_all([candidate("base", 300, normalizes=True)], documents)


def test_documents_begin_as_they_do_in_training(tmp_path: Path) -> None:
    with_bos = open_model("base", save_model(tmp_path / "with"))
    tokenizer = train_tokenizer(400)
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path / "without")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "neither")

    without, neither = (open_model("base", tmp_path / name) for name in ("without", "neither"))

    assert (with_bos.prefix, without.prefix, neither.prefix) == (0, 1, 1)
    for model, name in ((with_bos, "with"), (without, "without"), (neither, "neither")):
        assert model.prefix == document_ids(load_tokenizer(tmp_path / name), name)[0]


def test_a_bases_windows_begin_as_those_of_the_model_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped tokenizer sets BOS before every text, and the tokenizer of the base declares BOS alone."""
    base, model = save_model(tmp_path / "base"), save_model(tmp_path / "model")
    set_bos(model)
    monkeypatch.setattr(run, "base_model", lambda *_: base)
    job: Any = SimpleNamespace(recipe=SimpleNamespace(base=None), base_cache=None, inputs={"model": model})

    before, adapted = run._candidates(job)

    assert (open_model("base", base).bos, before.bos, adapted.bos) == (None, 0, 0)
    assert before.prefix == adapted.prefix == 0


@pytest.mark.parametrize(("kind", "figures", "answers"), [
    ("model", {}, False), ("merged", {"answers": 0}, False), ("merged", {"answers": 1}, True), ("adapter", {}, True),
])  # fmt: skip
def test_an_artifact_answers_if_it_learnt_to_or_was_merged_with_what_does(
    tmp_path: Path, kind: str, figures: dict[str, int], answers: bool
) -> None:
    save_model(tmp_path / "merged" if kind == "adapter" else tmp_path)
    artifact.seal(tmp_path, kind=kind, origin={}, figures={**figures})

    opened = open_artifact("champion", tmp_path)

    assert opened.answers is answers
    assert opened.path == (tmp_path / "merged" if kind == "adapter" else tmp_path)


MATRIX = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def write(folder: Path, said: int, rank: int) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"r": said, "lora_alpha": 28}), encoding="utf-8")
    save_file({MATRIX: np.zeros((rank, 32), dtype=np.float32)}, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_of_another_rank_than_it_says_is_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(
        IntegrityError, match=r"q_proj\.lora_A\.weight has rank 8, and adapter_config.json says 64"
    ):
        refuse_other_rank(write(tmp_path, 64, 8))


def test_an_adapter_of_its_rank_and_a_model_of_which_all_was_trained_pass(tmp_path: Path) -> None:
    refuse_other_rank(tmp_path)
    refuse_other_rank(write(tmp_path, 8, 8))


def test_a_torn_adapter_is_an_integrity_error(tmp_path: Path) -> None:
    write(tmp_path, 8, 8)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x10\0\0\0")

    with pytest.raises(IntegrityError, match="damaged"):
        refuse_other_rank(tmp_path)


ONE, EIGHT, SEVENTY = (KNOWN[f"meta-llama/Llama-3.{name}"] for name in ("2-1B", "1-8B", "1-70B"))
H100 = 79 * GIB


def parts_of(config: Any) -> Any:
    return lambda devices: scoring_parts(shape_from(config, "base"), devices, on_gpu=True)


def test_a_batch_of_the_harness_takes_the_logits_of_all_its_rows() -> None:
    def parts(devices: int) -> dict[str, float]:
        return harness_parts(shape_from(EIGHT, "base"), devices, rows=16, context=2_048)

    assert parts(1)["logits"] == 16 * 2_048 * 128_256 * 6
    assert list(max_memory(parts, FITS, [64 * GIB] * 8, "base")) == [0]
    assert list(max_memory(parts, FITS, [40 * GIB] * 8, "base")) == [0, 1]


@pytest.mark.parametrize(
    ("config", "free", "devices"),
    [(ONE, 22 * GIB, 1), (EIGHT, H100, 1), (EIGHT, 22 * GIB, 2), (SEVENTY, H100, 3), (SEVENTY, 139 * GIB, 2)],
)
def test_the_fewest_gpus_that_hold_it_with_a_batch(config: Any, free: int, devices: int) -> None:
    room = max_memory(parts_of(config), FITS, [free] * 8, "base")

    assert list(room) == list(range(devices))
    assert all(0.4 * free < each < 0.95 * free for each in room.values())


def test_a_model_that_all_gpus_do_not_hold_is_refused_with_its_size() -> None:
    with pytest.raises(
        PreflightError, match=r"base: .* of weights and .* of a batch on each of 2 GPUs, which have 22\.0 GiB"
    ):
        max_memory(parts_of(SEVENTY), FITS, [22 * GIB] * 2, "base")


def fake_gpus(monkeypatch: pytest.MonkeyPatch, free: int, placed: dict[str, Any]) -> dict[str, Any]:
    """Four GPUs, and transformers laying layers as `placed` says; what it was asked for."""
    asked: dict[str, Any] = {}

    def load(path: Path, dtype: torch.dtype, **more: Any) -> Any:
        asked.update(more, dtype=dtype)
        return SimpleNamespace(hf_device_map=placed, to=lambda device: f"whole on {device}")

    monkeypatch.setattr(model_loading, "pick_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(model_loading, "load_model", load)
    monkeypatch.setattr(scored_models, "model_config", lambda _: EIGHT)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    return asked


def test_a_model_that_one_gpu_holds_lies_there_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_gpus(monkeypatch, H100, {})

    assert load_for_scoring(Path("model"), "base") == "whole on cuda:0"
    assert asked == {"dtype": torch.bfloat16}


def test_a_larger_one_is_spread_by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_gpus(monkeypatch, 22 * GIB, {"model.layers.0": 0, "model.layers.1": 1})

    assert load_for_scoring(Path("model"), "base").hf_device_map
    assert asked["placement"]["device_map"] == "auto"
    assert list(asked["placement"]["max_memory"]) == [0, 1]


def test_layers_that_would_lie_in_main_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 22 * GIB, {"model.layers.0": 0, "model.layers.1": "cpu", "lm_head": "disk"})

    with pytest.raises(PreflightError, match="not all layers fit 2 GPUs, some would lie on cpu, disk"):
        load_for_scoring(Path("model"), "base")


def test_a_model_whose_layers_lie_apart_scores_and_writes_as_the_whole_one(tmp_path: Path) -> None:
    tiny_model(300).save_pretrained(tmp_path / "model")
    whole = load_model(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    layers = {"model.layers.0": "cpu", "model.layers.1": "disk"}
    apart = load_model(
        tmp_path / "model", placement={"device_map": {**places, **layers}, "offload_folder": str(tmp_path)}
    )
    documents = [([0], np.arange(5, 5 + length, dtype=np.int32)) for length in (90, 7, 31)]
    how: Any = {"context": 32, "stride": 32, "batch_tokens": 64, "name": "base"}

    assert "disk" in apart.hf_device_map.values()
    assert np.array_equal(score(whole, documents, **how), score(apart, documents, **how))
    prompts, seeds = [[5, 6, 7], [8]], [[None, 1], [None, 2]]
    first, second = (
        list(Decoder(each, ends=frozenset([1]), num_ids=300).batches(prompts, seeds, max_new_tokens=8))
        for each in (apart, whole)
    )
    assert first == second
