"""System turn of chats that have none: the base's default one, the recipe's, or none at all."""

import json

from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.finetune.chat_format import ChatFormat, TemplateFormat, chat_format
from anadil.model.chat_ids import MARKS
from anadil.recipe.finetune import NO_SYSTEM, Finetune


def recipe_format(
    tokenizer: PreTrainedTokenizerFast, settings: Finetune, name: str = "model"
) -> tuple[ChatFormat, str]:
    """Return the format of a run's chats, and the base's default system turn, empty for none.

    With `finetune.system: none` the tokenizer gets a template without that turn, which is trained and shipped.
    """
    written = chat_format(tokenizer, name)
    default = written.default_system
    if settings.system != NO_SYSTEM or not default:
        return written, default
    assert isinstance(written, TemplateFormat)
    tokenizer.chat_template = _without_turn(written.template, _default_turn(written, tokenizer))
    plain = chat_format(tokenizer, name)
    if plain.default_system or plain.template != tokenizer.chat_template:
        raise DataError(
            f"{name}: finetune.system is none, and the default system turn of its chat template ({default[:80]!a}) "
            "cannot be told from the rest of a chat; set finetune.system to a text, or leave it out"
        )
    return plain, default


def system_turn(default: str, settings: Finetune) -> str:
    """Return the system turn of chats that have none, in training and where the model is served; empty for none."""
    return settings.system_text or ("" if settings.system == NO_SYSTEM else default)


def with_system(template: str, system: str | None) -> str:
    """Return a template that writes this system turn in a chat without one."""
    if not system:
        return template
    turn = json.dumps({"role": "system", "content": system.strip()}, ensure_ascii=False)
    return f"{{%- if messages[0]['role'] != 'system' %}}{{%- set messages = [{turn}] + messages %}}{{%- endif %}}{template}"


def _without_turn(template: str, turn: str) -> str:
    """Return a template that skips a text in a chat that begins without a system turn."""
    return (
        f"{{%- set written %}}{template.removesuffix(chr(10))}{{% endset %}}"
        f"{{%- if messages[0]['role'] == 'system' %}}{{{{- written }}}}"
        f"{{%- else %}}{{{{- written.replace({json.dumps(turn, ensure_ascii=False)}, '', 1) }}}}{{%- endif %}}"
    )


def _default_turn(written: TemplateFormat, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the default system turn as it is written: a chat's first question has it, and its second has not."""
    question = {"role": "user", "content": MARKS[0]}
    answered = [question, {"role": "assistant", "content": MARKS[1]}]
    first = written.render([question])
    later = written.render([*answered, question]).removeprefix(written.render(answered))
    bos = str(tokenizer.bos_token or "")
    if not later.startswith(bos):
        first = first.removeprefix(bos)
    # The turn stands before the question, or within it, behind its opening.
    shared = next((place for place, (a, b) in enumerate(zip(first, later, strict=False)) if a != b), 0)
    begin = 0 if first.endswith(later) else shared
    return first[begin:].removesuffix(later[begin:])
