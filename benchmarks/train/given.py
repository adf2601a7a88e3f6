"""Sizes, weights and sequences that every trainer of the comparison is given."""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.artifacts import storage
from anadil.pretrain.data.batch import batch_of
from anadil.pretrain.data.order import sequences_of_step
from anadil.tokens.packing import Packed, TokenStream, pack

BUILT_IN = ("builtin:az/prose.jsonl", "builtin:az/generated.jsonl")
END = 0
"""Id that ends a document."""
SEED = 20_250_101


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One comparison."""

    vocabulary: int = 100_000
    hidden: int = 256
    intermediate: int = 1_024
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    tied: bool = True
    """True if the output table is the embedding."""
    batch: int = 4
    """Sequences of a step."""
    length: int = 512
    """Tokens of a sequence."""
    warmup: int = 2
    """Steps before the clocks run."""
    steps: int = 4
    """Steps that are timed."""
    precision: str = "fp32"
    device: str = "cpu"
    lr: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    text: tuple[str, ...] = ()
    """Files of documents as JSON lines; the built-in ones where there is none."""

    @property
    def all_steps(self) -> int:
        """Timed or not."""
        return self.warmup + self.steps

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def loads(text: str) -> Given:
    """Read what `dumps` wrote."""
    read = json.loads(text)
    return Given(**{**read, "betas": tuple(read["betas"]), "text": tuple(read["text"])})


def config_of(given: Given) -> Any:
    """The configuration of a Llama of these sizes."""
    return LlamaConfig(
        vocab_size=given.vocabulary,
        hidden_size=given.hidden,
        intermediate_size=given.intermediate,
        num_hidden_layers=given.layers,
        num_attention_heads=given.heads,
        num_key_value_heads=given.kv_heads,
        max_position_embeddings=given.length,
        tie_word_embeddings=given.tied,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=END,
        attn_implementation="sdpa",
    )


def model(given: Given) -> Any:
    """A Llama with random FP32 weights, the same in every process."""
    config = config_of(given)
    torch.manual_seed(SEED)
    with torch.device(given.device):
        return LlamaForCausalLM(config)


def packed(given: Given) -> Packed:
    """Documents side by side in sequences; a word's id is its CRC-32 modulo the vocabulary.

    So ids are as unevenly used as words are, in a vocabulary of any size, and no tokenizer is needed.
    """
    documents = [
        [*(1 + zlib.crc32(word.encode()) % (given.vocabulary - 1) for word in text.split()), END]
        for text in _texts(given.text)
    ]
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])]).astype(np.int64)
    ids = np.fromiter(chain.from_iterable(documents), dtype=np.int32)
    return pack(TokenStream(ids=ids, starts=starts, digest="benchmark"), given.length)


def _texts(files: Iterable[str]) -> Iterator[str]:
    """The documents' texts, in order."""
    chosen = [Path(file) for file in files] or [storage.built_in(name) for name in BUILT_IN]
    for path in chosen:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def examples(given: Given) -> list[dict[str, torch.Tensor]]:
    """The sequences of all steps, in the order in which Anadil's trainer takes them.

    `shift_labels` are labels that transformers and TRL score without shifting them.
    """
    source = packed(given)
    rows = []
    for step in range(given.all_steps):
        chosen = sequences_of_step(step, batch_size=given.batch, blocks=source.blocks, seed=SEED)
        batch = batch_of(source, chosen)
        rows += [
            {"input_ids": ids, "position_ids": positions, "labels": labels, "shift_labels": labels}
            for ids, positions, labels in zip(batch.input_ids, batch.position_ids, batch.labels, strict=True)
        ]
    return rows
