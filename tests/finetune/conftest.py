"""A small Llama with a small tokenizer, sealed as a model artifact; made once a session."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from anadil.artifacts import artifact
from anadil.finetune.chat_format import CONTROL, ChatFormat
from anadil.finetune.encode import Example, encode_parts
from anadil.text.chats import Chat
from tests.finetune.short_runs import NUM_CHATS
from tests.kit.llama import small_llama
from tests.kit.rows import write_rows

SENTENCES = [
    "Salam, balansımı necə yoxlaya bilərəm?",
    "Balansınızı öyrənmək üçün zəng düyməsini basın.",
    "Azərbaycanın paytaxtı hansı şəhərdir?",
    "Azərbaycanın paytaxtı Bakı şəhəridir.",
    "Nizami Gəncəvi Azərbaycan ədəbiyyatının ən böyük şairidir.",
    "user assistant system",
]


def encode_chat(tokenizer: PreTrainedTokenizerFast, chat: Chat, written: ChatFormat) -> Example:
    """One chat as the trainer gets it."""
    [example] = encode_parts(tokenizer, written, [(chat, written.pieces(chat))])
    return example


def small_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with the pre-tokenizer of Llama 3 and its control tokens."""
    words = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return small_tokenizer()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts") / "model"
    write_model(folder)
    return folder


def write_model(folder: Path) -> None:
    """Write a model artifact: tied embeddings, random weights of a fixed seed."""
    tokenizer = small_tokenizer()
    small_llama(
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        tie_word_embeddings=True,
        # Embeddings far enough apart for the frozen model to tell its tokens.
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    ).save_pretrained(folder)
    # Nothing may render what a model brings along: the chat format is ours.
    tokenizer.chat_template = "{{ raise_exception('rendered') }}"
    tokenizer.save_pretrained(folder)
    artifact.seal(folder, kind="model", origin={"made": "by a test"})


@pytest.fixture(scope="session")
def many_chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"prompt": f"Azərbaycanın {number}-ci şəhəri hansıdır?", "response": f"Şəhər {number * 7}, balans."}
        for number in range(NUM_CHATS)
    ]
    return write_rows(tmp_path_factory.mktemp("chats") / "chats.jsonl", rows)
