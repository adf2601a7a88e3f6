"""Models that cannot be written as GGUF; checked by export, and before training.

The architecture has to be one that llama.cpp computes as transformers does. A GGUF file holds no expression that cuts
texts, only the name of one in llama.cpp's code. Of SentencePiece's kind llama.cpp merges any two neighbours, by the score
of the result, while `tokenizer.json` lists pairs in order. Both cut alike if each pair that makes a token is listed, and
the pairs of one token follow one another.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedConfig

from anadil.artifacts.base_kind import stored_template
from anadil.artifacts.base_model import tokenizer_config
from anadil.artifacts.base_vocabulary import begins_turns
from anadil.core.errors import DataError, PreflightError
from anadil.model.architecture import read_config
from anadil.model.family import Gguf
from anadil.model.family_table import families
from anadil.model.gguf_layers import FULL, SLIDING, layer_period, layer_types, of_kind
from anadil.text import cut_patterns, pieces

INSTEAD = "export with --format hf, and serve it with vLLM, or convert that with llama.cpp's own converter"
YARN_KEYS = ("mscale", "mscale_all_dim", "truncate")
"""Settings of YaRN that GGUF does not hold."""
ROTATED_LAYERS = 4
"""Period of layers whose last one is not rotated. Source: llama.cpp, src/models/smollm3.cpp, `n_no_rope_layer_step`."""
SENTENCE_PIECE = "default"
"""llama.cpp's name for no cuts."""
DIGIT, DIGITS = r"\p{N}", r"\p{N}+"
JAIS_2_REGEX = cut_patterns.LLAMA_3_REGEX.removesuffix(r"|\s+(?!\S)|\s+") + "".join(
    [rf"|\s{{{number}}}(?!\S)" for number in (512, 256, 128, 64, 32, 16, 8, 4)] + [r"|\s{1,2}(?!\S)|\s{1}"]
)
SEED_CODER_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BAILING_REGEX = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
UFAKZEKA_REGEX = cut_patterns.QWEN_REGEX.removeprefix("(?i:'s|'t|'re|'ve|'m|'ll|'d)|")
BLOOM_REGEX = r" ?[^(\s|.,!?…。，、।۔،)]+"
"""Source of the five: llama.cpp, src/llama-vocab.cpp, where comments have those of tokenizer.json."""
DEEPSEEK_V3_REGEXES = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
"""Source: deepseek-ai/DeepSeek-V3, tokenizer.json."""
NAMES: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        (cut_patterns.LLAMA_3_REGEX,): "llama-bpe",
        (cut_patterns.QWEN_REGEX,): "qwen2",
        (cut_patterns.QWEN_3_5_REGEX,): "qwen35",
        (cut_patterns.GPT_2_REGEX,): "gpt-2",
        (DIGIT, cut_patterns.GPT_2_REGEX): "smollm",
        DEEPSEEK_V3_REGEXES: "deepseek-v3",
        (JAIS_2_REGEX,): "jais-2",
        (SEED_CODER_REGEX,): "seed-coder",
        (BAILING_REGEX,): "bailingmoe",
        (UFAKZEKA_REGEX,): "ufakzeka",
        (BLOOM_REGEX,): "bloom",
        (BLOOM_REGEX, DIGIT): "viking",
    }
)
"""Expressions, one after another -> llama.cpp's name. Source: llama.cpp, src/llama-vocab.cpp and src/unicode.cpp."""
# llama.cpp's code for `gpt-4o`, `tekken`, `superbpe`, `exaone-moe` and `deepseek-coder` cuts otherwise than their
# expressions, so those names are missing.
TAKES_WHOLE = "llama-bpe"
"""The one name for which llama.cpp takes a whole piece as a token without its merges."""
SAME_CUTS = "smaug-bpe"
CONTROLS = ("</s>", "<eos>", "<EOT>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
"""Texts that llama.cpp takes for ends whatever a file says of them. Source: llama.cpp, src/llama-vocab.cpp."""


def gguf_refusal(directory: Path) -> str:
    """Reason why a model cannot be written as GGUF, by its config.json and tokenizer; empty if it can."""
    if fault := shape_fault(read_config(directory)):
        return fault
    tokenizer = read_tokenizer(directory)
    fault = gguf_fault(tokenizer) or _frame_fault(directory, tokenizer)
    return f"llama.cpp cannot read its tokenizer: {fault}" if fault else ""


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model's directory."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise DataError(f"{file}: no such file; give a whole Hugging Face model directory")
    return Tokenizer.from_file(str(file))


def check_gguf(directory: Path) -> None:
    """Refuse a model that cannot be written as GGUF."""
    if fault := gguf_refusal(directory):
        raise PreflightError(f"{directory}: {fault}; {INSTEAD}")


def gguf_words(directory: Path) -> str:
    """llama.cpp's name for the tokenizer of a model without `gguf_refusal`, and its differences."""
    tokenizer = read_tokenizer(directory)
    note = gguf_note(tokenizer)
    return gguf_name(json.loads(tokenizer.to_str())) + (f" ({note})" if note else "")


def special_ids(directory: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """Role in GGUF -> id of each special token."""
    settings = tokenizer_config(directory)
    ids: dict[str, int] = {}
    for role in ("bos", "eos", "pad", "unk"):
        written = settings.get(f"{role}_token")
        text = written.get("content") if isinstance(written, dict) else written
        index = tokenizer.token_to_id(text) if text else None
        if index is not None:
            ids[role] = index
    # Without a setting, BOS and EOS are the tokens that the tokenizer puts round a text. The beginning of a turn begins none.
    for role, put in zip(("bos", "eos"), frame(tokenizer), strict=True):
        named = tokenizer.id_to_token(ids[role]) if role in ids else None
        if len(put) == 1 and (named is None or begins_turns(named, str(stored_template(directory)))):
            ids[role] = put[0]
    return ids


def frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that a tokenizer puts before a text and behind it."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[:at], whole[at + len(plain) :]


def _frame_fault(directory: Path, tokenizer: Tokenizer) -> str:
    special = special_ids(directory, tokenizer)
    before, after = frame(tokenizer)
    if before in ([], [special.get("bos")]) and after in ([], [special.get("eos")]):
        return ""
    return f"it puts {before} before a text and {after} behind it, and llama.cpp no other tokens than BOS and EOS"


def gguf_family(config: PreTrainedConfig) -> Gguf | None:
    """llama.cpp's settings for the model's type; None if it is not exported."""
    family = families().get(config.model_type)
    return family.gguf if family else None


def shape_fault(config: PreTrainedConfig) -> str:
    """Reason why llama.cpp cannot compute a model; empty if it can."""
    kind = gguf_family(config)
    if kind is None:
        types = ", ".join(sorted(name for name, each in families().items() if each.gguf))
        return f"model type {config.model_type!r} is not written as GGUF, only {types}"
    for key, value in kind.fixed.items():
        if (actual := getattr(config, key, value)) != value:
            return f"{key} is {actual!r}, and llama.cpp's {kind.architecture} computes {value!r}"
    if not kind.own_head_size and head_size(config) * config.num_attention_heads != config.hidden_size:
        return f"head_dim is {head_size(config)}, and llama.cpp's {kind.architecture} has only hidden size / heads"
    if not kind.groups and key_value_heads(config) < config.num_attention_heads:
        return f"num_key_value_heads is {key_value_heads(config)}, and llama.cpp's {kind.architecture} shares none"
    if lost := [key for key in kind.needs if getattr(config, key, None) is None]:
        return f"{lost[0]} has no value, and llama.cpp's {kind.architecture} takes one of its own"
    if kind.kinds and (kinds := {*layer_types(config)}) != kind.kinds:
        needed = ", ".join(sorted(kind.kinds))
        return f"its layers are {', '.join(sorted(kinds))}, and llama.cpp's {kind.architecture} needs each of {needed}"
    return kind.fault(config) or _rotation_fault(config, kind) or _window_fault(config, kind)


def _rotation_fault(config: PreTrainedConfig, kind: Gguf) -> str:
    scaling = rotation(config)
    rotates = scaling["rope_type"]
    if rotates not in kind.scalings:
        return f"rotation scaled by {rotates!r} is not written as GGUF for it, only {', '.join(sorted(kind.scalings))}"
    if not kind.partial and (share := scaling.get("partial_rotary_factor") or 1) != 1:
        return f"partial_rotary_factor is {share}, and llama.cpp would rotate that part of a head, transformers all of it"
    if rotates == "yarn":
        usual = 0.1 * math.log(scaling["factor"]) + 1  # of the paper, arXiv:2309.00071, section 3.4
        others = [key for key in YARN_KEYS if scaling.get(key) is not None]
        if (
            "rope.scaling.yarn_log_multiplier" in kind.numbers
            and others == ["mscale", "mscale_all_dim"]
            and scaling["mscale"] == scaling["mscale_all_dim"] == 1
        ):
            usual, others = 1.0, []  # they cancel
        if others or not math.isclose(scaling.get("attention_factor") or usual, usual, rel_tol=1e-6):
            return f"rotation scaled by 'yarn' with {', '.join(others) or 'attention_factor'}, which GGUF does not hold"
    layers = range(config.num_hidden_layers)
    rotated = getattr(config, "no_rope_layers", None)  # 0 is a layer without, whatever the name says
    if rotated and rotated != [int((layer + 1) % ROTATED_LAYERS > 0) for layer in layers]:
        return f"llama.cpp's {kind.architecture} rotates three of four layers"
    return ""


def _window_fault(config: PreTrainedConfig, kind: Gguf) -> str:
    # Where llama.cpp knows one period alone, its layers have windows also without a word of them.
    if kind.windows == "none" or (not kind.period and SLIDING not in layer_types(config)):
        return ""
    if not config.sliding_window:
        return "sliding_window has no value, and layers with a window are to be written"
    period = layer_period(config)
    if (period is None and kind.windows != "own_head") or kind.period not in (None, period):
        number = f"{kind.period} in llama.cpp's {kind.architecture}" if kind.period else "one number"
        return f"layers with and without a window do not alternate by {number}"
    if local := config.rope_parameters.get(SLIDING):
        if local["rope_type"] != "default":
            return f"the rotation of layers with a window is scaled by {local['rope_type']!r}"
        if kind.windows == "same_base" and local["rope_theta"] != rotation(config)["rope_theta"]:
            return (
                f"layers with a window have a base of their own, and llama.cpp's {kind.architecture} has one"
            )
    return ""


def context_length(config: PreTrainedConfig, kind: Gguf) -> int:
    """Tokens that llama.cpp computes as transformers does; those of a window if it knows no windows."""
    longest = int(config.max_position_embeddings)
    knows = kind.windows != "none" or SLIDING not in layer_types(config)
    return longest if knows else min(longest, int(config.sliding_window))


def rotation(config: PreTrainedConfig) -> Mapping[str, Any]:
    """Base and scaling of the rotation; of layers that see all if there are two."""
    written: Mapping[str, Any] = config.rope_parameters
    return written.get(FULL, written)  # type: ignore[no-any-return]


def key_value_heads(config: PreTrainedConfig) -> int:
    """Heads of keys and values."""
    return int(getattr(of_kind(config, FULL), "num_key_value_heads", None) or config.num_attention_heads)


def head_size(config: PreTrainedConfig) -> int:
    """Numbers of a head."""
    size = getattr(of_kind(config, FULL), "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


def expressions(pre_tokenizer: cut_patterns.JsonObject | None) -> tuple[str, ...] | None:
    """Expressions of a byte-level pre-tokenizer, in order; None for any other kind."""
    *before, last = cut_patterns.pre_tokenizer_parts(pre_tokenizer or {})
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    patterns = [*map(_expression, before), cut_patterns.GPT_2_REGEX if last.get("use_regex", True) else ""]
    return None if None in patterns else tuple(filter(None, patterns))


def _expression(part: cut_patterns.JsonObject) -> str | None:
    if part.get("type") == "Digits":
        return DIGIT if part.get("individual_digits") else DIGITS
    if part.get("type") == "Split":
        pattern: str | None = part["pattern"].get("Regex")
        how = (part.get("behavior"), bool(part.get("invert")))
        # tiktoken's spelling: keep the matches and drop the rest, which is empty here.
        covers = how == ("Removed", True) and (pattern or "").endswith(r"|\s+")
        if how != ("Isolated", False) and not covers:
            return None
        # A slash before a quotation mark means nothing; files have it or not.
        return pattern and pattern.replace(r"[!\"#", '[!"#').replace('[!"#', r"[!\"#")
    return None


def gguf_fault(tokenizer: Tokenizer) -> str:
    """Reason why llama.cpp cannot read a tokenizer; empty if it can."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    if model.get("type") != "BPE":
        return f"it is of type {model.get('type')}, not BPE"
    if model.get("dropout"):
        return "it drops merges at random"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "it marks the beginnings or ends of words"
    texts = tokenizer.get_vocab(with_added_tokens=True)
    if cut := next((text for text in texts if "\0" in text), None):
        return f"its token {cut!r} holds a NUL, at which llama.cpp ends a text"
    for each in content.get("added_tokens", ()):
        if not each["special"] and (each["lstrip"] or each["rstrip"] or each["single_word"]):
            return f"its added token {each['content']!r} swallows blanks round it"
    return pieces_fault(content) if pieces.is_of_pieces(content) else _byte_level_fault(content)


def _byte_level_fault(content: cut_patterns.JsonObject) -> str:
    model, normalizer = content["model"], content.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        return f"it normalizes texts ({normalizer['type']})"
    if model.get("unk_token") and not set(cut_patterns.ALPHABET) <= model["vocab"].keys():
        return "it reads a byte that it lacks as its unknown token"
    cuts = expressions(content.get("pre_tokenizer"))
    if cuts is None or cuts not in NAMES:
        return f"it cuts texts by another expression than {', '.join(NAMES.values())}"
    if (unmerged := _unmerged(content)) and not (model.get("ignore_merges") and NAMES[cuts] == TAKES_WHOLE):
        return f"its merges do not make the token {unmerged!r}, which llama.cpp makes of merges alone"
    return ""


def gguf_note(tokenizer: Tokenizer) -> str:
    """Differences in llama.cpp for a tokenizer without `gguf_fault`; empty for none."""
    notes = []
    content = json.loads(tokenizer.to_str())
    if pieces.is_of_pieces(content):
        if by_metaspace := blank_by_metaspace(content):
            notes.append(f"llama.cpp puts a space before {by_metaspace}")
    elif tokenizer.normalizer is not None:
        notes.append("llama.cpp does not normalize: a text that is not in NFC becomes other tokens there")
    elif missing := len(set(cut_patterns.ALPHABET) - tokenizer.get_vocab(with_added_tokens=False).keys()):
        notes.append(
            f"its vocabulary lacks {missing} of the 256 bytes: a text that holds one becomes other tokens in llama.cpp"
        )
    added = content.get("added_tokens", ())
    special = {each["content"] for each in added if each["special"]}
    ordinary = {*content["model"]["vocab"], *(each["content"] for each in added)} - special
    if ends := sorted(ordinary.intersection(CONTROLS)):
        notes.append(f"llama.cpp takes the token {ends[0]!r} for a control token, which a text cannot hold")
    if stripping := [each["content"] for each in added if each["lstrip"] or each["rstrip"]]:
        notes.append(f"blanks beside {stripping[0]!r} are swallowed here, and tokens in llama.cpp")
    return "; ".join(notes)


def gguf_name(content: cut_patterns.JsonObject) -> str:
    """The name of llama.cpp's pre-tokenizer for a tokenizer without `gguf_fault`."""
    if pieces.is_of_pieces(content):
        return SENTENCE_PIECE
    cuts = expressions(content.get("pre_tokenizer"))
    assert cuts is not None, "asked after gguf_fault"
    merges = not content["model"].get("ignore_merges")
    return SAME_CUTS if NAMES[cuts] == TAKES_WHOLE and merges and _unmerged(content) else NAMES[cuts]


def _unmerged(content: cut_patterns.JsonObject) -> str | None:
    """A token that its own merges do not make, if there is one."""
    model = content["model"]
    merging = content | {"model": model | {"ignore_merges": False}}
    tokenize = Tokenizer.from_str(json.dumps(merging, ensure_ascii=False)).model.tokenize
    alphabet = set(cut_patterns.ALPHABET)
    added = {each["content"] for each in content.get("added_tokens", ())}
    ordinary = (text for text in model["vocab"] if text not in added and alphabet.issuperset(text))
    return next((text for text in ordinary if len(tokenize(text)) != 1), None)


def pieces_fault(content: cut_patterns.JsonObject) -> str:
    """Reason why llama.cpp cannot cut as such a tokenizer; empty if it can."""
    model = content["model"]
    vocab: Mapping[str, int] = model["vocab"]
    if model.get("ignore_merges"):
        return "it takes whole pieces without merges"
    if missing := sum(token not in vocab for token in pieces.BYTE_TOKENS):
        return f"its vocabulary lacks {missing} of the 256 bytes"
    return pieces.blanks_fault(content) or _merges_fault(vocab, list(_pairs(model)))


def blank_by_metaspace(content: cut_patterns.JsonObject) -> str:
    """The texts that get a space in front in llama.cpp alone; empty for none."""
    cuts = cut_patterns.pre_tokenizer_parts(content.get("pre_tokenizer") or {})
    schemes = {each.get("prepend_scheme") for each in cuts if each.get("type") == "Metaspace"}
    if "first" in schemes:
        return "a text that begins with one, and before text behind every special token"
    return "a text that begins with one" if "always" in schemes else ""


def _pairs(model: cut_patterns.JsonObject) -> Iterator[tuple[str, str]]:
    for pair in model["merges"]:
        left, right = pair if isinstance(pair, list) else pair.split(" ")
        yield left, right


def _merges_fault(vocab: Mapping[str, int], pairs: list[tuple[str, str]]) -> str:
    seen, last = set(), ""
    for left, right in pairs:
        text = left + right
        if text != last and text in seen:
            return f"the merges that make {text!r} do not follow one another"
        seen.add(text)
        last = text
    listed = set(pairs)
    for text in vocab:
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            parts_known = (left in vocab or at == 1) and (right in vocab or len(right) == 1)
            if parts_known and (left, right) not in listed:
                return f"its merges do not make {text!r} of {left!r} and {right!r}, and llama.cpp would"
    return ""


def scores(model: cut_patterns.JsonObject) -> dict[str, float]:
    """Token -> score, higher for earlier merges; only for tokens that merges make."""
    merged = dict.fromkeys(left + right for left, right in _pairs(model))
    return {text: -float(rank) for rank, text in enumerate(merged, 1)}
