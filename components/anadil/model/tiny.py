"""The base model as a local directory; `tiny` is trained on the spot.

`tiny` stands for a foundation model where there is no network and no GPU: a Llama of a few
million parameters, trained for seconds on the English that Python carries. It is far better
than chance on English; of other languages it has met the letters and knows no word.
"""

import copy
import hashlib
import json
import logging
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from anadil.artifacts.base_model import (
    BUILT_IN,
    COPIED_TOKENIZER_FILES,
    TINY,
    TINY_SHAPE,
    base_tokenizer,
    from_hub,
    is_local,
    made_once,
    tiny_text,
)
from anadil.core.progress import progress
from anadil.model.load import document_ids, encode_texts, load_tokenizer, save_model
from anadil.model.mxfp4 import unpacked_base
from anadil.recipe.sections import Base

log = logging.getLogger(__name__)

TINY_STEPS = 300
TINY_BATCH = 8
TINY_LENGTH = 64
"""Tokens of a training sequence."""
TINY_LR = 2e-3
"""The best of 2e-3, 4e-3 and 8e-3 on English that was left out."""
TINY_SEED = 20_250_101
FOREIGN_SHARE = 0.35
"""Lines written in made-up words. Without them Azerbaijani cost 9.8 bits per byte, more than a
uniform guess (8.9), because letters outside English had never been seen; with them 5.2."""
FOREIGN_KEPT = 0.5
"""Letters that such a line leaves as they are."""
FOREIGN_TEXT = ("aeiouyäöüéèêëáàâãåíîïóôúûıəőű", "bcdfghjklmnpqrstvwxzçşğčšžñłćśźřťďň")
"""Vowels and consonants of languages in Latin letters."""
KEPT_BITS = 8
"""Bits of a weight's mantissa, as many as BF16 has: what lies below differs from CPU to CPU."""
ROUND_EVERY = 10
HUB_FILES = (
    *COPIED_TOKENIZER_FILES, "config.json", "generation_config.json", "README.md", "*.safetensors", "*.index.json",
)  # fmt: skip


def base_model(base: Base, cache: Path, key: str = "base.model", more: Sequence[str] = ()) -> Path:
    """Return a Hugging Face directory with the base model: weights, none of them packed, config and tokenizer.

    Errors name `key`. Of a model of the hub `more` files are fetched too.
    """
    tokenizer = base_tokenizer(base, cache, key)
    if base.model != TINY:
        whole = base.model in BUILT_IN or is_local(base.model)
        return unpacked_base(tokenizer if whole else from_hub(base, (*HUB_FILES, *more), key), cache, key)
    settings = json.dumps([
        TINY_SHAPE, FOREIGN_SHARE, FOREIGN_KEPT, FOREIGN_TEXT, TINY_STEPS, TINY_BATCH, TINY_LENGTH, TINY_LR, TINY_SEED,
        KEPT_BITS, ROUND_EVERY,
    ])  # fmt: skip
    identity = settings.encode() + (tokenizer / "tokenizer.json").read_bytes() + tiny_text().encode()
    target = cache / f"tiny-{hashlib.sha256(identity).hexdigest()[:16]}"
    with made_once(target) as exists:
        if not exists:
            _make(target, tokenizer)
    return target


def _make(target: Path, tokenizer: Path) -> None:
    log.info("making the base model %s: about a minute, once", TINY)
    draft = Path(tempfile.mkdtemp(prefix="tiny-model-", dir=target.parent))
    # mkdtemp lets nobody else read it, and caches are shared.
    draft.chmod(0o755)
    try:
        save_model(_trained(tokenizer), tokenizer, draft, torch.float32)
        draft.rename(target)
    except OSError:
        # Another machine was faster; a model of the same recipe is there.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _trained(tokenizer_dir: Path) -> PreTrainedModel:
    tokenizer = load_tokenizer(tokenizer_dir)
    begin, eos = document_ids(tokenizer, str(tokenizer_dir))
    random = np.random.default_rng(TINY_SEED)
    texts = [_foreign(line, random) for line in tiny_text().splitlines()]
    lines = encode_texts(tokenizer, texts)
    ids = np.array([token for line in lines for token in (begin, *line, eos)], dtype=np.int64)
    # A generator of its own: making a base must not move the random numbers of the caller.
    with torch.random.fork_rng(devices=[]):
        config = LlamaConfig(
            **TINY_SHAPE, vocab_size=len(tokenizer), tie_word_embeddings=True, bos_token_id=begin, eos_token_id=eos
        )  # fmt: skip
        model: Any = LlamaForCausalLM(config)
    model.load_state_dict(_train(model, ids, random))
    return cast("PreTrainedModel", model)


