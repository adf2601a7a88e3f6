"""Kinds of bases, by what families publish beside their weights."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from anadil.artifacts.base_kind import base_kind, stored_template
from anadil.artifacts.mlmodel import MLMODEL

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GEMMA = "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
MISTRAL = "{% for m in messages %}[INST]{{ m.content }}[/INST]{{ eos_token }}{% endfor %}"
GLM = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}<|user|><|assistant|>"
DEEPSEEK = "{% for m in messages %}<｜User｜>{{ m.content }}<｜end▁of▁sentence｜>{% endfor %}"
QWEN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
GEMMA_TOKENS = ("<eos>", "<start_of_turn>", "<end_of_turn>")
LLAMA_TOKENS = ("<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A directory of a base, as its publisher fills it."""

    name: str
    tokens: tuple[str, ...]
    ends: tuple[str, ...]
    """Tokens whose ids its generation_config.json lists."""
    template: str | None
    kind: str
    eos: str | None = None
    """The `eos_token` in tokenizer_config.json."""
    sampling: dict[str, Any] = field(default_factory=dict)


SAMPLES = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
PUBLISHED = (
    Published(
        name="Qwen/Qwen2.5-0.5B", tokens=QWEN_TOKENS, ends=("<|endoftext|>",), template=CHATML, kind="pretrained",
        eos="<|endoftext|>",
    ),
    # Its name says nothing of chats.
    Published(
        name="Qwen/Qwen3-4B", tokens=QWEN_TOKENS, ends=("<|im_end|>", "<|endoftext|>"), template=CHATML,
        kind="post-trained", sampling=SAMPLES,
    ),
    # Trained further by others, who set the tokenizer's end alone.
    Published(
        name="lab/qwen-tuned", tokens=QWEN_TOKENS, ends=("<|endoftext|>",), template=CHATML, kind="post-trained",
        eos="<|im_end|>",
    ),
    Published(
        name="meta-llama/Llama-3.2-1B", tokens=LLAMA_TOKENS, ends=("<|end_of_text|>",), template=None,
        kind="pretrained", sampling=SAMPLES,
    ),
    # Lists the end of documents alone, though its turns end otherwise.
    Published(
        name="google/gemma-2-9b-it", tokens=GEMMA_TOKENS, ends=("<eos>",), template=GEMMA, kind="post-trained",
    ),
    Published(
        name="mistralai/Mistral-7B-Instruct-v0.3", tokens=("</s>", "[INST]", "[/INST]"), ends=("</s>",),
        template=MISTRAL, kind="post-trained",
    ),
    Published(
        name="models/mistral", tokens=("</s>", "[INST]", "[/INST]"), ends=("</s>",), template=MISTRAL, kind="unknown",
    ),
    Published(
        name="THUDM/GLM-4-9B-0414", tokens=("<|endoftext|>", "<|user|>", "<|assistant|>"),
        ends=("<|endoftext|>", "<|user|>"), template=GLM, kind="post-trained",
    ),
    Published(
        name="deepseek-ai/DeepSeek-V3-Base", tokens=("<｜end▁of▁sentence｜>", "<｜User｜>"),
        ends=("<｜end▁of▁sentence｜>",), template=DEEPSEEK, kind="pretrained",
    ),
    # A conversion that lost its template.
    Published(
        name="models/smollm2-instruct-fp32", tokens=QWEN_TOKENS, ends=("<|im_end|>",), template=None, kind="unknown",
    ),
    # Whose name is the user's own.
    Published(
        name="models/my-base", tokens=QWEN_TOKENS, ends=("<|im_end|>",), template=CHATML, kind="unknown",
    ),
    Published(
        name="models/base", tokens=QWEN_TOKENS, ends=("<|im_end|>",), template=CHATML, kind="post-trained",
    ),
)  # fmt: skip


def make(folder: Path, published: Published) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in published.tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = [tokenizer.token_to_id(token) for token in published.ends]
    settings = {"eos_token": published.eos, "chat_template": published.template}
    write(folder, "tokenizer_config.json", {key: value for key, value in settings.items() if value})
    write(
        folder,
        "generation_config.json",
        {"eos_token_id": ids if len(ids) > 1 else ids[0], **published.sampling},
    )
    return folder


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A base of which nothing but a card or a mark of ours may say what it is."""
    return make(tmp_path, next(each for each in PUBLISHED if each.name == "models/mistral"))


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda each: each.name)
def test_the_kind_of_a_base_is_that_of_its_publisher(published: Published, tmp_path: Path) -> None:
    result = base_kind(make(tmp_path, published), published.name)

    assert result.kind == published.kind, result.clause
    assert result.reasons


def test_the_evidence_names_file_and_token(tmp_path: Path) -> None:
    published = next(each for each in PUBLISHED if each.name == "Qwen/Qwen3-4B")

    result = base_kind(make(tmp_path, published), published.name)

    assert result.reasons == ("generation_config.json ends texts with <|im_end|>, an end of turns",)


def test_a_tag_of_the_card_tells_the_kind_where_tokens_and_name_do_not(silent: Path) -> None:
    (silent / "README.md").write_text("---\ntags:\n- chat\n- pytorch\n---\n# Model\n", encoding="utf-8")

    result = base_kind(silent, "models/mistral")

    assert (result.kind, result.clause) == ("post-trained", "its card has the tag chat")


def test_a_snapshot_of_the_hubs_cache_has_the_name_of_its_model(silent: Path) -> None:
    place = "hub/models--mistralai--Mistral-7B-Instruct-v0.3/snapshots/0123abcd"

    assert base_kind(silent, place).kind == "post-trained"


@pytest.mark.parametrize(("task", "kind"), [("chat", "post-trained"), ("completions", "unknown")])
def test_a_model_of_ours_is_told_by_its_task(tmp_path: Path, task: str, kind: str) -> None:
    folder = make(tmp_path, PUBLISHED[1])  # its files list every end that the vocabulary has
    (folder / MLMODEL).write_text(f"metadata:\n  task: llm/v1/{task}\n", encoding="utf-8")

    assert base_kind(folder, "runs/1/model").kind == kind


def test_tiny_is_pretrained_though_its_files_list_the_end_of_turns() -> None:
    assert base_kind(Path("nowhere"), "tiny").kind == "pretrained"


def test_ids_outside_of_the_vocabulary_are_no_evidence(silent: Path) -> None:
    write(silent, "generation_config.json", {"eos_token_id": [-1, 10**6, "2", None]})

    assert base_kind(silent, "models/mistral").kind == "unknown"


def test_of_several_templates_the_default_is_taken_and_what_is_none_is_left(tmp_path: Path) -> None:
    tools = {"name": "tool_use", "template": "tools"}

    for named, template in (
        ([tools, {"name": "default", "template": "chat"}], "chat"),
        ([tools, {"name": "default"}, {}, "chat"], None),
    ):
        write(tmp_path, "tokenizer_config.json", {"chat_template": named})

        assert stored_template(tmp_path) == template
