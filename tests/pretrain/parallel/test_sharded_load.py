import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from anadil.artifacts.weight_files import INDEX
from anadil.core.errors import DataError, IntegrityError
from anadil.model.architecture import empty_model
from anadil.model.kernels import decoder_layers
from anadil.model.load import cast_parameters, load_model
from anadil.model.process_group import Group
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.embedding_init import VocabularyRows, fit_vocabulary, vocabulary_rows
from anadil.pretrain.parallel.fsdp import shard
from anadil.pretrain.parallel.mesh import mesh_of
from anadil.pretrain.parallel.parallelize import load_weights
from anadil.pretrain.parallel.tensor import apply_tensor_parallel
from anadil.recipe.pretrain import Parallelism
from tests.kit.pretraining import make_model, make_tokenizer_artifact
from tests.kit.ranks import in_ranks

CPU = torch.device("cpu")
NUM_TOKENS = 311
"""Of a tokenizer with new tokens; odd, so that shards are not equal."""


def make(folder: Path, *, tied: bool, whole_files: bool = False, num_new: int = NUM_TOKENS - 300) -> Path:
    """A model in several files beside a tokenizer whose new rows are means; `folder` itself."""
    make_model(folder / "model", tied=tied)
    if not whole_files:
        load_model(folder / "model").save_pretrained(folder / "parts", max_shard_size="20KB")
        shutil.rmtree(folder / "model")
        (folder / "parts").rename(folder / "model")
    rows = [[299 - token] for token in range(300)] + ([[0, 1, 2], [7, 9]] * num_new)[:num_new]
    make_tokenizer_artifact(folder / "tokenizer", rows, vocab_size=300 + num_new)
    return folder


def whole_and_empty(folder: Path) -> tuple[PreTrainedModel, PreTrainedModel, Any, VocabularyRows]:
    """The model as one process makes it, an empty one, the files and the rows."""
    whole = load_model(folder / "model")
    fit_vocabulary(whole, folder / "tokenizer")
    weights = SafetensorsFiles(folder / "model")
    rows = vocabulary_rows(folder / "tokenizer", weights.shape("model.embed_tokens.weight")[0])
    assert rows is not None
    return whole, empty_model(folder / "model", num_tokens=len(rows)), weights, rows


def same(model: torch.nn.Module, whole: torch.nn.Module) -> None:
    """Every parameter and buffer has the values of `whole`, bit by bit."""
    expected = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert held.keys() == expected.keys()
    for name, tensor in held.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(full, expected[name]), name


class Counted(SafetensorsFiles):
    """Weights that count what is read."""

    read_numbers = 0

    def read(self, name: str, offset: Sequence[int] | None = None, shape: Sequence[int] = ()) -> torch.Tensor:
        block = super().read(name, offset, shape)
        self.read_numbers += block.numel()
        return block


def tied_shards(rank: int, folder: str) -> None:
    whole, model, weights, rows = whole_and_empty(Path(folder))
    mesh = mesh_of(Parallelism(shard=2), Group(rank=rank, size=2), "cpu")
    shard(model, decoder_layers(model), mesh, MixedPrecisionPolicy())

    load_weights(model, weights, CPU, rows=rows)

    same(model, whole)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    shards_after_a_step(model, whole)


def shards_after_a_step(model: Any, whole: Any) -> None:
    """FSDP gathers what was loaded, not memory of before; the tie holds through a pass."""
    ids = torch.arange(16)[None]
    expected, made = whole(input_ids=ids).logits, model(input_ids=ids).logits
    made.square().sum().backward()
    expected.square().sum().backward()
    assert torch.allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        # Two processes with the same sequence.
        assert (ours.grad.full_tensor() - 2 * theirs.grad).norm() < 1e-5 * theirs.grad.norm()


def only_its_own(rank: int, folder: str) -> None:
    """Columns and rows on four processes: each reads its quarter, and its half of the norms."""
    whole, model, _, rows = whole_and_empty(Path(folder))
    mesh = mesh_of(Parallelism(shard=2, tensor=2), Group(rank=rank, size=4), "cpu")
    assert mesh.parameters is not None
    apply_tensor_parallel(model, mesh.parameters["tensor"], config=model.config)
    shard(model, decoder_layers(model), mesh, MixedPrecisionPolicy())
    weights = Counted(Path(folder) / "model")

    load_weights(model, weights, CPU, rows=rows)

    same(model, whole)
    locals_ = [parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)]
    assert weights.read_numbers <= sum(local.numel() for local in locals_)
    assert weights.read_numbers < 0.3 * sum(parameter.numel() for parameter in model.parameters())


