"""Settings of other trainers as they keep them: axolotl's and LLaMA-Factory's YAML, the arguments of TRL's scripts."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError

Program = Literal["axolotl", "LLaMA-Factory", "TRL", ""]
Kind = Literal["chats", "pairs", "text"]
"""Data that a run learns from: answers, pairs of a better and a worse answer, running text."""
OF_AXOLOTL = {
    "base_model",
    "sequence_len",
    "micro_batch_size",
    "datasets",
    "pretraining_dataset",
    "sample_packing",
    "rl",
}
OF_LLAMA_FACTORY = {"finetuning_type", "cutoff_len", "template", "stage", "dataset_dir", "lora_target"}
STAGES: dict[str, Kind] = {"sft": "chats", "dpo": "pairs", "pt": "text"}
"""LLaMA-Factory's `stage`, and the commands of TRL."""
ELSEWHERE = ("kto", "ppo", "rm", "reward", "grpo", "orpo", "rloo", "simpo", "ipo", "gkd", "bco", "cpo")
"""Ways of learning that no stage here has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """Settings of a run of another trainer."""

    program: Program
    kind: Kind
    values: dict[str, Any]
    """By the trainer's own names."""
    folder: Path
    """Directory that relative paths begin at."""


def read_peer(given: str) -> PeerSettings:
    """The settings of a YAML or JSON file, or of a command line such as `trl sft --lora_r 16`."""
    words = shlex.split(given) if " " in given and not Path(given).is_file() else []
    if words:
        return _settings(_arguments(words), _command(words), given, Path())
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{given}: cannot be read ({error}); name a file, or quote a command: 'trl sft --...'"
        ) from None
    values, _ = strict_yaml.parse_yaml(text, given)
    if not isinstance(values, dict):
        raise RecipeError(f"{given}: holds no table of settings; name the YAML file of a run")
    return _settings(values, "", given, path.parent)


def program_of(values: Mapping[str, Any]) -> Program:
    """The trainer whose names a table has; empty for another table."""
    axolotl, factory = OF_AXOLOTL & {*values}, OF_LLAMA_FACTORY & {*values}
    if len(axolotl) > max(1, len(factory)):
        return "axolotl"
    if "model_name_or_path" not in values:
        return ""
    return "LLaMA-Factory" if factory else "TRL"


def _settings(values: dict[str, Any], command: str, given: str, folder: Path) -> PeerSettings:
    program: Program = "TRL" if command else program_of(values)
    if not program:
        raise RecipeError(
            f"{given}: neither settings of axolotl (base_model, datasets) nor of LLaMA-Factory (stage, cutoff_len) nor "
            "arguments of TRL (--model_name_or_path); a recipe of this program is checked by `anadil recipe check`"
        )
    way = str(command or values.get("rl") or values.get("stage") or "sft").lower()
    if way in ELSEWHERE or way not in STAGES:
        raise RecipeError(
            f"{given}: learns by {way!r}, which no stage here does; here are answers (sft), pairs (dpo) and text (pt)"
        )
    kind = STAGES[way]
    if program == "axolotl" and (values.get("pretraining_dataset") or _is_completion(values.get("datasets"))):
        kind = "text"
    return PeerSettings(program=program, kind=kind, values=values, folder=folder)


def _is_completion(datasets: Any) -> bool:
    kinds = [each.get("type") for each in datasets or () if isinstance(each, dict)]
    return bool(kinds) and all(kind == "completion" for kind in kinds)


def _command(words: list[str]) -> str:
    """`sft` of `trl sft` or of `python examples/scripts/sft.py`."""
    names = [Path(word).stem.lower() for word in words if not word.startswith("-")]
    return next((name for name in names if name in STAGES or name in ELSEWHERE), "sft")


def _arguments(words: list[str]) -> dict[str, Any]:
    """The options of a command line with their values; one without a value is true."""
    values: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            values[name] = _value(value) if value else True
        elif name:
            before = values[name]
            values[name] = (
                _value(word)
                if before is True
                else [*(before if isinstance(before, list) else [before]), _value(word)]
            )
    return values


def _value(word: str) -> Any:
    try:
        return json.loads(word.lower() if word in ("True", "False") else word)
    except ValueError:
        return word
