"""The text model inside a model of text and images: its settings, and its tensors by their own names.

Whoever opens a base gets the text model alone. The rest of the files stays where it is, unread and counted.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anadil.core.errors import DataError
from anadil.core.json_text import parse_json

WRAPPERS = frozenset(["gemma3", "gemma4", "mistral3", "qwen3_5", "qwen3_5_moe"])
"""Model types that hold a text model. Source: transformers 5.24, `Gemma3ForConditionalGeneration` and its like."""
NAMES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""Beginnings of names of the text model's tensors -> beginnings in a text model. Source: files that transformers 4 and 5 wrote."""
PRECISIONS = ("dtype", "torch_dtype")
WHOLE = ("tie_word_embeddings", "quantization_config", "compression_config")
"""Keys of the whole model that decide for its text, too."""


def read_settings(path: Path) -> dict[str, Any]:
    """The content of a file of settings; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error}); fetch or make the model again") from None
    if not isinstance(config, dict):
        raise DataError(f"{path}: holds no JSON object; fetch or make the model again")
    return config


def wrapper_of(folder: Path) -> str:
    """Return the `model_type` of a directory whose text model is a part of it, or nothing."""
    kind = read_settings(folder / "config.json").get("model_type")
    return kind if isinstance(kind, str) and kind in WRAPPERS else ""


def text_config(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the config.json of the text model: `text_config` with what the whole model says of it, or all of a text model's."""
    if config.get("model_type") not in WRAPPERS:
        return config
    refuse_other_class(config, str(path))
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise DataError(
            f"{path}: {config['model_type']!r} is a model of text and images, and text_config, the settings of its text "
            "model, is missing, fetch the model again"
        )
    unsaid = [key for key in config if key in PRECISIONS or key.endswith("_token_id")]
    given = {key: config[key] for key in unsaid if text.get(key) is None and _is_of_text(key)}
    return {**text, **given, **{key: config[key] for key in WHOLE if config.get(key) is not None}}


def refuse_other_class(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config.json whose `architectures` is a class of another type than `model_type`, by which transformers loads."""
    kind, named = str(config.get("model_type")), config.get("architectures")
    for each in named if isinstance(named, list) else ():
        # Sorted, since `hunyuan_v1_dense` has the class HunYuanDenseV1.
        one, other = re.split(r"(?<=.)(?:For[A-Z]|Model|LMHead)", str(each))[0], kind.removesuffix("_text")
        if sorted(one.lower().replace("_", "")) != sorted(other.replace("_", "")):
            raise DataError(
                f"{name}: architectures of config.json is {each!r}, and model_type is {kind!r}. Correct the wrong one, or fetch "
                "the model again"
            )


def text_name(name: str) -> str:
    """Return the name of a wrapper's tensor in its text model, or nothing for one of another part."""
    return next(
        (ours + name.removeprefix(begin) for begin, ours in NAMES.items() if name.startswith(begin)), ""
    )


def name_in_wrapper(name: str, stored: Iterable[str]) -> str:
    """Return the name of a text model's tensor in a wrapper whose files hold the `stored` names."""
    begin = next(
        begin
        for each in stored
        for begin, ours in NAMES.items()
        if ours == "model." and each.startswith(begin)
    )
    if name.startswith("model."):
        return begin + name.removeprefix("model.")
    return name if begin == "model.language_model." else f"language_model.{name}"


def with_text(config: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of a whole model with another text model's, as `text_config` reads it again."""
    of_text = {
        key: each for key, each in text.items() if key not in ("architectures", "transformers_version")
    }
    if of_text.get("pad_token_id") is None:  # Gemma 4 has no other id to read in place of an image
        of_text["pad_token_id"] = config["text_config"].get("pad_token_id")
    said = [key for key in text if key in PRECISIONS or (key in config and _is_of_text(key))]
    return {**config, **{key: text[key] for key in (*said, "tie_word_embeddings")}, "text_config": of_text}


def _is_of_text(key: str) -> bool:
    # Others, such as `image_token_id`, belong to the other parts.
    return key in PRECISIONS or key.removesuffix("_token_id") in ("bos", "eos", "pad")
