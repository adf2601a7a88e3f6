"""Models and tokenizers as Hugging Face directories: load safely, encode, save.

Nothing here reaches the network, runs code that a directory brings along, or unpickles.
"""

import gc
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from anadil.artifacts.base_kind import chosen_template
from anadil.artifacts.base_model import COPIED_TOKENIZER_FILES, model_config, read_tokenizer, tokenizer_config
from anadil.artifacts.base_vocabulary import (
    END_OF_TEXT,
    OTHER_ENDS_OF_TURNS,
    base_settings,
    begins_turns,
    frame_of,
)
from anadil.artifacts.text_part import NAMES, wrapper_of
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.core.format import human_bytes
from anadil.core.json_text import write_indented
from anadil.model.architecture import check_fit, read_config
from anadil.model.chat_template import end_ids
from anadil.model.family import Version4Keys
from anadil.model.family_table import families
from anadil.model.mxfp4 import refuse_packed
from anadil.text.encoder import Encoder

log = logging.getLogger(__name__)


def load_model(
    path: Path,
    dtype: torch.dtype = torch.float32,
    quantization: QuantizationConfigMixin | None = None,
    placement: Mapping[str, Any] = MappingProxyType({}),
) -> PreTrainedModel:
    """Load the causal language model of a local directory, with `config.use_cache` off.

    With `quantization` the GPU holds matrices in that format. `placement` has `device_map` and `max_memory` of
    transformers, where layers go to several devices.
    """
    refuse_packed(path)
    check_fit(path)
    transformers_logging.disable_progress_bar()
    config = read_config(path)
    # torch makes no table without a row for padding; the tokenizer says how it is filled up.
    if not 0 <= (config.pad_token_id or 0) < config.vocab_size:
        config.pad_token_id = None
    renamed, verbosity = None, transformers_logging.get_verbosity()
    if wrapper_of(path):
        renamed = {f"^{re.escape(name)}": ours for name, ours in NAMES.items()}
        transformers_logging.set_verbosity_error()  # `check_fit` has said which tensors are not read
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, local_files_only=True, use_safetensors=True,
            trust_remote_code=False, quantization_config=quantization, key_mapping=renamed, **placement,
        )  # fmt: skip
    except SafetensorError as error:
        raise IntegrityError(
            f"{path}: damaged safetensors ({error}); fetch or make the model again"
        ) from None
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be loaded as a causal language model ({error})") from None
    finally:
        transformers_logging.set_verbosity(verbosity)
    if renamed:
        del model._weight_conversions  # noqa: SLF001  saved by it, the text model would have the wrapper's names
    for name, weight in model.named_parameters():
        refuse_not_numbers(path, name, weight)
    # A cache would bring a mask in which packed documents see each other; pass `use_cache=True` to `generate`.
    model.config.use_cache = False
    # torch keeps the gradient of this row at 0. Padding has none anyway: it is behind the chat and without loss. But the
    # token that some bases pad with ends turns, too.
    embedding: Any = model.get_input_embeddings()
    embedding.padding_idx = None
    return model


