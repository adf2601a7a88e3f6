from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import DataError
from anadil.encode.encode_file import document_tokenizer
from anadil.model.chat_ids import chat_ids
from anadil.model.decoding import Continuation, choose
from anadil.model.load import load_model, load_tokenizer
from anadil.replay.run import Writer
from anadil.text.encoder import Encoder
from tests.kit.writing_base import WORDS, writing_base


def writer_of(base: Path, seed: int = 0) -> Writer:
    return Writer(load_model(base), load_tokenizer(base), seed, "base")


def test_a_document_is_the_same_in_any_batch(base: Path) -> None:
    writer = writer_of(base)

    together = writer.write(range(12))

    assert [each.number for each in together] == list(range(12))
    assert [writer.write([number])[0] for number in (7, 2)] == [together[7], together[2]]
    assert writer_of(base).write(range(4, 9)) == together[4:9]
    assert len({each.text for each in together}) == 12


def test_another_seed_writes_other_text(base: Path) -> None:
    first, other = (writer_of(base, seed).write(range(2)) for seed in (0, 1))

    assert {each.text for each in first}.isdisjoint({each.text for each in other})


def test_every_second_document_is_a_chat_in_the_template_of_the_base(base: Path) -> None:
    tokenizer = load_tokenizer(base)

    kept = [each for each in writer_of(base).write(range(16)) if not each.dropped]

    assert {each.kind for each in kept if each.number % 2} == {"chat"}
    assert {each.kind for each in kept if each.number % 2 == 0} == {"text"}
    chat = next(each for each in kept if each.kind == "chat")
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    question, answer = chat.text.removeprefix(header.format("user")).split("<|eot_id|>")[:2]
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer.removeprefix(header.format("assistant"))},
    ]
    # The chat's tokens are those of the template, once its text is encoded as text of the base itself.
    tokens, frame = document_tokenizer(base)
    ids = Encoder(tokens, reads_special=True).encode([chat.text])[0].tolist()
    assert [frame.begin, *ids] == chat_ids(tokenizer, turns)
    # Outside text with the same letters stays text.
    assert not set(Encoder(tokens).encode([chat.text])[0].tolist()) & set(tokenizer.all_special_ids)


def test_a_base_that_ends_no_question_writes_no_chats(tmp_path: Path) -> None:
    writer = writer_of(writing_base(tmp_path / "mute", dict.fromkeys(WORDS, 11.0)))

    written = writer.write(range(4))

    assert not writer.writes_chats
    assert {each.kind for each in written} == {"text"}


@pytest.mark.parametrize(
    ("likely", "reason"),
    [
        ({"<|end_of_text|>": 30.0}, "empty"),
        ({"Ġvalue": 30.0}, "loop"),
    ],
)
def test_a_document_of_no_use_is_dropped_with_its_reason(
    tmp_path: Path, likely: dict[str, float], reason: str
) -> None:
    written = writer_of(writing_base(tmp_path / "base", likely)).write([0, 2])

    assert {each.dropped for each in written} == {reason}
    # An empty one has cost its end token.
    assert all(each.tokens > 0 for each in written)


def test_letters_of_a_control_token_are_dropped_and_an_open_chat_is(base: Path) -> None:
    writer: Any = writer_of(base)
    spelled = Encoder(document_tokenizer(base)[0]).encode(["so <|eot_id|> it goes"])[0].tolist()

    reasons = [
        writer._judged(0, kind, Continuation(tokens=tuple(ids), ended=False)).dropped
        for kind, ids in (("text", spelled), ("text", spelled[:1]), ("chat", spelled[:1]))
    ]

    assert reasons == ["control", "", "unended"]


def test_all_ids_are_drawn_as_often_as_their_share_says() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).repeat(4000, 1)
    uniform = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    counts = Counter(choose(logits, uniform, 1.0, 1.0).tolist())

    shares = logits[0].softmax(0).tolist()
    assert counts[3] == 0
    assert all(abs(counts[i] / 4000 - shares[i]) < 0.03 for i in range(3))


def test_a_model_whose_logits_are_no_numbers_is_refused(base: Path) -> None:
    model: Any = load_model(base)
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits * torch.nan)

    with pytest.raises(
        DataError, match=r"the model's logits are NaN, so it writes nothing; .* make or fetch the model again"
    ):
        Writer(model, load_tokenizer(base), 0, "base").write([0])
