"""The whole stage on bases that are no Llama 3: trained, merged, and stopped where an answer ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.finetune.chat_format import chat_format
from anadil.preflight.base_model import check_chat_base
from anadil.recipe.load import load_recipe
from anadil.runtime.execute import execute
from tests.finetune.test_chat_format import tokenizer_of, trl_template
from tests.kit.families import make_family
from tests.kit.rows import write_rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SETTINGS = (
    "finetune.trains=adapter",
    "finetune.rank=4",
    "finetune.epochs=0.5",
    "finetune.max_length=256",
    "finetune.heldout_fraction=0",
)


def inputs(folder: Path, kind: str, tokenizer: Any) -> tuple[Path, Path]:
    """A model artifact of a family, and chats."""
    model = make_family(folder / "model", kind, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(model)
    artifact.seal(model, kind="model", origin={"made": "by a test"})
    rows = [{"prompt": f"Sual {number}?", "response": f"Cavab {number}."} for number in range(8)]
    return model, write_rows(folder / "chats.jsonl", rows)


@pytest.mark.parametrize(
    ("family", "kind", "own", "end"),
    [("qwen", "qwen2", "qwen2_5", "<|im_end|>"), ("gemma", "gemma2", None, "<end_of_turn>")],
)
def test_a_base_of_another_family_is_taught_and_served_by_its_template(
    tmp_path: Path, family: str, kind: str, own: str | None, end: str
) -> None:
    tokenizer = tokenizer_of(family, own and trl_template(own))
    model, chats = inputs(tmp_path, kind, tokenizer)

    out = str(tmp_path / "adapter")
    execute(
        STAGES["finetune"], load_recipe("smoke", list(SETTINGS)), {"model": str(model)}, [str(chats)], out
    )

    served = AutoTokenizer.from_pretrained(Path(out) / "merged")
    merged = AutoModelForCausalLM.from_pretrained(Path(out) / "merged")
    assert served.chat_template == chat_format(tokenizer).template
    assert served.convert_tokens_to_ids(end) in merged.generation_config.eos_token_id
    audited = json.loads((Path(out) / "mask_audit.json").read_text(encoding="utf-8"))
    assert audited["share_ending_in_eot"] == 1.0
    assert audited.get("system_turn", "") == chat_format(tokenizer).default_system
    assert ("You are Qwen" in audited.get("system_turn", "")) == (family == "qwen")
    assert audited["samples"][0].count(f"{end}⟧") == 1


def test_none_for_the_system_turn_reaches_the_rows_and_the_template_that_is_shipped(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen", trl_template("qwen2_5"))
    model, chats = inputs(tmp_path, "qwen2", tokenizer)
    recipe = load_recipe("smoke", [*SETTINGS, "finetune.system=none", f"finetune.inputs=[{chats}]"])

    out = tmp_path / "adapter"
    execute(STAGES["finetune"], recipe, {"model": str(model)}, [str(chats)], str(out))

    audited = json.loads((out / "mask_audit.json").read_text(encoding="utf-8"))
    assert "You are Qwen" in audited["system_turn_left_out"]
    assert "system_turn" not in audited
    assert audited["samples"][0].startswith("<|im_start|>user\nSual ")
    for folder in (out, out / "merged"):
        served = AutoTokenizer.from_pretrained(folder)
        asked = [{"role": "user", "content": "Sual?"}]
        assert served.apply_chat_template(asked, tokenize=False).startswith("<|im_start|>user\nSual?")
    note = check_chat_base(recipe, model)
    assert note.endswith("You are a helpful assistant.' (finetune.system is none)")
    assert "without the base's system turn 'You are Qwen" in note
