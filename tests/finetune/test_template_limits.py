"""A chat template is a program, which may take minutes or gigabytes."""

import time

import pytest
from trl import chat_template_utils

from anadil.core.errors import DataError
from anadil.finetune import template_limits
from anadil.finetune.chat_format import SAMPLES
from anadil.finetune.template_limits import check_limits

WHOLE = "{% for each in range(99999) %}"
ENDLESS = WHOLE * 3 + "{% endfor %}" * 3
LATE = "{% if messages | length > 3 and add_generation_prompt %}" + ENDLESS + "{% endif %}"


@pytest.mark.parametrize(
    "template",
    [
        ENDLESS,
        LATE,
        "{{ 'a' * 3000000000 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{{ 'a' * 20000000 }}",
        "{{ messages[0].content | center(2000000000) }}",
    ],
)
def test_a_template_that_takes_too_much_is_refused_by_name(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "CPU_S", 1)
    started = time.monotonic()

    with pytest.raises(
        DataError, match=r"base\.model x: its chat template \(chat_template\.jinja, .*; correct it"
    ):
        check_limits(template, SAMPLES, "base.model x")

    assert time.monotonic() - started < template_limits.WALL_S


@pytest.mark.parametrize(
    "template",
    [
        chat_template_utils.qwen3_instruct_2507_training_chat_template,
        chat_template_utils.gemma3_training_chat_template,
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% broken",
        "{{ strftime_now('%Y') }}{{ tools | tojson }}{% generation %}{% endgeneration %}",
    ],
)
def test_others_are_left_to_their_proof(template: str) -> None:
    check_limits(template, SAMPLES, "model")
