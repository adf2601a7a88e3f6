"""A tokenizer of SentencePiece's kind, as converters write it: every pair that makes a token is a merge."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

BLANK = "\u2581"
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
ORDINARY = ("<td>", "<start>")
"""Added tokens that a text may hold."""
REPLACES = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
JOINS = [
    {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIPS = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
CUTS = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
METASPACE = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first", "split": False}
STRIPPED = {"type": "Sequence", "decoders": [*JOINS, STRIPS]}
LIKE_GEMMA: dict[str, Any] = {
    "normalizer": REPLACES, "pre_tokenizer": CUTS, "decoder": {"type": "Sequence", "decoders": JOINS},
}  # fmt: skip
LIKE_LLAMA_2: dict[str, Any] = {
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK}, REPLACES]},
    "pre_tokenizer": None, "decoder": STRIPPED,
}  # fmt: skip
LIKE_MISTRAL: dict[str, Any] = {"normalizer": None, "pre_tokenizer": METASPACE, "decoder": STRIPPED}


def make_pieces(folder: Path, texts: Iterable[str], how: dict[str, Any], *, size: int = 700) -> Path:
    """A tokenizer directory; `how` are keys of tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*SPECIAL, *ORDINARY, *(f"<0x{byte:02X}>" for byte in range(256)), *_words(texts, size)]
    vocab = {text: index for index, text in enumerate(dict.fromkeys(pieces))}
    merges = [
        (text[:at], text[at:])
        for text in list(vocab)[len(SPECIAL) + len(ORDINARY) + 256 :]
        for at in range(1, len(text))
        if text[:at] in vocab and text[at:] in vocab
    ]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ORDINARY])
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
    )
    content = json.loads(tokenizer.to_str()) | how
    (folder / "tokenizer.json").write_text(json.dumps(content))
    settings = {f"{role}_token": f"<{role}>" for role in ("pad", "eos", "bos", "unk")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    )
    return folder


def _words(texts: Iterable[str], size: int) -> list[str]:
    """Characters and longer pieces in the order in which they are learned."""
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizers.Replace(" ", BLANK)
    learned.pre_tokenizer = pre_tokenizers.Split(BLANK, "merged_with_next")
    learned.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    runs = [character * number for character in (BLANK, "\n") for number in range(1, 9)]
    return [*sorted(learned.get_vocab(), key=learned.get_vocab().__getitem__), *runs]
