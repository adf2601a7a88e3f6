"""Bases that cannot be trained: refused by name before anything runs, alike by every command that reads a base."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from anadil.artifacts.base_model import read_tokenizer
from anadil.artifacts.sentence_piece import write_pieces
from anadil.cli import main
from tests.kit import families as kit
from tests.kit.marks import slow
from tests.kit.mxfp4 import pack_experts
from tests.kit.pretraining import make_tokenizer
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.sentence_pieces import LIKE_GEMMA, make_pieces

WEIGHTS, FIRST, SECOND = (
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
)
Change = Callable[[Path], object]
Tensors = dict[str, torch.Tensor]
TEXT = "\n\n".join(f"salam dünya kitab ev ana dil {number} " * 20 for number in range(20))


def config(**keys: object) -> Change:
    """Set keys of config.json; None takes one out, and `text_config` is added to."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        content = json.loads(file.read_text())
        for key, value in keys.items():
            old = content.pop(key, None)
            if value is not None:
                content[key] = old | value if isinstance(old, dict) and isinstance(value, dict) else value
        file.write_text(json.dumps(content))

    return change


def tensors(edit: Callable[[Tensors], Tensors]) -> Change:
    return lambda folder: save_file(edit(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def without(part: str) -> Change:
    return tensors(lambda given: {name: each for name, each in given.items() if part not in name})


def tokenizer(edit: Callable[[Any], object]) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        edit(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change


def quantized(method: str) -> Change:
    return config(quantization_config={"quant_method": method})


def add_token(number: int, **flags: object) -> Change:
    def edit(content: Any) -> None:
        last = content["added_tokens"][-1]
        content["added_tokens"].append(last | {"id": last["id"] + number} | flags)

    return tokenizer(edit)


def unigram(content: Any) -> None:
    vocab = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    content["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.0] for token in vocab]}


def lose_a_file(folder: Path) -> None:
    names = sorted(load_file(folder / WEIGHTS))
    (folder / WEIGHTS).rename(folder / FIRST)
    index = {name: SECOND if name == names[-1] else FIRST for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def other_pieces(folder: Path) -> None:
    """Write `tokenizer.model` with another text at one id."""
    file, vocabulary = folder / "tokenizer.model", read_tokenizer(folder)
    file.write_bytes(b"")
    write_pieces(file, vocabulary, file)
    word = next(
        each for each in vocabulary.get_vocab() if len(each) > 3 and each.isalpha() and each.isascii()
    )
    file.write_bytes(file.read_bytes().replace(word.encode(), b"z" * len(word)))


def in_fp8(given: Tensors) -> Tensors:
    return {name: each.to(torch.float8_e4m3fn) if "up_proj" in name else each for name, each in given.items()}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Whole tiny bases by name, each made when it is asked for."""
    root = tmp_path_factory.mktemp("bases")

    @cache
    def base(name: str) -> Path:
        folder = root / name
        if name == "pieces":
            make_pieces(folder, [TEXT, *PRETRAINING_TEXTS] * 2, LIKE_GEMMA)
            kit.make_family(folder, "llama", vocab_size=read_tokenizer(folder).get_vocab_size())
            return folder
        kind, _, tied = name.partition(" ")
        kit.make_family(folder, kind, **({"tie_word_embeddings": True} if tied else {}))
        if kind == "gpt_oss":
            tensors(pack_experts)(folder)
            quantized("mxfp4")(folder)
        return make_tokenizer(folder, 300)

    return base


COMMANDS: Mapping[str, list[str]] = {
    "doctor": ["doctor"], "plan": ["plan"], "run": ["run"], "submit": ["submit"], "compile": ["compile", "-f", "{work}/p.yaml"],
    "recipe check": ["recipe", "check"],
}  # fmt: skip
WINDOW = "sliding_window is {}, not a whole number above 0, correct it"
PACKED = "its weights are quantized \\({}\\), and only weights in FP32, BF16 or FP16 are trained"

OF_TENSORS = re.compile("the first (?!is)|of 8 tensors|_scales is|set it to 300")
"""Messages of `check_fit`, which loads torch: `plan` leaves it to the others."""


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        ("llama", config(architectures=["Qwen3ForCausalLM"]), "architectures of config.json is 'Qwen3ForCausalLM', and model_type is 'llama'"),
        slow("gemma3", config(architectures=["LlavaForConditionalGeneration"]), "is 'LlavaForConditionalGeneration', and model_type is 'gemma3'"),
        slow("llama", config(auto_map={"AutoModel": "m.Model"}), r"config\.json: auto_map asks to run code"),
        slow("llama", config(model_type="foo"), "model type 'foo' is not proven to train"),
        ("llama", without("layers.1.mlp.up_proj"), r"1 missing, the first model\.layers\.1\.mlp\.up_proj"),
        ("llama", tensors(lambda given: {**given, "model.more": torch.ones(2, 3)}), r"1 config.json asks for none, the first model\.more \(F32 \[2, 3\]\)"),
        ("mixtral", without("experts.1.w1"), r"experts\.1\.w1\.weight is missing, and .* is made of 8 tensors"),
        slow("mixtral", without("experts.3."), r"experts\.3\.w1\.weight is missing, and .* is made of 8 tensors"),
        ("gemma3", config(text_config=None), "'gemma3' is a model of text and images, and text_config, .* is missing"),
        slow("gemma3", without("language_model"), "holds no tensors of the text model"),
        ("llama", tensors(in_fp8), r"4 not in FP32, BF16 or FP16, the first .*up_proj\.weight \(F8_E4M3 \[64, 32\]\)"),
        *(slow("llama", quantized(each), PACKED.format(each)) for each in ("fp8", "gptq", "awq", "bitsandbytes", "mxfp4")),
        ("gpt_oss", without("0.mlp.experts.down_proj_scales"), r"experts\.down_proj_scales is missing, fetch the model again"),
        ("mistral", config(sliding_window=0), WINDOW.format(0)),
        slow("mistral", config(sliding_window=-5), WINDOW.format(-5)),
        slow("gemma3", config(text_config={"sliding_window": 0}), WINDOW.format(0)),
        ("llama", without("lm_head"), r"1 missing, the first lm_head\.weight"),
        ("pieces", other_pieces, r"tokenizer\.model: id \d+ is 'z+', and .* in tokenizer\.json"),
        ("pieces", lambda _: None, "SentencePiece's kind .*, which replace does not make"),
        slow("llama", tokenizer(unigram), "its model is Unigram"),
        slow("llama", add_token(-1), "added_tokens names '.*' twice, with ids 299 and 298"),
        ("llama", add_token(1, content="<new>", special=False), "its embedding has 300 rows .*, and tokenizer.json gives '<new>' id 300"),
        slow("llama", lose_a_file, f"1 of 2 files of weights are missing, the first is {SECOND}"),
        slow("llama", config(intermediate_size=48), r"12 of another shape, the first .*down_proj\.weight \(F32 \[32, 64\]\)"),
        slow("llama", config(vocab_size=310), "vocab_size is 310, and .* has 300 rows, set it to 300"),
        slow("llama", config(num_hidden_layers=3), r"9 config.json asks for none, the first model\.layers\.3"),
    ],
)  # fmt: skip
def test_a_base_that_cannot_be_trained_is_refused_by_every_command_alike(
    base: str, change: Change, message: str, bases: Callable[[str], Path], tmp_path: Path, capsys: Any
) -> None:
    folder, text = tmp_path / "base", tmp_path / "text.txt"
    shutil.copytree(bases(base), folder)
    change(folder)
    text.write_text(TEXT, encoding="utf-8")
    strategy = "replace" if base == "pieces" else "extend"
    keys = [
        f"base.model={folder}", f"clean.inputs=[{text}]", f"tokenizer.strategies=[{strategy}]", f"storage.root={tmp_path}/work",
        f"cluster.volumes=[{{claim: disk, path: {tmp_path}}}]",
    ]  # fmt: skip

    for name, command in COMMANDS.items():
        if name == "plan" and OF_TENSORS.search(message):
            continue
        arguments = [
            *(each.format(work=tmp_path) for each in command),
            "smoke",
            *(f"--set={key}" for key in keys),
        ]
        code = main.main(arguments)
        printed = capsys.readouterr()
        assert code in (3, 4, 5), name
        assert re.search(message, " ".join((printed.out + printed.err).split())), (
            name,
            printed.out,
            printed.err,
        )
    assert not (tmp_path / "work/corpus").exists()


@pytest.mark.parametrize(
    "base", ["llama tied", "qwen2_moe", slow("mixtral"), slow("gpt_oss"), slow("gemma3")]
)
def test_a_whole_base_passes_and_is_compiled(
    base: str, bases: Callable[[str], Path], tmp_path: Path, capsys: Any
) -> None:
    keys = [
        f"base.model={bases(base)}",
        "tokenizer.strategies=[extend]",
        "finetune.inputs=[]",
        f"storage.root={tmp_path}",
    ]

    assert main.main(["recipe", "check", "smoke", *(f"--set={key}" for key in keys)]) == 0
    assert (
        main.main(["compile", "-f", str(tmp_path / "p.yaml"), "smoke", *(f"--set={key}" for key in keys)])
        == 0
    )

    assert f"{bases(base)}, a tokenizer of 300 tokens" in capsys.readouterr().err
