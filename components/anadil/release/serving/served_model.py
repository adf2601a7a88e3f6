"""Facts of a finished model that a server needs: place, memory, context. No weights are read."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_verified
from anadil.artifacts.uri import join
from anadil.core.candidates import BY_KIND
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.format import GIB, human_bytes
from anadil.release.model_source import find_model, locate

FILES = re.compile(r"[^/]+\.(safetensors|json|jinja|model|txt)|LICENSE[^/]*|NOTICE")
"""Files that a server loads: weights, configuration, tokenizer, template, licence."""
# GPUs of a machine that share a model; more are several machines, which is another kind of deployment.
GPU_COUNTS = (1, 2, 4, 8)
MEMORY_SHARE = 0.9
"""Share of a GPU's memory for vLLM (`--gpu-memory-utilization`). Source: vLLM's default."""
# On each GPU beside weights, keys and values: activations, CUDA graphs, NCCL. Assumption.
WORKING_BYTES = 3 * GIB
CACHE_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as its server will see it."""

    uri: str
    """The directory with config.json: `s3://` or a path."""
    digest: str
    """Digest of the artifact; empty for a directory that is not an artifact."""
    config: Mapping[str, Any]
    """config.json; its text part for a model of text and pictures."""
    weight_bytes: int
    """Weights in the memory of the GPUs: as stored, and FP32 in 16 bits."""
    file_bytes: int
    dtype: str
    """Precision while serving: bfloat16, or float16 if stored so."""
    has_template: bool
    language: str

    @property
    def max_context(self) -> int:
        """Tokens of the longest text, as the model's own configuration says."""
        return int(self.config["max_position_embeddings"])

    @property
    def heads(self) -> tuple[int, int]:
        """Number of attention heads, and of heads for keys and values."""
        queries = int(self.config["num_attention_heads"])
        return queries, int(self.config.get("num_key_value_heads") or queries)

    def cache_bytes(self, context: int) -> int:
        """Keys and values of one text of `context` tokens, in bytes: 2 * layers * heads * width * 2 bytes a token."""
        queries, heads = self.heads
        width = int(self.config.get("head_dim") or self.config["hidden_size"] // queries)
        return 2 * int(self.config["num_hidden_layers"]) * heads * width * CACHE_BYTES * context

    def gpus(self, context: int, gpu_bytes: int) -> int:
        """The fewest GPUs of a machine that hold the model and one text of `context` tokens."""
        queries, heads = self.heads
        needed = 0
        for count in (each for each in GPU_COUNTS if queries % each == 0):
            # Heads of keys are repeated if there are more GPUs than heads.
            share = max(1 / count, 1 / heads)
            needed = int(self.weight_bytes / count + self.cache_bytes(context) * share) + WORKING_BYTES
            if needed <= MEMORY_SHARE * gpu_bytes:
                return count
        raise PreflightError(
            f"{self.uri}: {human_bytes(self.weight_bytes)} of weights and a text of {context:,} tokens need "
            f"{human_bytes(needed)} on each GPU of a machine, and {MEMORY_SHARE:.0%} of {human_bytes(gpu_bytes)} are "
            "given; lower --context, or raise --gpu-memory to that of your GPUs"
        )


def describe_model(uri: str, *, tracking: str | None = None) -> ServedModel:
    """Describe a model for its server; on S3 only manifest and configuration are fetched."""
    located, _ = locate(uri, tracking)
    if "://" in located:
        place, manifest, prefix = artifact_of(located)
        files = {name: int(entry["bytes"]) for name, entry in manifest.files.items()}
        sizes = {name.removeprefix(prefix): size for name, size in files.items() if name.startswith(prefix)}
        directory = join(place, prefix.rstrip("/")) if prefix else place
        return _served(directory, read_verified(place, manifest, f"{prefix}config.json"), sizes, manifest)
    source = find_model(located)
    if source.directory is None:
        raise RecipeError(
            f"{uri}: a checkpoint, which no server loads; make a model of it first: anadil export {uri} --out DIR"
        )
    sizes = {path.name: path.stat().st_size for path in source.directory.iterdir() if path.is_file()}
    content = (source.directory / "config.json").read_bytes()
    return _served(str(source.directory.resolve()), content, sizes, source.manifest)


def artifact_of(uri: str) -> tuple[str, Manifest, str]:
    """Find a model, merged or adapter artifact, its manifest, and the prefix of the model's files in it."""
    place, manifest = locate(uri)
    if manifest is None or manifest.kind not in BY_KIND:
        find_model(uri)  # says what is wrong with it
        raise DataError(f"{uri}: no model, merged or adapter artifact; give one, on s3:// or on a claim")
    folder = BY_KIND[manifest.kind].folder
    return place, manifest, f"{folder}/" if folder else ""


def _served(uri: str, content: bytes, sizes: Mapping[str, int], manifest: Manifest | None) -> ServedModel:
    needed = {name: size for name, size in sizes.items() if FILES.fullmatch(name)}
    weights = sum(size for name, size in needed.items() if name.endswith(".safetensors"))
    try:
        whole = json.loads(content)
        config = whole.get("text_config", whole)
        for key in ("max_position_embeddings", "num_attention_heads", "num_hidden_layers", "hidden_size"):
            int(config[key])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{join(uri, 'config.json')}: does not say what a server has to know ({error}); give a decoder such as Llama"
        ) from None
    kind = config.get("dtype") or config.get("torch_dtype") or whole.get("dtype") or whole.get("torch_dtype")
    language = (manifest.recipe if manifest else {}).get("language", "")
    return ServedModel(
        uri=uri,
        digest=manifest.digest if manifest else "",
        config=config,
        # vLLM holds 32-bit weights in 16 bits.
        weight_bytes=weights // 2 if kind == "float32" else weights,
        file_bytes=sum(needed.values()),
        dtype="float16" if kind == "float16" else "bfloat16",
        has_template="chat_template.jinja" in sizes,
        language=str(language),
    )
