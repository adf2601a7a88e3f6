"""The mask audit: traps that train without an error are found before the first step."""

import pytest
from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.finetune.chat_format import chat_format
from anadil.finetune.encode import IGNORED_LABEL, Example, audit
from anadil.text.chats import Chat, DroppedChats, Message
from tests.finetune.conftest import encode_chat

STOCK = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
)
"""As Llama 3's own: it does not mark what the assistant says."""
MESSAGES = [
    {"role": "user", "content": "Azərbaycanın paytaxtı hansı şəhərdir?"},
    {"role": "assistant", "content": "Azərbaycanın paytaxtı Bakı şəhəridir."},
]


def example(tokenizer: PreTrainedTokenizerFast) -> Example:
    messages = tuple(Message(role=each["role"], content=each["content"]) for each in MESSAGES)
    chat = Chat(messages=messages, place="a.jsonl:1")
    return encode_chat(tokenizer, chat, chat_format(tokenizer))


def test_the_audit_counts_rows_tokens_and_what_is_trained(tokenizer: PreTrainedTokenizerFast) -> None:
    good = example(tokenizer)
    trained = sum(label != IGNORED_LABEL for label in good.labels)
    dropped = DroppedChats()
    dropped.add("too_long", "a.jsonl:9")

    report = audit([good] * 4, tokenizer, dropped)

    assert (report["rows"], report["kept"]) == (5, 4)
    assert report["dropped"] == {"too_long": 1}
    assert report["dropped_first"] == {"too_long": ["a.jsonl:9"]}
    assert report["tokens"] == 4 * len(good.input_ids)
    assert report["trained_tokens"] == 4 * trained
    assert report["trained_tokens_per_row"] == {"min": trained, "median": trained, "max": trained}
    assert report["share_ending_in_eot"] == 1.0
    assert len(report["samples"]) == 3
    assert len(audit([good], tokenizer, dropped)["samples"]) == 1
    assert report["samples"][0] == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
        "Azərbaycanın paytaxtı hansı şəhərdir?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "⟦Azərbaycanın paytaxtı Bakı şəhəridir.<|eot_id|>⟧"
    )


@pytest.mark.filterwarnings("ignore:return_assistant_tokens_mask")
def test_the_empty_mask_of_a_stock_template_is_found(tokenizer: PreTrainedTokenizerFast) -> None:
    stock = tokenizer.apply_chat_template(
        MESSAGES, chat_template=STOCK, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(stock["input_ids"], stock["assistant_masks"], strict=True)
    labels = [token if mask else IGNORED_LABEL for token, mask in pairs]
    row = Example(input_ids=stock["input_ids"], labels=labels)

    with pytest.raises(DataError, match=r"1 of 2 rows have no trained token, the first is row 1"):
        audit([example(tokenizer), row], tokenizer, DroppedChats())


def test_an_answer_that_does_not_train_its_end_is_found(tokenizer: PreTrainedTokenizerFast) -> None:
    good = example(tokenizer)
    endless = Example(input_ids=good.input_ids, labels=[*good.labels[:-1], IGNORED_LABEL])

    with pytest.raises(DataError, match=r"1 of 1 rows do not train <\|eot_id\|> at the end of each answer"):
        audit([endless], tokenizer, DroppedChats())