def refuse_not_numbers(path: Path, name: str, weight: torch.Tensor) -> None:
    """Refuse a weight that holds NaN or Inf, which would make every loss NaN."""
    if weight.is_meta or not weight.is_floating_point() or not weight.numel():
        return
    # Both carry NaN along, and neither makes a copy of the tensor.
    if not all(bool(each.isfinite()) for each in torch.aminmax(weight.detach())):
        raise IntegrityError(f"{path}: {name} holds NaN or Inf; fetch or make the model again")


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a local directory."""
    asked = tokenizer_config(path)
    if "auto_map" in asked:
        raise IntegrityError(
            f"{path}/tokenizer_config.json: auto_map asks to run code; use a tokenizer without it"
        )
    if not path.is_dir():  # transformers would take it for the name of a model of the hub
        raise DataError(f"{path}: no such directory; give a Hugging Face tokenizer directory")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  its settings are checked by code of many classes
        raise DataError(
            f"{path}: no tokenizer there ({error}); give a Hugging Face tokenizer directory"
        ) from None
    if not tokenizer.is_fast:
        raise DataError(f"{path}: holds no tokenizer.json; convert the tokenizer to a fast one")
    tokenizer.chat_template = chosen_template(tokenizer.chat_template)
    # transformers does not look for them in config.json.
    if tokenizer.eos_token is None and tokenizer.bos_token is None:
        settings = base_settings(path, tokenizer.backend_tokenizer)
        for role in ("bos_token", "eos_token"):
            setattr(tokenizer, role, settings.get(role))
    # The classes of some types, such as Qwen2's, name roles that the files do not, and add their tokens where no row is.
    for role in ("pad_token", "unk_token"):
        token = None if asked.get(role) else getattr(tokenizer, role)
        if token and read_tokenizer(path).token_to_id(token) is None:
            setattr(tokenizer, role, None)
    if begins_turns(tokenizer.bos_token, str(tokenizer.chat_template)):
        tokenizer.bos_token = None
    # transformers 5 forgets it where tokenizer.json sets no BOS, as DeepSeek's does; 4 and llama.cpp heed it.
    if asked.get("add_bos_token") and tokenizer.bos_token is not None and window_bos(tokenizer) is None:
        tokenizer.add_bos_token = True
    return tokenizer


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Return token ids of texts, without BOS and EOS; `<|eot_id|>` in a text is read as its letters.

    Many texts in one call are encoded several times as fast as one by one; see `text.encoder`.
    """
    backend: Any = tokenizer.backend_tokenizer
    return [ids.tolist() for ids in Encoder(backend).encode(texts)]


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return token ids of one text; see `encode_texts`."""
    return encode_texts(tokenizer, [text])[0]


def window_bos(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """Return the id of BOS where the tokenizer itself sets it before every text; None where it sets none."""
    # Such a model never saw a text without BOS at position 0, and may lean on it: Gemma 3 270M takes 5.85 nats a
    # token instead of 3.54 where it is missing. So a window that begins inside a document begins with it too.
    bos: Any = tokenizer.bos_token_id
    return None if bos is None or tokenizer("a").input_ids[:1] != [bos] else int(bos)


def document_ids(tokenizer: PreTrainedTokenizerFast, name: str) -> tuple[int, int]:
    """Return the ids before and after a document: BOS, or the end of text in its place, and the end of text."""
    roles: Any = tokenizer
    frame = frame_of(roles.get_vocab(), roles.bos_token, roles.eos_token, str(roles.chat_template))
    if frame is None:
        raise DataError(f"{name}: tokenizer has neither {END_OF_TEXT} nor an eos_token; add one")
    return frame


def document_frame(tokenizer: PreTrainedTokenizerFast, name: str) -> str:
    """Return the tokens round a document, in words, with a hint if the base ends documents as it ends turns."""
    before, after = tokenizer.convert_ids_to_tokens(document_ids(tokenizer, name))
    hint = ", which ends turns of chats: the base has no other end" if after in OTHER_ENDS_OF_TURNS else ""
    return f"{before} before each, {after} after it{hint}"


def save_model(
    model: PreTrainedModel, tokenizer_dir: Path, out: Path, dtype: torch.dtype, base: Path | None = None
) -> None:
    """Write a Hugging Face directory that transformers 4 and 5 and vLLM load; the model itself is cast to `dtype`.

    Texts end as those of `base` do, too.
    """
    ends = end_ids(tokenizer := load_tokenizer(tokenizer_dir), base)
    _set_special_tokens(model.config, model.generation_config, tokenizer, ends)
    out.mkdir(parents=True, exist_ok=True)
    transformers_logging.disable_progress_bar()
    cast: Any = model
    # In a group transformers writes in its first process alone. Here whichever process calls this writes: the one of several
    # that makes a built-in base is any of them.
    cast.should_save_on_this_rank = lambda _is_main_process: True
    cast.to(dtype=dtype).save_pretrained(out)
    del cast.should_save_on_this_rank
    model.config.use_cache = False
    write_both_spellings(out / "config.json")
    copy_tokenizer(tokenizer_dir, out)


def save_settings(
    base: Path, out: Path, config: Any = None, tokenizer: Path | None = None, ends: Sequence[str] = ()
) -> None:
    """Write what `save_model` writes beside the weights, for a model with the settings of another one.

    Without `config` and `tokenizer` it has the same shape, precision and vocabulary. Texts end with the tokens `ends` too.
    """
    config, tokenizer = config or read_config(base), tokenizer or base
    generating: Any = GenerationConfig.from_model_config(config)
    if (base / "generation_config.json").is_file():
        generating = GenerationConfig.from_pretrained(base, local_files_only=True)
    ids = end_ids(loaded := load_tokenizer(tokenizer), base, ends)
    _set_special_tokens(config, generating, loaded, ids)
    config.save_pretrained(out)
    generating.save_pretrained(out)
    write_both_spellings(out / "config.json")
    copy_tokenizer(tokenizer, out)


def _set_special_tokens(
    config: Any, generating: Any, tokenizer: PreTrainedTokenizerFast, ends: list[int]
) -> None:
    """Set the tokens that begin, end and fill up texts when the model is served."""
    config.bos_token_id = tokenizer.bos_token_id
    config.eos_token_id = ends[0] if ends else None
    config.pad_token_id = tokenizer.pad_token_id
    config.use_cache = True
    generating.bos_token_id = tokenizer.bos_token_id
    generating.eos_token_id = ends or None
    generating.pad_token_id = tokenizer.pad_token_id


def copy_tokenizer(source: Path, out: Path) -> None:
    """Copy the tokenizer's own files beside a model's, and nothing else."""
    for name in COPIED_TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    # Beside an adapter lies no config; its tokenizer comes from the adapted model, and is right.
    if not (out / "config.json").is_file():
        return
    # The tokenizer's longest input is that of the model that it was made for.
    longest = model_config(out).get("max_position_embeddings")
    settings = out / "tokenizer_config.json"
    if settings.is_file() and longest is not None:
        content = {**json.loads(settings.read_text(encoding="utf-8")), "model_max_length": longest}
        write_indented(settings, content, 2)


def pick_device() -> torch.device:
    """Return the GPU of this process (LOCAL_RANK), or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def cast_parameters(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Change the precision of all parameters in place; tied ones stay tied."""
    # `model.to(dtype)` would round the frequencies of the rotary embedding too, a buffer that
    # transformers keeps in FP32 because positions differ in bits that BF16 does not have.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def pick_dtype(device: torch.device) -> torch.dtype:
    """Return the precision that a model is scored, finetuned and answers in: BF16 on a GPU, FP32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


Parts = Callable[[int], Mapping[str, float]]
"""Number of GPUs -> bytes on the one that has the most, by part; one is `weights`."""


def load_placed(path: Path, name: str, parts: Parts, usable: float) -> Any:
    """Load a model in the precision that its device computes in, on as few devices as hold it with a batch.

    `usable` is the share of a GPU's free memory that may be filled.
    """
    device = pick_device()
    dtype = pick_dtype(device)
    if device.type != "cuda":
        return load_model(path, dtype)
    free = [torch.cuda.mem_get_info(each)[0] for each in range(torch.cuda.device_count())]
    room = max_memory(parts, usable, free, name)
    if len(room) == 1:
        loaded: Any = load_model(path, dtype)
        return loaded.to(device)
    log.info("%s: its layers lie on %d GPUs", name, len(room))
    spread: Any = load_model(path, dtype, placement={"device_map": "auto", "max_memory": room})
    elsewhere = sorted(str(each) for each in set(spread.hf_device_map.values()) - set(room))
    if elsewhere:
        raise PreflightError(
            f"{name}: not all layers fit {len(room)} GPUs, some would lie on {', '.join(elsewhere)}, which takes hours; "
            "evaluate on a machine with more or larger ones"
        )
    return spread


def free_memory() -> None:
    """Give back the memory of a model that nobody needs any more; call it after the last reference is gone."""
    gc.collect()  # models and trainers refer to themselves, so they wait for the collector
    torch.cuda.empty_cache()  # does nothing without a GPU


def max_memory(parts: Parts, usable: float, free: Sequence[int], name: str) -> dict[int, int]:
    """Return the bytes of weights that each of the fewest GPUs, with `free` bytes each, may get beside a batch."""
    # The fewest: states are copied at each border between two GPUs.
    for count in range(1, len(free) + 1):
        others = dict(parts(count))
        weights = others.pop("weights")
        batch = sum(others.values())
        room = [usable * each - batch for each in free[:count]]
        if min(room) >= weights:
            return {number: int(each) for number, each in enumerate(room)}
    raise PreflightError(
        f"{name}: {human_bytes(weights)} of weights and {human_bytes(batch)} of a batch on each of "
        f"{len(free)} GPUs, which have {human_bytes(min(free))} free; evaluate on a machine with more or larger ones"
    )


FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers that may have a rotation each."""
BEFORE = "original_max_position_embeddings"
"""Key of the tokens that a model was made for before its rotation was scaled."""


def write_both_spellings(file: Path) -> None:
    """Add version 4's keys to a config.json that transformers 5 has written.

    transformers 4 does not know `rope_parameters` and `dtype` and says nothing: it takes its defaults, so that the model
    turns its positions by other angles. llama.cpp and older vLLM read version 4's keys too.
    """
    config = json.loads(file.read_text(encoding="utf-8"))
    config.update(version_4_keys(config))
    file.write_text(json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def version_4_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return version 4's keys for the precision and the rotation of a config.json of version 5."""
    # Some models turn layers that see a window otherwise than those that see all; version 4 scales the latter alone.
    keys = {"torch_dtype": config["dtype"]} if config.get("dtype") else {}
    rotation = config.get("rope_parameters") or {}
    family = families().get(str(config.get("model_type")))
    version_4 = family.version_4 if family else Version4Keys()
    if not version_4.is_known:
        return keys
    keys |= {old: config[new] for new, old in version_4.renamed.items() if new in config}
    if version_4.layer_types and "layer_types" in config:
        keys["layer_types"] = [version_4.layer_types.get(each, each) for each in config["layer_types"]]
    if version_4.sliding_theta and isinstance(rotation.get(SLIDING), Mapping):
        keys[version_4.sliding_theta] = rotation[SLIDING]["rope_theta"]
    if isinstance(rotation.get(FULL), Mapping):
        rotation = rotation[FULL]
    # Models with learnt or no positions have no base of a rotation.
    if "rope_theta" not in rotation:
        return keys
    scaling = dict(rotation)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in scaling:
            keys[version_4.names.get(key, key)] = scaling.pop(key)
    if version_4.scaling is not None:
        others = {key: value for key, value in scaling.items() if key in version_4.scaling}
        scaling = {"type": scaling["rope_type"], **others}
    elif scaling.get("rope_type") == "longrope" and BEFORE in scaling:  # version 4 looks for it outside alone
        keys[BEFORE] = scaling[BEFORE]
    keys["rope_scaling"] = scaling if rotation.get("rope_type", "default") != "default" else None
    return keys