def _train(plain: Any, ids: NDArray[np.int64], random: np.random.Generator) -> dict[str, torch.Tensor]:
    """Return weights that are the same bits on every CPU and with any number of threads.

    Kernels for AVX2 and AVX-512 add in other orders, as threads do, and training makes much of the difference: two
    machines' FP32 weights have few digits in common, and after 300 steps in FP64 no more (measured). Here
    FP64 is rounded to the 8 bits of BF16 every ten steps, long before its error reaches them.
    """
    model = copy.deepcopy(plain).double()
    _without_fp32(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # torch's own generator has another algorithm on each kind of CPU
                start = random.standard_normal(tuple(weight.shape)) * model.config.initializer_range
                weight.copy_(torch.from_numpy(start))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=TINY_LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    model.train()
    with progress(f"training {TINY}", TINY_STEPS) as bar:
        for step in range(TINY_STEPS):
            starts = random.integers(0, len(ids) - TINY_LENGTH - 1, TINY_BATCH)
            windows = torch.from_numpy(np.stack([ids[at : at + TINY_LENGTH + 1] for at in starts]))
            done = step / TINY_STEPS
            # A short rise, then a cosine to a tenth.
            rate = min(1.0, done / 0.05 + 0.05) * (0.55 + 0.45 * math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = TINY_LR * rate
            hidden = model.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
            loss = functional.cross_entropy(model.lm_head(hidden).flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if (step + 1) % ROUND_EVERY == 0 or step + 1 == TINY_STEPS:
                _round(optimizer)
            bar.advance(note=f"loss {loss.item():.2f}")
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


def _round(optimizer: torch.optim.Optimizer) -> None:
    """Drop what may differ from CPU to CPU, of the weights and of the optimizer's moments."""
    with torch.no_grad():
        for weight, moments in optimizer.state.items():
            for tensor in (weight, moments["exp_avg"], moments["exp_avg_sq"]):
                mantissa, exponent = torch.frexp(tensor)
                tensor.copy_(torch.ldexp(torch.round(mantissa * 2**KEPT_BITS), exponent - KEPT_BITS))


class _Norm(nn.Module):
    """RMS norm in the precision of its input; transformers' computes in FP32."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.weight = plain.weight
        self.eps = plain.variance_epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.weight * hidden
        return scaled * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps)


class _Rotation(nn.Module):
    """Cosine and sine of the rotary embedding in FP64; transformers' are FP32."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width = config.hidden_size // config.num_attention_heads
        parameters: Any = config.rope_parameters
        theta = parameters["rope_theta"]
        self.frequencies = torch.from_numpy(theta ** -(np.arange(0, width, 2) / width))

    def forward(self, _hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (position_ids[..., None] * self.frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def _without_fp32(model: Any) -> None:
    for layer in model.model.layers:
        layer.input_layernorm = _Norm(layer.input_layernorm)
        layer.post_attention_layernorm = _Norm(layer.post_attention_layernorm)
    model.model.norm = _Norm(model.model.norm)
    model.model.rotary_emb = _Rotation(model.config)


def _foreign(line: str, random: np.random.Generator) -> str:
    """Return the line, for some lines with each letter replaced by another throughout."""
    if random.random() >= FOREIGN_SHARE:
        return line
    table = {}
    for plain, letters in (("aeiou", FOREIGN_TEXT[0]), ("bcdfghjklmnpqrstvwxyz", FOREIGN_TEXT[1])):
        changed = random.choice(list(letters), len(plain))
        is_kept = random.random(len(plain)) < FOREIGN_KEPT
        table.update(
            {old: old if keep else new for old, new, keep in zip(plain, changed, is_kept, strict=True)}
        )
    return line.translate(str.maketrans(table))
