"""Bases as families publish them: tokenizers of their make, small, beside random models."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from anadil.text.cut_patterns import LLAMA_3_REGEX, QWEN_REGEX
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

END = "<|endoftext|>"
ORDINARY = 300
"""Tokens but for added ones."""
PHI_4_REGEX = LLAMA_3_REGEX.replace(r"\s*[\r\n]+", r"\s*[\r\n]")
"""Of no pattern that is known here. Source: microsoft/phi-4, tokenizer.json."""
BLOOM_REGEX = r" ?[^(\s|[.,!?…。，、।۔،])]+"
"""Source: bigscience/bloom, tokenizer.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What a family's directory has of its own."""

    model_type: str
    make: Callable[[], Tokenizer]
    special: Sequence[str] = (END,)
    """With ids after all others."""
    blanks: int = 0
    """Added tokens of so many blanks and fewer that are not special."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of tokenizer_config.json."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Role -> token whose id config.json gives."""
    lists_special: bool = True
    """Whether `added_tokens` of tokenizer.json holds the special tokens, or only the vocabulary does."""


def make_base(folder: Path, style: str) -> Path:
    """A Hugging Face directory of a style of `STYLES`."""
    from tests.kit.families import make_family  # torch: its tokenizer alone needs none

    make_base_tokenizer(folder, style)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return make_family(folder, config.pop("model_type"), **config)


def make_base_tokenizer(folder: Path, style: str) -> Path:
    """The same without weights."""
    made = STYLES[style]
    tokenizer = made.make()
    if made.lists_special:
        tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in made.special]
        )
    tokenizer.add_tokens([AddedToken(" " * num, normalized=True) for num in range(made.blanks, 1, -1)])
    content = json.loads(tokenizer.to_str())
    if not made.lists_special:
        vocab = content["model"]["vocab"]
        vocab |= {token: len(vocab) + number for number, token in enumerate(made.special)}
    known = content["model"]["vocab"] | {each["content"]: each["id"] for each in content["added_tokens"]}
    # Families fill their embeddings up.
    config = {"model_type": made.model_type, "vocab_size": (max(known.values()) // 64 + 1) * 64}
    config |= {f"{role}_token_id": known[token] for role, token in made.ids.items()}
    files = {"tokenizer.json": content, "tokenizer_config.json": made.settings, "config.json": config}
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in files.items():
        (folder / name).write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
    return folder


def _byte_level(
    *before: pre_tokenizers.PreTokenizer, use_regex: bool = False, special: Sequence[str] = ()
) -> Tokenizer:
    """One with `special` as its first ids."""
    tokenizer = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, last]) if before else last
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ORDINARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(special),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PRETRAINING_TEXTS, trainer)
    return tokenizer


def _qwen() -> Tokenizer:
    tokenizer = _byte_level(pre_tokenizers.Split(Regex(QWEN_REGEX), "isolated"))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _falcon() -> Tokenizer:
    """Source: tiiuae/falcon-7b, tokenizer.json."""
    tokenizer = _byte_level(use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    return tokenizer


def _sentence_piece(special: Sequence[str] = ("<unk>", "<s>", "</s>"), *, leads: bool = True) -> Tokenizer:
    """As transformers converts those of Llama 2 and Mistral; of Gemma without a blank before a text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    blanks = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if leads else blanks
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)] if leads else joined)
    trainer = trainers.BpeTrainer(
        vocab_size=ORDINARY,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(PRETRAINING_TEXTS, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] in special]
    return Tokenizer.from_str(json.dumps(content))


PIECES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>")
BLOOM = ("<unk>", "<s>", "</s>", "<pad>")
STYLES: dict[str, Style] = {
    "gpt2": Style(
        model_type="llama",
        make=lambda: _byte_level(use_regex=True),
        settings={f"{role}_token": END for role in ("bos", "eos", "unk")},
        ids={"bos": END, "eos": END},
        lists_special=False,
    ),
    # As openai-community/gpt2 has it: config.json alone says what ends a text.
    "gpt2 by ids": Style(
        model_type="llama",
        make=lambda: _byte_level(use_regex=True),
        settings={"model_max_length": 1024},
        ids={"bos": END, "eos": END},
        lists_special=False,
    ),
    "qwen2": Style(
        model_type="qwen2",
        make=_qwen,
        special=(END, "<|im_start|>", "<|im_end|>"),
        settings={"bos_token": None, "eos_token": END, "pad_token": END, "tokenizer_class": "Qwen2Tokenizer"},
        ids={"bos": END, "eos": END},
    ),
    "bloom": Style(
        model_type="llama",
        make=lambda: _byte_level(pre_tokenizers.Split(Regex(BLOOM_REGEX), "isolated"), special=BLOOM),
        special=(),
        settings={**PIECES, "pad_token": "<pad>"},
        ids={"bos": "<s>", "eos": "</s>", "pad": "<pad>"},
    ),
    "falcon": Style(
        model_type="llama",
        make=_falcon,
        settings={"eos_token": END, "pad_token": "<|pad|>"},
        special=(END, "<|pad|>", ">>TITLE<<"),
        ids={"bos": END, "eos": END},
    ),
    "phi": Style(
        model_type="phi3",
        make=lambda: _byte_level(pre_tokenizers.Split(Regex(PHI_4_REGEX), "isolated")),
        special=(END, "<|im_end|>"),
        blanks=8,
        settings={f"{role}_token": END for role in ("bos", "eos", "unk")},
        ids={"bos": END, "eos": "<|im_end|>"},
    ),
    "gemma": Style(
        model_type="gemma",
        make=lambda: _sentence_piece(GEMMA, leads=False),
        special=(),
        settings={f"{token[1:-1]}_token": token for token in GEMMA},
        ids={"bos": "<bos>", "eos": "<eos>", "pad": "<pad>"},
    ),
    **{
        name: Style(
            model_type=model_type,
            make=_sentence_piece,
            special=(),
            settings=PIECES,
            ids={"bos": "<s>", "eos": "</s>"},
        )
        for name, model_type in (("mistral", "mistral"), ("llama 2", "llama"))
    },
}
SENTENCE_PIECE = ("gemma", "mistral", "llama 2")
"""Those whose vocabulary nothing here replaces."""
