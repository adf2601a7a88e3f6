"""The base model as a local directory; `tiny` is made on the spot.

`tiny` stands for a foundation model where there is no network and no GPU: a Llama of a few
million parameters, trained for seconds on the English that Python carries. It is far better
than chance on English; of other languages it has met the letters and knows no word.
"""

import hashlib
import json
import logging
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from anadil.base import TINY, TINY_SHAPE, base_tokenizer, from_hub, tiny_text
from anadil.config import Base
from anadil.model.load import (
    TOKENIZER_FILES,
    document_ids,
    encode_texts,
    load_tokenizer,
    save_model,
)
from anadil.model.loss import summed_loss
from anadil.progress import progress

log = logging.getLogger(__name__)

TINY_STEPS = 300
TINY_BATCH = 8
TINY_LENGTH = 64
"""Tokens of a training sequence."""
TINY_LR = 2e-3
"""Of 2e-3, 4e-3 and 8e-3 the best on English that was left out."""
SEED = 20_250_101
FOREIGN_SHARE = 0.35
"""Lines written in made-up words. Without them Azerbaijani cost 9.8 bits per byte, more than a
uniform guess (8.9), because letters outside English had never been seen; with them 5.2."""
FOREIGN_KEPT = 0.5
"""Letters that such a line leaves as they are."""
FOREIGN = (
    "aeiouyäöüéèêëáàâãåíîïóôúûıəőű",
    "bcdfghjklmnpqrstvwxzçşğčšžñłćśźřťďň",
)
"""Vowels and consonants of languages in Latin letters."""
HUB_FILES = (*TOKENIZER_FILES, "config.json", "generation_config.json", "*.safetensors", "*.index.json")


def base_model(base: Base, cache: Path) -> Path:
    """A Hugging Face directory with the base model: weights, config and tokenizer.

    Args:
        base: Which model.
        cache: Where `tiny` is kept.

    Raises:
        DataError: The directory is not there or holds no tokenizer.
        IntegrityError: Its tokenizer wants to run code of its own.
        PreflightError: A hub model is not in the local cache and cannot be fetched.
    """
    tokenizer = base_tokenizer(base, cache)
    if base.model == TINY:
        return _tiny_model(tokenizer, cache)
    if Path(base.model).expanduser().is_dir():
        return tokenizer
    return from_hub(base, HUB_FILES)


def _tiny_model(tokenizer: Path, cache: Path) -> Path:
    """The directory of `tiny`; made once, in one step, for all processes."""
    settings = json.dumps(
        [TINY_SHAPE, FOREIGN_SHARE, FOREIGN_KEPT, FOREIGN, TINY_STEPS, TINY_BATCH, TINY_LENGTH, TINY_LR, SEED]
    )
    identity = settings.encode() + (tokenizer / "tokenizer.json").read_bytes() + tiny_text().encode()
    target = cache / f"tiny-{hashlib.sha256(identity).hexdigest()[:16]}"
    if target.is_dir():
        return target
    log.info("making the base model %s: some seconds, once", TINY)
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="tiny-model-", dir=cache))
    draft.chmod(0o755)
    try:
        save_model(_trained(tokenizer), tokenizer, draft, torch.float32)
        draft.rename(target)
    except OSError:
        # Another process was faster; a model of the same recipe is there.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _trained(tokenizer_dir: Path) -> PreTrainedModel:
    tokenizer = load_tokenizer(tokenizer_dir)
    bos, eos = document_ids(tokenizer, str(tokenizer_dir))
    random = np.random.default_rng(SEED)
    texts = [_foreign(line, random) for line in tiny_text().splitlines()]
    lines = encode_texts(tokenizer, texts)
    start = [] if bos is None else [bos]
    ids = np.array([token for line in lines for token in (*start, *line, eos)], dtype=np.int64)
    # A generator of its own: making a base must not move the random numbers of the caller.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                **TINY_SHAPE,
                vocab_size=len(tokenizer),
                tie_word_embeddings=True,
                bos_token_id=bos,
                eos_token_id=eos,
            )
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=TINY_LR, betas=(0.9, 0.95), weight_decay=0.1)
    model.train()
    with progress(f"training {TINY}", TINY_STEPS) as shown:
        for step in range(TINY_STEPS):
            starts = random.integers(0, len(ids) - TINY_LENGTH - 1, TINY_BATCH)
            windows = torch.from_numpy(np.stack([ids[at : at + TINY_LENGTH + 1] for at in starts]))
            for group in optimizer.param_groups:
                group["lr"] = TINY_LR * _rate(step / TINY_STEPS)
            hidden = model.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
            loss = summed_loss(hidden, model.lm_head.weight, windows[:, 1:]) / windows[:, 1:].numel()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            shown.advance(note=f"loss {loss.item():.2f}")

    return model


def _foreign(line: str, random: np.random.Generator) -> str:
    """The line, or for some lines the same with each letter replaced by another throughout."""
    if random.random() >= FOREIGN_SHARE:
        return line
    table = {}
    for plain, letters in (("aeiou", FOREIGN[0]), ("bcdfghjklmnpqrstvwxyz", FOREIGN[1])):
        changed = random.choice(list(letters), len(plain))
        kept = random.random(len(plain)) < FOREIGN_KEPT
        table.update({old: old if keep else new for old, new, keep in zip(plain, changed, kept, strict=True)})
    return line.translate(str.maketrans(table))


def _rate(done: float) -> float:
    """Share of the peak rate: a short rise, then a cosine to a tenth."""
    return min(1.0, done / 0.05 + 0.05) * (0.55 + 0.45 * math.cos(math.pi * done))
