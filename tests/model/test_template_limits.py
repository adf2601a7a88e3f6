"""A chat template is a program, which may take minutes or gigabytes."""

import subprocess
import sys
import time

import pytest
from trl import chat_template_utils

from anadil.core.errors import DataError
from anadil.model import template_limits
from anadil.model.chat_ids import chat_ids, rendered
from anadil.model.template_limits import check_limits
from tests.finetune.conftest import small_tokenizer

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
        "{% macro deep(n) %}{{ deep(n + 1) }}{% endmacro %}{{ deep(0) }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
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
        check_limits(template, "base.model x")

    assert time.monotonic() - started < template_limits.WALL_S


@pytest.mark.parametrize(
    "template",
    [
        chat_template_utils.qwen3_instruct_2507_training_chat_template,
        chat_template_utils.gemma3_training_chat_template,
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% broken",
        "{{ messages[9].content.x }}",
        "{{ strftime_now('%Y') }}{{ tools | tojson }}{% generation %}{% endgeneration %}",
    ],
)
def test_others_are_left_to_their_proof(template: str) -> None:
    check_limits(template, "model")


@pytest.mark.parametrize("text", ["Salam!", "<|eot_id|> oxu"])
def test_whoever_renders_a_chat_is_told_of_a_template_that_takes_too_much(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "CPU_S", 1)
    tokenizer = small_tokenizer()
    asked = [{"role": "user", "content": text}]
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert rendered(tokenizer, asked, tokenize=False) == text
    tokenizer.chat_template = ENDLESS.replace("99999", "99998")

    for call in (chat_ids, rendered):
        with pytest.raises(DataError, match=r"takes more than 1 s, .* to write a short chat"):
            call(tokenizer, asked)


def test_a_template_of_megabytes_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)

    with pytest.raises(
        DataError, match=r"base\.model y: its chat template .* has 1,500,000 characters, over 1,048,576"
    ):
        check_limits("a" * 1_500_000, "base.model y")


def test_a_process_that_cannot_try_a_template_is_no_proof_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(DataError, match=r"base\.model z: its chat template .* cannot be tried"):
        check_limits("{{ 'a' }}", "base.model z")
