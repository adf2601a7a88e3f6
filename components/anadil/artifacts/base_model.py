"""Tokenizer of the base model, and the small English base `tiny` that is made on the spot.

Tokenizers are opened by the `tokenizers` library alone, which reads data and runs no code of the model's repository.
"""

import contextlib
import functools
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.artifacts.lease import locked
from anadil.artifacts.packaged_base import PACKAGED, make_packaged
from anadil.artifacts.text_part import read_settings, text_config
from anadil.artifacts.weight_files import has_weights
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.core.files import atomic_dir
from anadil.core.format import number
from anadil.core.json_text import json_sha256, parse_json, write_indented
from anadil.recipe.sections import Base
from anadil.text.cut_patterns import LLAMA_3_REGEX

if TYPE_CHECKING:
    from tokenizers import Tokenizer
from collections.abc import Mapping

from anadil.artifacts.weight_files import ALONE, INDEX

log = logging.getLogger(__name__)

TINY = "tiny"
BUILT_IN = frozenset({TINY, *PACKAGED})
"""Names of bases that are made on this machine; a directory of the same name is meant by `./tiny`."""
CHAT_TEMPLATE = Path(__file__).parents[1] / "builtin/chat_template.jinja"
TINY_TEXT = CHAT_TEMPLATE.with_name("en") / "python_manual.txt"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "config.json", "generation_config.json", "README.md", "tokenizer.model",
)  # fmt: skip

BEGIN = "<|begin_of_text|>"
END = "<|end_of_text|>"
PAD = "<|finetune_right_pad_id|>"
CHAT_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
"""Marks that the chat template needs as single tokens."""
OTHER_CHAT_TOKENS = (("<start_of_turn>", "<end_of_turn>"), ("<|im_start|>", "<|im_end|>"))
"""Control tokens of other families' templates, Gemma's and ChatML: a base without a template is taught by these."""
LLAMA_3_SPECIALS = (BEGIN, END, PAD, *CHAT_TOKENS)
COPIED_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
"""Files of a tokenizer that lie beside a model's weights, each where the model has it."""
TERMS = ("LICENSE*", "NOTICE*", "USE_POLICY*")
"""Files that the base's licence requires beside every copy."""

MAX_GAP, MAX_GAP_SHARE = 100_000, 2
"""Ids that a vocabulary may leave out: a number, and for each of its tokens. Published ones leave out some hundred."""
TINY_BPE_TOKENS = 4_096
"""Ordinary tokens of `tiny`: few enough for its text, so that each is seen many times."""
TINY_VOCABULARY = TINY_BPE_TOKENS + len(LLAMA_3_SPECIALS)
TINY_MAX_LENGTH = 131_072
"""Longest input, as in Llama 3.2's own tokenizer_config.json."""
TINY_SHAPE: dict[str, Any] = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip
"""2.4 million parameters, a third of them embeddings."""
TINY_PATIENCE_S = 1_800.0
"""How long a process waits for another that makes it: on a busy machine a minute becomes many."""
LOCAL_BASES = "ANADIL_LOCAL_BASES"
"""Variable with bases that were directories, a line each, for the processes that this one starts too: `models/mine` may
as well be a hub id when it has gone."""


def base_tokenizer(base: Base, cache: Path, key: str = "base.model") -> Path:
    """Return a directory with the base's `tokenizer.json` and, where it has them, its other tokenizer files.

    Weights are not checked: a tokenizer alone is enough to compare tokenizers. That of `tiny` is kept in `cache`, as is a
    packaged base, whole. Errors name the recipe's `key`.
    """
    if base.model in PACKAGED:
        target = packaged_place(base.model, cache)
        with made_once(target) as exists:
            if not exists:
                make_packaged(base.model, target, key)
        return target
    if base.model == TINY:
        target = cache / f"tiny-tokenizer-{tiny_source()[:16]}"
        with made_once(target) as exists:
            if not exists:
                _make_tiny_tokenizer(target)
        return target
    folder = Path(base.model).expanduser()
    if not is_local(base.model):
        folder = from_hub(base, TOKENIZER_FILES, key)
    if not (folder / "tokenizer.json").is_file():
        raise DataError(
            f"{key}: {folder} holds no tokenizer.json; only models with a fast tokenizer can be used "
            "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one)"
        )
    if "auto_map" in tokenizer_config(folder):
        raise IntegrityError(
            f"{folder}/tokenizer_config.json: names code to run (auto_map), and none is run; "
            f"remove the key if tokenizer.json alone is right, or choose another {key}"
        )
    return folder


def packaged_place(model: str, cache: Path) -> Path:
    """Directory of a packaged base, whether it is made or not."""
    return cache / f"{model}-{PACKAGED[model].identity[:16]}"


def is_local(model: str) -> bool:
    """Return whether `base.model` is a directory now."""
    if model in BUILT_IN:
        return False
    # A path that was a directory in this run is never looked up on the hub.
    if is_directory := Path(model).expanduser().is_dir():
        os.environ[LOCAL_BASES] = "\n".join({*_local_bases(), model})
    return is_directory