def new_rows_in_both_tables(rank: int, folder: str) -> None:
    whole, model, weights, rows = whole_and_empty(Path(folder))
    mesh = mesh_of(Parallelism(tensor=2), Group(rank=rank, size=2), "cpu")
    assert mesh.parameters is not None
    apply_tensor_parallel(model, mesh.parameters["tensor"], config=model.config)

    load_weights(model, weights, CPU, rows=rows)

    same(model, whole)


def two(rank: int, tied: str, untied: str) -> None:
    tied_shards(rank, tied)
    new_rows_in_both_tables(rank, untied)


def test_shards_of_a_new_vocabulary_are_those_of_one_process_and_tied_ones_stay_tied(tmp_path: Path) -> None:
    in_ranks(
        two, 2, str(make(tmp_path / "tied", tied=True)), str(make(tmp_path / "untied", tied=False, num_new=6))
    )


def test_a_process_reads_no_more_than_it_keeps(tmp_path: Path) -> None:
    in_ranks(only_its_own, 4, str(make(tmp_path, tied=False, num_new=6)))


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_is_loaded_from_one_file_in_its_own_precision(tmp_path: Path, tied: bool) -> None:
    whole, model, weights, rows = whole_and_empty(make(tmp_path, tied=tied, whole_files=True))
    model.lm_head.weight.requires_grad_(False)

    load_weights(model, weights, CPU, rows=rows)

    same(model, whole)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert not model.lm_head.weight.requires_grad
    narrow = empty_model(tmp_path / "model")
    cast_parameters(narrow, torch.bfloat16)
    load_weights(narrow, weights, CPU)
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}
    assert narrow.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(narrow.model.rotary_emb.inv_freq, whole.model.rotary_emb.inv_freq)


def test_a_stage_takes_the_layers_that_it_has(tmp_path: Path) -> None:
    folder = make(tmp_path, tied=False) / "model"
    stage: Any = empty_model(folder)
    stage.model.layers = torch.nn.ModuleDict({"1": stage.model.layers[1]})
    del stage.model.embed_tokens

    load_weights(stage, SafetensorsFiles(folder), CPU)

    whole = dict(load_model(folder).named_parameters())
    assert torch.equal(stage.model.layers["1"].mlp.up_proj.weight, whole["model.layers.1.mlp.up_proj.weight"])
    assert not any(parameter.is_meta for parameter in stage.parameters())


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path, tied=False) / "model"
    index = json.loads((folder / INDEX).read_text())
    file = index["weight_map"]["lm_head.weight"]
    index["weight_map"] = {name: part for name, part in index["weight_map"].items() if part != file}
    (folder / INDEX).write_text(json.dumps(index))

    with pytest.raises(IntegrityError, match=r"do not fit config.json \(no tensor .*fetch or make"):
        load_weights(empty_model(folder), SafetensorsFiles(folder), CPU)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path, tied=False) / "model"
    model = empty_model(folder, num_tokens=320)

    with pytest.raises(IntegrityError, match=r"embed_tokens.weight makes \[300, 32\]"):
        load_weights(model, SafetensorsFiles(folder), CPU)


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (
            lambda folder: (folder / INDEX).write_text("[]"),
            IntegrityError,
            r"is not an index of safetensors files",
        ),
        (
            lambda folder: (folder / INDEX).write_text('{"metadata":{},"weight_map":{"a":"b.safetensors"}}'),
            IntegrityError,
            r"1 of 1 files of weights are missing, the first is b.safetensors",
        ),
        (
            lambda folder: next(folder.glob("*.safetensors")).write_bytes(b"1234567890"),
            IntegrityError,
            r"no header of safetensors",
        ),
    ],
)
def test_files_that_cannot_be_trusted_are_refused(
    tmp_path: Path, damage: Any, error: type[Exception], text: str
) -> None:
    folder = make(tmp_path, tied=False) / "model"
    damage(folder)

    with pytest.raises(error, match=text):
        SafetensorsFiles(folder)


def test_a_config_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(DataError, match=r"cannot be made as a causal language model"):
        empty_model(tmp_path)
