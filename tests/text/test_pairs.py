"""Rows of preferences: the layouts that people have, and what is no pair."""

from typing import Any

import pytest

from anadil.text.chats import Message, Refusal
from anadil.text.pairs import pair_of

BETTER, WORSE = "Bakıdır.", "Bilmirəm."
USER = {"role": "user", "content": ASKED}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


LAYOUTS: dict[str, dict[str, Any]] = {
    "texts": {"prompt": ASKED, "chosen": BETTER, "rejected": WORSE},
    "prompt of messages": {"prompt": [USER], "chosen": [assistant(BETTER)], "rejected": [assistant(WORSE)]},
    "prompt of messages, answers as texts": {"prompt": [USER], "chosen": BETTER, "rejected": WORSE},
    "answers as messages": {"prompt": ASKED, "chosen": assistant(BETTER), "rejected": assistant(WORSE)},
    "HuggingFaceH4/ultrafeedback_binarized": {
        "prompt": ASKED, "prompt_id": "1", "chosen": [USER, assistant(BETTER)], "rejected": [USER, assistant(WORSE)],
        "messages": [USER, assistant(BETTER)], "score_chosen": 8.5, "score_rejected": 2.0,
    },
    "trl-lib/ultrafeedback_binarized": {"chosen": [USER, assistant(BETTER)], "rejected": [USER, assistant(WORSE)]},
    "Intel/orca_dpo_pairs": {"system": "", "question": ASKED, "chosen": BETTER, "rejected": WORSE},
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": ASKED}],
        "chosen": {"from": "gpt", "value": BETTER}, "rejected": {"from": "gpt", "value": WORSE},
    },
    "Anthropic/hh-rlhf": {
        "chosen": f"\n\nHuman: {ASKED}\n\nAssistant: {BETTER}",
        "rejected": f"\n\nHuman: {ASKED}\n\nAssistant: {WORSE}",
    },
    "Dahoas/rm-static": {
        "prompt": f"\n\nHuman: {ASKED}\n\nAssistant:", "response": f" {BETTER}",
        "chosen": f" {BETTER}", "rejected": f" {WORSE}",
    },
    "hh-rlhf beside its prompt": {
        "prompt": f"\n\nHuman: {ASKED}\n\nAssistant:",
        "chosen": f"\n\nHuman: {ASKED}\n\nAssistant: {BETTER}",
        "rejected": f"\n\nHuman: {ASKED}\n\nAssistant: {WORSE}",
    },
    "turns as columns": {
        "chosen": {"role": ["user", "assistant"], "content": [ASKED, BETTER]},
        "rejected": {"role": ["user", "assistant"], "content": [ASKED, WORSE]},
    },
    "a user's turn after the answer": {"chosen": [USER, assistant(BETTER), USER], "rejected": [USER, assistant(WORSE)]},
}  # fmt: skip


@pytest.mark.parametrize("row", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_usual_layouts_give_the_same_pair(row: dict[str, Any]) -> None:
    asked = Message(role="user", content=ASKED)

    assert pair_of(row) == (
        (asked, Message(role="assistant", content=BETTER)),
        (asked, Message(role="assistant", content=WORSE)),
    )


def test_a_system_turn_and_earlier_turns_belong_to_both_chats() -> None:
    turns = [USER, assistant("Hansı ölkənin?"), {"role": "user", "content": "Azərbaycanın."}]

    found = pair_of({"system": "Qısa cavab ver.", "prompt": turns, "chosen": BETTER, "rejected": WORSE})

    assert not isinstance(found, Refusal)
    assert [message.role for message in found[0]] == ["system", "user", "assistant", "user", "assistant"]
    assert found[0][:-1] == found[1][:-1]


@pytest.mark.parametrize(
    ("row", "refusal"),
    [
        ({"prompt": ASKED}, Refusal("no_pair", "no chosen")),
        ({"prompt": ASKED, "chosen": BETTER}, Refusal("no_pair", "no rejected")),
        ({"chosen": BETTER, "rejected": WORSE}, Refusal("no_pair")),
        ({"prompt": ASKED, "chosen": 5, "rejected": WORSE}, Refusal("no_pair")),
        ({"prompt": ASKED, "chosen": [], "rejected": WORSE}, Refusal("no_pair")),
        ({"prompt": ASKED, "chosen": ["a", "b"], "rejected": WORSE}, Refusal("malformed")),
        ({"prompt": ASKED, "chosen": BETTER, "rejected": f" {BETTER}\n"}, Refusal("same_answer")),
        (
            {"prompt": ASKED, "chosen": f"{ASKED} {BETTER}", "rejected": f"{ASKED}\n{WORSE}"},
            Refusal("question_in_answer"),
        ),
        ({"prompt": ASKED, "chosen": BETTER, "rejected": "  "}, Refusal("empty_message")),
        ({"prompt": "", "chosen": BETTER, "rejected": WORSE}, Refusal("empty_message")),
        ({"prompt": ASKED, "chosen": "\ud83d", "rejected": WORSE}, Refusal("not_unicode")),
        ({"prompt": ASKED, "chosen": [{"role": "boss", "content": "a"}], "rejected": WORSE}, Refusal("unknown_role", "boss")),
        ({"prompt": ASKED, "chosen": [USER], "rejected": [USER]}, Refusal("no_answer")),
        (
            {"chosen": [USER, assistant(BETTER)], "rejected": [{"role": "user", "content": "?"}, assistant(WORSE)]},
            Refusal("other_question"),
        ),
    ],
)  # fmt: skip
def test_what_is_no_pair_is_refused_by_name(row: dict[str, Any], refusal: Refusal) -> None:
    assert pair_of(row) == refusal
