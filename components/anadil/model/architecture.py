"""Checks of a directory's model before its weights are read: configuration, empty model, and fit of the files."""

import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)

from anadil.artifacts.base_model import model_config
from anadil.artifacts.text_part import wrapper_of
from anadil.artifacts.weight_files import (
    FLOATS,
    INDEX,
    StoredTensor,
    has_weights,
    holds_own_head,
    outside_text,
    stored_tensors,
    unindexed,
    weight_files,
)
from anadil.core.errors import DataError, IntegrityError
from anadil.model.family_table import QUANTIZED, families, is_packed, refuse_mixture, refuse_quantized
from anadil.model.mxfp4 import unpacked_tensors
from anadil.model.tensor_names import as_in_model, in_model

log = logging.getLogger(__name__)

RECOMPUTED = r"rotary_emb\.inv_freq$"
"""Frequencies, which old files hold. Source: transformers 5.23, modeling_utils.py, `additional_unexpected_patterns`."""


LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MAX_LAYERS = 10_000
"""Where no files tell the number: published models have up to some hundred."""
LAYER = re.compile(r"\.(\d+)\.")
"""Number of a layer in the name of a tensor."""


def read_config(folder: Path) -> Any:
    """Read the configuration of a local directory, tied as its files are and with no attention of its own choice."""
    settings = model_config(folder)
    refuse_quantized(settings, str(folder))
    _refuse_more_layers(folder, settings)
    try:
        config: Any = (
            _text_model(settings)
            if wrapper_of(folder)
            else AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        )
    except Exception as error:  # noqa: BLE001  each family checks its keys by code of its own
        raise _unusable(folder, error) from None
    # A config.json written by hand may leave the number of experts to the defaults of its type.
    refuse_mixture(config.to_dict(), str(folder))
    for key in QUANTIZED if is_packed(settings) else ():
        vars(config).pop(key, None)
    if chosen := config._attn_implementation:  # noqa: SLF001  there is no public name
        log.info("%s/config.json: attention %r is not used, it is chosen here", folder, chosen)
        config._attn_implementation = None  # noqa: SLF001
    # config.json may call tables tied whose files hold both, such as after an adapter with a head of its own was
    # merged: transformers 5 loads both then, version 4 one.
    if config.tie_word_embeddings and (family := families().get(config.model_type)) and has_weights(folder):
        tables = family.names.tables
        stored = {in_model(name, config.model_type): each for name, each in stored_tensors(folder).items()}
        if holds_own_head(stored, tables):
            _warn_untied(folder, tables)
            config.tie_word_embeddings = False
    return config


def _text_model(settings: dict[str, Any]) -> Any:
    config = CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    return config


def _unusable(folder: Path, error: Exception) -> DataError:
    words = " ".join(str(error).split())
    return DataError(
        f"{folder}: cannot be made as a causal language model ({words}); correct config.json, or take another model"
    )


