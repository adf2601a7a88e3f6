"""The generation_config.json of a base whose vocabulary was changed: ids in it mean other tokens now, or none."""

import json
import logging
from collections.abc import Set as AbstractSet
from pathlib import Path

from anadil.core.json_text import write_indented
from anadil.pretrain.embedding_init import embedding_map

log = logging.getLogger(__name__)

FILE, MAP = "generation_config.json", "embedding_map.json"
LISTED = ("suppress_tokens", "begin_suppress_tokens")
"""Ids, each for itself."""
SINGLE = ("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id")
SEQUENCES = ("bad_words_ids", "force_words_ids")
"""Lists of ids, or of such lists."""
ID_AT = {"forced_decoder_ids": 1, "sequence_bias": 0}
"""Pairs of a place and an id; pairs of ids and a number. Source: transformers' GenerationConfig."""
SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def clean_generation_settings(folder: Path, tokenizer: Path) -> None:
    """Remove settings that name tokens by ids that they no longer have from the generation_config.json in `folder`."""
    # Ids are not renumbered: what the base wrote with one token, a new vocabulary writes with others.
    file = folder / FILE
    settings: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    sampling = ", ".join(f"{key} {settings[key]}" for key in SAMPLING if settings.get(key) is not None)
    if sampling:
        log.info("%s: the base's sampling is kept: %s", FILE, sampling)
    rows = embedding_map(tokenizer) if (tokenizer / MAP).is_file() else None
    if rows is None:
        return
    same = {index for index, row in enumerate(rows) if row == [index]}
    valid = {key: _valid(key, value, same) for key, value in settings.items()}
    lost = sorted(key for key in valid if valid[key] != settings[key])
    if lost:
        log.warning(
            "%s: %s named tokens by ids that they no longer have; these are removed", FILE, ", ".join(lost)
        )
    valid = {key: value for key, value in valid.items() if value not in (None, [])}
    write_indented(file, valid, 2)


def _valid(key: str, value: object, same: AbstractSet[int]) -> object:
    """Return the value of a key without the ids of other tokens, and the lists that hold one."""
    if key in SINGLE:
        return value if _are(value, same) else None
    if key in (*LISTED, *SEQUENCES) and isinstance(value, list):
        return [each for each in value if _are(each, same)]
    if key in ID_AT and isinstance(value, list):
        return [pair for pair in value if _are(pair[ID_AT[key]], same)]
    return value


def _are(ids: object, same: AbstractSet[int]) -> bool:
    return all(_are(each, same) for each in ids) if isinstance(ids, list) else ids in same
