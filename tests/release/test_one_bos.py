"""One BOS before a prompt, in every server: the template writes one, and so does the tokenizer where it is asked to.

Two of them cost quality and nobody is told. Who asks for which is each server's own; here are their calls.
"""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from anadil.release.export.gguf_file import write_gguf
from tests.kit.llama_3 import make_llama_3

TEXT = "Salam, necəsən?"
CHAT = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama_3(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """llama.cpp's own server, with the file that `anadil export --format gguf` writes."""
    xllamacpp: Any = pytest.importorskip("xllamacpp", reason="on x86-64 Linux: pip install xllamacpp")
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(model, file, name="test", precision=None)
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(file)
    wanted.n_ctx, wanted.cpuparams.n_threads, wanted.warmup, wanted.use_jinja = 256, 1, False, True
    return xllamacpp.Server(wanted)


def num_bos(ids: list[int], tokenizer: Any) -> int:
    return ids.count(tokenizer.bos_token_id)


def test_transformers_and_vllm_s_two_end_points_write_one(tokenizer: Any) -> None:
    """vLLM cannot run here; these are its calls.

    Source: vllm-project/vllm, vllm/entrypoints/openai/protocol.py: `add_special_tokens` is True in a CompletionRequest and
    False in a ChatCompletionRequest, whose prompt the template has written.
    """
    completions = tokenizer(TEXT, add_special_tokens=True)["input_ids"]
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    chat = tokenizer(prompt, add_special_tokens=False)["input_ids"]

    for ids in (completions, chat):
        assert ids[0] == tokenizer.bos_token_id
        assert num_bos(ids, tokenizer) == 1
    assert completions == tokenizer(TEXT)["input_ids"]
    assert chat == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]


def test_a_chat_written_out_and_sent_as_a_plain_text_gets_two(tokenizer: Any) -> None:
    """What the guide warns of: such a prompt to /v1/completions needs `add_special_tokens: false`."""
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)

    assert num_bos(tokenizer(prompt)["input_ids"], tokenizer) == 2
    assert num_bos(tokenizer(prompt, add_special_tokens=False)["input_ids"], tokenizer) == 1


def test_llama_cpp_s_two_end_points_write_one(server: Any, tokenizer: Any) -> None:
    """Its server tells the number of tokens: another BOS would be one more than Transformers has."""
    text = server.handle_completions({"prompt": TEXT, "max_tokens": 1})
    chat = server.handle_chat_completions({"messages": CHAT, "max_tokens": 1})

    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert text["usage"]["prompt_tokens"] == len(tokenizer(TEXT)["input_ids"])
    assert chat["usage"]["prompt_tokens"] == len(expected)
