"""Small random Llamas with byte-level tokenizers: exact arithmetic, no knowledge."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from anadil.text.corpus import Document
from tests.kit.llama import small_llama

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
TEXTS = (
    "Bakı Azərbaycanın paytaxtıdır və Xəzər dənizinin sahilində yerləşir.",
    "Kitabxanaçı uşaqlara nağıl oxuyanda otaqda heç kim danışmırdı.",
    "Dünən səhər yağış yağdı, amma günorta hava açıldı və biz bağa getdik.",
    "Nənəm hər bazar günü təndirdə çörək bişirir, qonşulara da pay göndərir.",
    "Qatar stansiyaya on dəqiqə gec çatdı, ona görə də sərnişinlər gözləməli oldular.",
    "Şagirdlər riyaziyyat dərsində kəsrləri toplamağı və çıxmağı öyrəndilər.",
    "Ölkənin dağ kəndlərində qış uzun çəkir, yollar çox vaxt qarla örtülür.",
    "Həkim xəstəyə bol su içməyi və bir neçə gün evdə dincəlməyi məsləhət gördü.",
)


def document(text: str, name: str = "") -> Document:
    return Document(id=name or text[:12], text=text, source="test", url="", lang="az")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def train_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIALS[0], eos_token=SPECIALS[1], pad_token=SPECIALS[1]
    )


def tiny_model(vocab_size: int, seed: int = 0, max_positions: int = 128) -> Any:
    return small_llama(
        seed=seed,
        vocab_size=vocab_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(400)


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> Any:
    return tiny_model(len(tokenizer))


def save_model(folder: Path, vocab_size: int = 400, seed: int = 0, *, chat: bool = False) -> Path:
    """Write a Hugging Face model directory with a tokenizer of the wanted size."""
    made = train_tokenizer(vocab_size)
    if chat:
        made.chat_template = TEMPLATE
    tiny_model(len(made), seed).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
