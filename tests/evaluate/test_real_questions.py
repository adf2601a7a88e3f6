"""Real questions in Azerbaijani, nine of ten for training: what a small model learns of the others."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from anadil.artifacts.chat_files import read_chats
from anadil.model.chat_ids import chat_ids
from anadil.text.chats import Chat, DroppedChats, split_of
from anadil.text.corpus import write_documents
from tests.kit.llama import small_llama

from .conftest import SPECIALS, TEMPLATE, TEXTS, document
from .test_questions import scores_of, write_chats

DATA = os.environ.get("ANADIL_DATA", "")
FILES = ("az_xcopa", "az_translation_tatoeba", "az_native_instructions")
LONGEST = 96


def teach(model: Any, rows: Sequence[list[int]], steps: int, lr: float) -> None:
    """Batches of 16 rows of about one length, padded with -100."""
    generator = torch.Generator().manual_seed(0)
    ordered = sorted((row[:LONGEST] for row in rows), key=len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        start = int(torch.randint(0, len(ordered) - 16, (), generator=generator))
        batch = ordered[start : start + 16]
        width = len(batch[-1])
        ids = torch.tensor([row + [1] * (width - len(row)) for row in batch])
        labels = torch.tensor([row + [-100] * (width - len(row)) for row in batch])
        model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def tokenizer_of(chats: Sequence[Chat]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2_000, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    backend.train_from_iterator((message.content for chat in chats for message in chat.messages), trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=SPECIALS[0], eos_token=SPECIALS[1])
    made.chat_template = TEMPLATE
    return made


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with qa/")
def test_held_out_answers_are_likelier_and_nearer_after_training_on_the_others(tmp_path: Path) -> None:
    started = time.process_time()
    chats = list(read_chats([f"{DATA}/qa/{name}.jsonl" for name in FILES], DroppedChats()))
    parts = {
        part: [chat for chat in chats if split_of(chat, 0, 0.1) == part] for part in ("train", "heldout")
    }
    tokenizer = tokenizer_of(parts["train"])
    model = small_llama(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, tie_word_embeddings=True,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    for folder in ("base", "model", "adapter/merged"):
        if folder == "model":
            texts = [message.content for chat in parts["train"] for message in chat.messages]
            rows = [[0, *ids, 1] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
            teach(model, rows, 200, 3e-3)
        if folder == "adapter/merged":
            turns = [
                [{"role": one.role, "content": one.content} for one in chat.messages]
                for chat in parts["train"]
            ]
            teach(model, [chat_ids(tokenizer, each) for each in turns], 300, 3e-3)
        model.save_pretrained(tmp_path / folder)
        tokenizer.save_pretrained(tmp_path / folder)
    write_chats(tmp_path / "adapter/heldout_chats.jsonl", parts["heldout"])
    write_chats(tmp_path / "adapter/seen_chats.jsonl", parts["train"][:32])
    write_documents(tmp_path / "corpus", "train", [document("Başqa bir mətn.")])
    write_documents(tmp_path / "corpus", "heldout", [document(text, f"h{i}") for i, text in enumerate(TEXTS)])

    scores = scores_of(tmp_path, tmp_path / "out", max_questions=48)

    tables = scores["candidates"]
    difference = scores["differences"]["finetuned - adapted, answers"]
    shown = {
        name: {key: table[key] for key in ("questions", "seen_questions", "choices", "retained")}
        for name, table in tables.items()
    }
    print(json.dumps({"cpu_s": time.process_time() - started, "difference": difference, **shown}, indent=1))
    assert difference["num_documents"] >= 250
    assert difference["high"] < 0
    before, after = tables["adapted"]["questions"], tables["finetuned"]["questions"]
    assert after["chrf"] > before["chrf"]
    assert after["ended"] > before["ended"]
    choices = tables["finetuned"]["choices"]["az_xcopa"]
    assert (choices["chance"], choices["num"] > 30) == (0.5, True)
    assert choices["interval"][0] < choices["accuracy"] < choices["interval"][1]