def _local_bases() -> list[str]:
    return os.environ.get(LOCAL_BASES, "").split("\n")


def refuse_gone(model: str, maker: str) -> None:
    """Refuse a base that was a directory and is none now."""
    if model not in BUILT_IN and not is_local(model):
        raise DataError(
            f"base.model: the directory {model!r} has gone, and {maker} was made of it; put it back and run again"
        )


def model_config(directory: Path) -> dict[str, Any]:
    """The content of a model directory's `config.json`, as `text_config` views it."""
    path = directory / "config.json"
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a Hugging Face model directory")
    config = read_settings(path)
    check_directory(directory, config)
    return text_config(config, path)


def tokenizer_config(directory: Path) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; empty where there is none."""
    return read_settings(directory / "tokenizer_config.json")


def read_tokenizer(directory: Path) -> "Tokenizer":
    """Return the tokenizer of a directory, set to read documents."""
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a directory that holds a tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  tokenizers raises nothing narrower
        raise DataError(f"{path}: tokenizers cannot read it ({error}); fetch or make it again") from None
    _require_own_ids(tokenizer, path)
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise DataError(
            f"{path}: model.dropout is {dropout:g}, so each reading cuts a text another way; set it to null"
        )
    # Truncation and padding of the file would lose text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Text such as `<|eot_id|>` inside a document stays text. The file does not store this setting, and
    # `add_special_tokens=False` does not give it.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _require_own_ids(tokenizer: "Tokenizer", path: Path) -> None:
    """Refuse a file without some ids: the library then silently counts those of added tokens from the number of tokens."""
    content = parse_json(path.read_text(encoding="utf-8"))
    vocab = content["model"].get("vocab")
    last = max(vocab.values(), default=0) if isinstance(vocab, dict) else 0
    if last > MAX_GAP + MAX_GAP_SHARE * len(vocab):
        raise DataError(
            f"{path}: an id is {last:,}, for {len(vocab):,} tokens: a model would need a row for each up to it; fetch or "
            "make it again"
        )
    ids: dict[str, int] = {}
    for token in content.get("added_tokens", ()):
        if token["content"] in ids:
            raise DataError(
                f"{path}: added_tokens names {token['content']!r} twice, with ids {ids[token['content']]} and {token['id']}. "
                "Take out what the model was not trained with"
            )
        ids[token["content"]] = token["id"]
        own_id = tokenizer.token_to_id(token["content"])
        if own_id != token["id"]:
            raise DataError(
                f"{path}: {token['content']!r} has id {token['id']}, and tokenizers reads it as {own_id}, because ids are "
                "missing before it; give model.vocab of the file an entry for each of added_tokens"
            )


@functools.cache
def tiny_text() -> str:
    """English prose, some 300 KB, a paragraph a line: Python 3.11.7's language reference, kept here, since each Python has another.

    Tables, grammar, code and headings are left out.
    """
    return TINY_TEXT.read_text(encoding="utf-8").removesuffix("\n")


def tiny_source() -> str:
    """Digest of what `tiny` is made from."""
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    settings = [LLAMA_3_REGEX, LLAMA_3_SPECIALS, TINY_BPE_TOKENS, TINY_MAX_LENGTH, template, tiny_text()]
    return json_sha256(settings, sort_keys=False)


@contextlib.contextmanager
def made_once(target: Path, patience_s: float = TINY_PATIENCE_S) -> Iterator[bool]:
    """Yield whether a directory of a base exists; of several processes, the first makes it and the others wait."""
    if target.is_dir():
        yield True
        return
    with locked(target.with_name(f".{target.name}"), patience_s):
        yield target.is_dir()


def _make_tiny_tokenizer(target: Path) -> None:
    text = tiny_text()
    log.info("making the tokenizer of the base model %s from %s KB of English", TINY, len(text) // 1000)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": PAD,
        "model_max_length": TINY_MAX_LENGTH, "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }  # fmt: skip
    with atomic_dir(target) as draft:
        _train_tiny(text).save(str(draft / "tokenizer.json"))
        write_indented(draft / "tokenizer_config.json", config, 2)
        shutil.copyfile(CHAT_TEMPLATE, draft / CHAT_TEMPLATE.name)


def _train_tiny(text: str) -> "Tokenizer":
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_BPE_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in LLAMA_3_SPECIALS]
    )
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN}:1 $B:1", special_tokens=[(BEGIN, begin)]
            ),
        ]
    )
    return tokenizer


def from_hub(base: Base, patterns: Sequence[str], key: str = "base.model") -> Path:
    """The local copy of some of a hub model's files; fetched if they are not there. Errors name the recipe's `key`."""
    if base.model in _local_bases():
        raise DataError(
            f"{key}: the directory {base.model!r} has gone since the start; put it back and run again"
        )
    if base.model.startswith(("/", ".", "~")) or base.model.count("/") != 1:
        raise DataError(
            f"{key}: no directory {base.model!r}; give a model directory, a hub id such as "
            f"meta-llama/Llama-3.2-1B, or {' or '.join(sorted(BUILT_IN))}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    remedy = f"download it first (hf download {base.model}) and set {key} to its directory"
    try:
        # Some have their weights again in folders, in other formats, such as GPT-OSS in `original`.
        return Path(
            snapshot_download(
                base.model, revision=base.revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]
            )
        )
    except HFValidationError as error:
        raise DataError(f"{key}: {base.model!r} is no hub id ({error})") from None
    except GatedRepoError:
        raise PreflightError(
            f"{key}: {base.model} is gated; accept its licence on huggingface.co and set HF_TOKEN, "
            f"or {remedy}"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise PreflightError(
            f"{key}: {base.model} is no local directory and cannot be fetched ({first_line}); {remedy}"
        ) from None


ADAPTER_CONFIG = "adapter_config.json"
KERNEL_KEYS = frozenset(
    f"{prefix}{part}_implementation{suffix}"
    for part in ("attn", "experts")
    for prefix in ("", "_")
    for suffix in ("", "_internal")
)
"""Keys by which config.json chooses an implementation. Source: transformers 5.23, configuration_utils.py."""
KERNELS = frozenset(
    [None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4"]
)
"""Values that name something of transformers itself; any other may be the address of code."""
SIZES = frozenset((
    "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "sliding_window", "vocab_size",
))  # fmt: skip
"""Keys of config.json that are whole numbers from 1 on."""
FACTORS = frozenset((
    "factor", "high_freq_factor", "layer_norm_eps", "low_freq_factor", "original_max_position_embeddings",
    "partial_rotary_factor", "rms_norm_eps", "rope_local_base_freq", "rope_theta",
))  # fmt: skip
"""Keys of config.json, and of sections in it, that a model divides by, or by whose powers it does."""
WEIGHTS_KEY = "transformers_weights"
"""Names other weights than the usual ones."""


def check_directory(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a directory that would make another model than its config, tokenizer and weights describe.

    Where PEFT is installed, transformers applies an adapter beside the weights. It also fetches kernels that config.json
    names, and follows links.
    """
    if (folder / ADAPTER_CONFIG).is_file():
        raise IntegrityError(
            f"{folder}: holds {ADAPTER_CONFIG} beside config.json, so that machines with PEFT load another model than "
            "those without; merge the adapter into the weights (peft: merge_and_unload), or remove it"
        )
    path = folder / "config.json"
    for key, value in _settings(config):
        if key in SIZES | FACTORS and value is not None and not isinstance(value, list):
            is_typed = isinstance(value, int) or key in FACTORS
            if not is_typed or (number(value) or 0) <= 0:
                kind = "number above 0" if key in FACTORS else "whole number above 0"
                raise DataError(
                    f"{path}: {key} is {value!r}, not a {kind}, correct it, or fetch the model again"
                )
        if key == "auto_map":
            raise IntegrityError(f"{path}: auto_map asks to run code; use a model without it")
        if key == WEIGHTS_KEY and value not in (ALONE, INDEX):
            raise IntegrityError(
                f"{path}: {key} is {value!r}, and only {ALONE} or the files of {INDEX} are read; remove the key, or use "
                "another model"
            )
        for name in (value.values() if isinstance(value, Mapping) else [value]) if key in KERNEL_KEYS else ():
            if not (name is None or isinstance(name, str)) or name not in KERNELS:
                raise IntegrityError(
                    f"{path}: {key} is {name!r}, which is not an implementation of transformers and would be fetched and "
                    "run; remove the key"
                )
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() and not _is_inside(entry.resolve(), folder.resolve()):
            raise IntegrityError(
                f"{entry}: is a link to {entry.resolve()}, outside of the model's directory; put the file itself there"
            )


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        # transformers 5 writes a window of 0 for a Qwen 2 with experts that has none.
        if key == "sliding_window" and config.get("use_sliding_window") is False:
            continue
        yield key, value
        if isinstance(value, Mapping) and key != "auto_map":
            yield from _settings(value)


def _is_inside(target: Path, folder: Path) -> bool:
    """Return whether a file lies in the directory or in the hub's cache, whose snapshots are links to blobs."""
    blobs = target.parent
    return target.is_relative_to(folder) or (
        blobs.name == "blobs" and blobs.parent.name.startswith("models--")
    )


def check_base(base: Base, key: str = "base.model") -> None:
    """Check a model's directory before anything runs for hours; `key` is what errors call it."""
    folder = Path(base.model).expanduser()
    looks_local = folder.is_absolute() or base.model.startswith((".", "~"))
    if base.model in BUILT_IN or not (looks_local or folder.is_dir()):
        return
    if not folder.is_dir():
        raise DataError(f"{key}: {base.model}: no such directory; give a Hugging Face model directory")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not has_weights(folder):
        missing.append("*.safetensors")
    remedy = "give a Hugging Face model directory"
    if missing == ["tokenizer.json"]:
        remedy = "transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
    if missing:
        raise DataError(f"{key}: {base.model} has no {' and no '.join(missing)}; {remedy}")