def _refuse_more_layers(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a config.json that asks for more layers than the files hold: transformers makes something for each of them."""
    most = MAX_LAYERS
    if has_weights(folder):
        numbers = (LAYER.search(name) for name in stored_tensors(folder))
        most = min(most, 1 + max((int(number[1]) for number in numbers if number), default=-1))
    parts = (settings, *(part for part in settings.values() if isinstance(part, Mapping)))
    for key, asked in ((key, part.get(key)) for part in parts for key in LAYER_KEYS):
        if isinstance(asked, int | float) and asked > most:
            raise IntegrityError(
                f"{folder}: config.json asks for {asked:,} layers ({key}), and "
                f"{f'its files hold {most:,}' if most < MAX_LAYERS else f'no model has {MAX_LAYERS:,}'}; "
                "fetch or make the model again"
            )


@cache
def _warn_untied(folder: Path, tables: tuple[str, str]) -> None:
    # Once a process, however often the configuration is read.
    log.warning(
        "%s: config.json says that %s and %s are tied, and the files hold both with different values; both are used",
        folder, *tables,
    )  # fmt: skip


def empty_model(folder: Path, *, num_tokens: int | None = None) -> PreTrainedModel:
    """Return the model of a local directory on the meta device, in FP32, without a cache, with `num_tokens` embedding rows."""
    config = read_config(folder)
    # Set before the model is made, so that no table has to be resized.
    config.vocab_size = num_tokens or config.vocab_size
    config.use_cache = False
    config.pad_token_id = None  # else the row of that id, of an ordinary token here, is never trained
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
    except Exception as error:  # noqa: BLE001  as in `read_config`
        raise _unusable(folder, error) from None
    return model


def check_fit(folder: Path) -> None:
    """Refuse weights that are not those of the model that config.json describes."""
    model: Any = empty_model(folder)
    given = stored_tensors(folder)
    stored = as_in_model(unpacked_tensors(folder), model)
    ignored = [RECOMPUTED, *(model._keys_to_ignore_on_load_unexpected or ())]  # noqa: SLF001  there is no public name
    unasked = stored.keys() - model.state_dict().keys()
    passed = {name for name in unasked if any(re.search(pattern, name) for pattern in ignored)}
    not_in_index = as_in_model({name: given[name] for name in unindexed(folder, given)}, model, joined=False)
    table = model.get_input_embeddings().weight
    name = next(name for name, each in model.named_parameters() if each is table)
    if name in stored and (rows := stored[name].shape[0]) != len(table):
        raise IntegrityError(
            f"{folder / 'config.json'}: vocab_size is {len(table)}, and {name} in {stored[name].file.name} has {rows} rows, "
            f"set it to {rows}, or fetch the model again"
        )
    wrong = {
        "config.json asks for none": unasked - passed,
        **_faults(stored, model),
        f"not named by {INDEX}": not_in_index.keys() - passed - model.all_tied_weights_keys.keys(),
    }
    if any(wrong.values()):
        shown = {name: f"{name} ({each.dtype} {list(each.shape)})" for name, each in stored.items()}
        first = {kind: min(names) for kind, names in wrong.items() if names}
        words = (
            f"{len(wrong[kind])} {kind}, the first {shown.get(name, name)}" for kind, name in first.items()
        )
        raise IntegrityError(
            f"{folder}: weights do not fit config.json (tensors: {'; '.join(words)}); fetch or make the model again"
        )
    if passed:
        log.info(
            "%s: %d tensors are not read, the first %s: transformers computes or leaves them out itself",
            folder, len(passed), min(passed),
        )  # fmt: skip
    read = {each.file.name for each in stored.values()}
    if outside := outside_text(folder):
        read = {each.name for each in weight_files(folder)}
        log.warning(
            "%s: of %s the text model is read, a %s. %d tensors of its other parts are not, the first %s",
            folder, wrapper_of(folder), model.config.model_type, len(outside), outside[0],
        )  # fmt: skip
    if others := {file.name for file in folder.glob("*.safetensors")} - read:
        log.warning("%s: not part of the model and not read: %s", folder, ", ".join(sorted(others)))


def _faults(stored: Mapping[str, StoredTensor], model: Any) -> dict[str, set[str]]:
    """Return the model's tensors that the files lack, or hold otherwise than it takes them."""
    expected: dict[str, torch.Tensor] = model.state_dict()
    tied = {**model.all_tied_weights_keys, **{b: a for a, b in model.all_tied_weights_keys.items()}}
    both = {name: (stored[name], each) for name, each in expected.items() if name in stored}
    return {
        "missing": {name for name in expected if name not in stored and tied.get(name) not in stored},
        "of another shape": {
            name for name, (tensor, each) in both.items() if tensor.shape != tuple(each.shape)
        },
        "not in FP32, BF16 or FP16": {
            name
            for name, (tensor, each) in both.items()
            if each.is_floating_point() and tensor.dtype not in FLOATS
        },
    }
