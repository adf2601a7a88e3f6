"""The system turn of chats without one: the base's, the recipe's, or none, trained and served alike."""

from typing import Any

import pytest

from anadil.core.errors import DataError
from anadil.finetune.chat_format import chat_format, recipe_format, system_turn, with_system
from anadil.recipe.finetune import Finetune
from anadil.text.chats import Chat, Message
from tests.finetune.test_chat_format import CHATML, GREETING, chat, tokenizer_of, trl_template

LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set said = 'Sən faydalı köməkçisən.' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}{% if m.role == 'user' %}{{ bos_token }}[INST] "
    "{% if loop.first %}<<SYS>>\n{{ said }}\n<</SYS>>\n\n{% endif %}{{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
"""As Llama 2's: the system turn stands within the first question."""
GEMMA = (
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set said = 'Sən faydalı köməkçisən.' %}{% set turns = messages %}{% endif %}{{ bos_token }}"
    "{% for m in turns %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if loop.first %}{{ said }}\n\n{% endif %}{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""As Gemma 3's, with a system turn of its own: behind BOS and the opening of the question."""
PHI = (
    "{% if messages[0].role != 'system' %}<|system|>\nSən faydalı köməkçisən.<|end|>\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NONE = Finetune(system="none")
DEFAULTS = [
    ("qwen", CHATML, "<|im_start|>user\nBir?<|im_end|>\n"),
    ("qwen", trl_template("qwen2_5"), "<|im_start|>user\nBir?<|im_end|>\n"),
    ("phi", PHI, "<|user|>\nBir?<|end|>\n"),
    ("mistral", LLAMA_2, "<s>[INST] Bir? [/INST]"),
    ("gemma", GEMMA, "<bos><start_of_turn>user\nBir?<end_of_turn>\n"),
]


def rendered(tokenizer: Any, *turns: tuple[str, str]) -> str:
    given = [{"role": role, "content": text} for role, text in turns]
    return str(tokenizer.apply_chat_template(given, tokenize=False))


@pytest.mark.parametrize(("family", "template", "question"), DEFAULTS)
def test_none_takes_the_base_s_system_turn_out_of_what_is_trained_and_served(
    family: str, template: str, question: str
) -> None:
    base, tokenizer = tokenizer_of(family, template), tokenizer_of(family, template)

    written, default = recipe_format(tokenizer, NONE)

    assert default in rendered(base, ("user", "Bir?"))
    assert system_turn(default, NONE) == ""
    assert rendered(tokenizer, ("user", "Bir?")) == question
    assert tokenizer.chat_template == written.template == chat_format(tokenizer).template
    turns = (("user", "Bir?"), ("assistant", "İki."))
    texts = [piece for piece, _ in written.pieces(chat(*turns)) if isinstance(piece, str)]
    assert default not in "".join(texts)
    own = (("system", default), *turns)
    assert rendered(tokenizer, *own) == rendered(base, *own), "a chat keeps the system turn that it has"


def test_a_template_that_writes_no_system_turn_stays_as_it_is() -> None:
    tokenizer = tokenizer_of("gemma", trl_template("gemma3"))

    assert recipe_format(tokenizer, NONE)[1] == ""
    assert tokenizer.chat_template == trl_template("gemma3")


def test_a_system_turn_that_every_question_repeats_cannot_be_taken_out() -> None:
    each = CHATML.replace(
        "loop.first and m.role != 'system'", "messages[0].role != 'system' and m.role == 'user'"
    )

    with pytest.raises(DataError, match=r"finetune\.system is none, and .* cannot be told from the rest"):
        recipe_format(tokenizer_of("qwen", each), NONE)


@pytest.mark.parametrize("spelling", ["none", "None", " NONE ", ""])
def test_none_is_known_in_each_spelling_and_is_no_text(spelling: str) -> None:
    found = Finetune(system=spelling)

    assert found == NONE
    assert found.system_text is None
    assert system_turn(GREETING, found) == ""
    assert system_turn(GREETING, Finetune()) == GREETING
    assert system_turn(GREETING, Finetune(system="Qısa yaz.")) == "Qısa yaz."


@pytest.mark.parametrize("own", ['Qısa "cavab" ver.', "Bir\niki {{ 1 + 1 }} 'üç'"])
def test_a_system_turn_of_the_recipe_is_served_as_it_was_trained(own: str) -> None:
    tokenizer: Any = tokenizer_of("qwen", CHATML)
    asked = Chat(
        messages=(Message(role="user", content="Salam!"), Message(role="assistant", content="Salam!")),
        place="a:1",
    )

    def rendered(chat: Chat, template: str) -> str:
        turns = [{"role": one.role, "content": one.content} for one in chat.messages]
        return str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False))

    served = rendered(asked, with_system(CHATML, own))

    assert served == rendered(asked.with_system(own), CHATML)
    assert own in served
    assert GREETING not in served
    assert asked.with_system(own).with_system("başqa") == asked.with_system(own)
