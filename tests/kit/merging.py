"""Models of a merge: a base, an instruct model, what was trained in a changed vocabulary; and merges by hand."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.artifacts import artifact
from anadil.artifacts.weight_files import files_of, write_weight_index
from anadil.merge.weights import Ends
from anadil.model.load import load_model
from anadil.model.safetensors_files import SHARD_BYTES
from anadil.pretrain.embedding_init import fit_vocabulary
from anadil.tokenizer.candidate import embedding_rows
from tests.kit.families import make_family
from tests.kit.pretraining import SPECIALS, make_tokenizer

CONTROLS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TABLES = ("model.embed_tokens.weight", "lm_head.weight", "gpt_neox.embed_in.weight", "embed_out.weight")
"""Names in files, with a row for each token."""
BASE_TOKENS = 300
STRATEGIES = {"base": BASE_TOKENS, "extend": 320, "replace": 280, "surgery": 290}
"""Strategy -> tokens of the new vocabulary. A replaced one has other ids, new tokens, and unused rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Directories of one merge."""

    base: Path
    instruct: Path
    model: Path
    tokenizer: Path
    rows: list[list[int]] | None
    """Base ids of each row of the model's tables; None: its vocabulary is the base's."""

    def open(self, *, chat: bool = False, **settings: Any) -> Ends:
        """Open the merge, with the chat vector or without."""
        add = [(self.instruct, self.base)] if chat else []
        return Ends.open(self.model, self.base, self.tokenizer, **{"add": add, **settings})


def make_models(
    folder: Path, strategy: str = "base", *, kind: str = "llama", tied: bool = True, seed: int = 0
) -> Models:
    """Make small random models; the instruct model is the base, changed a little, with a chat template."""
    specials = (*SPECIALS, *CONTROLS)
    base = make_family(folder / "base", kind, tie_word_embeddings=tied)
    plain = make_tokenizer(folder / "plain", BASE_TOKENS, specials)
    (plain / "chat_template.jinja").unlink()
    put(plain, base)
    instruct = changed(base, folder / "instruct", seed + 1)
    (instruct / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer, rows = make_vocabulary(folder, plain, strategy, specials)
    model: Any = load_model(base)
    fit_vocabulary(model, tokenizer)
    model.save_pretrained(folder / "fresh")
    put(tokenizer, folder / "fresh")
    trained = changed(folder / "fresh", folder / "model", seed + 2)
    return Models(base=base, instruct=instruct, model=trained, tokenizer=tokenizer, rows=rows)


def make_vocabulary(
    folder: Path, base: Path, strategy: str, specials: tuple[str, ...]
) -> tuple[Path, list[list[int]] | None]:
    """Make a tokenizer artifact of a strategy; return it and the sources of its rows."""
    target = make_tokenizer(folder / "tokenizer", STRATEGIES[strategy], specials)
    content: dict[str, Any] = {"strategy": strategy, "rows": None}
    rows = None
    if strategy == "base":
        put(base, target)
    else:
        old, new = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (base, target))
        size = STRATEGIES[strategy] + (6 if strategy != "surgery" else 0)  # rows that no token has
        content["rows"] = embedding_rows(old, new, size)
        rows = [*content["rows"]]
        if strategy == "surgery":  # the table keeps its size
            rows += [[] for _ in range(len(rows), BASE_TOKENS)]
        rows = [pieces or ([row] if row < BASE_TOKENS else []) for row, pieces in enumerate(rows)]
    (target / "embedding_map.json").write_text(json.dumps(content))
    artifact.seal(target, kind="tokenizer", origin={})
    return target, rows


def put(tokenizer: Path, folder: Path) -> None:
    """Copy a tokenizer's files beside a model."""
    for file in tokenizer.iterdir():
        if file.name != "manifest.json":
            shutil.copyfile(file, folder / file.name)


def changed(source: Path, target: Path, seed: int, scale: float = 0.02) -> Path:
    """Copy a model directory with every number moved, as training moves it."""
    shutil.copytree(source, target)
    torch.manual_seed(seed)
    tensors = {name: each + scale * torch.randn_like(each) for name, each in tensors_of(source).items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a directory."""
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def by_hand(models: Models, base_share: float, weight: float) -> dict[str, torch.Tensor]:
    """Merge whole tensors by the formula, with one loop over the rows of tables."""
    theta, base, instruct = (tensors_of(each) for each in (models.model, models.base, models.instruct))
    merged = {}
    for name, tensor in theta.items():
        vector = instruct[name] - base[name]
        anchor = base[name]
        if models.rows is not None and name in TABLES:
            anchor = carried(models.rows, base[name], base[name].double().mean(0).float())
            vector = carried(models.rows, vector, torch.zeros(vector.shape[1]))
        result = (1 - base_share) * tensor + base_share * anchor
        result = result + weight * vector
        if weight and name in TABLES:
            old, new = (
                json.loads((each / "tokenizer.json").read_text()) for each in (models.instruct, models.model)
            )
            for token in CONTROLS:
                its, ours = (
                    next(each["id"] for each in file["added_tokens"] if each["content"] == token)
                    for file in (old, new)
                )
                result[ours] = instruct[name][its]
        merged[name] = result
    return merged


def carried(rows: list[list[int]], table: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
    """Make each row of its pieces."""
    made = []
    for pieces in rows:
        total = torch.zeros(table.shape[1])
        for piece in pieces:
            total = total + table[piece]
        made.append(total / len(pieces) if pieces else unused)
    return torch.stack(made)


def sparse_model(folder: Path, tokenizer: Path, shard_bytes: int = SHARD_BYTES, **sizes: Any) -> Path:
    """Make a Llama of any size in BF16 whose files hold nothing but headers and holes, which read as zeros."""
    folder.mkdir(parents=True)
    put(tokenizer, folder)
    config = LlamaConfig(**{"tie_word_embeddings": False, "dtype": "bfloat16", **sizes})
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in LlamaForCausalLM(config).state_dict().items()}
    files = files_of({name: shape.numel() * 2 for name, shape in shapes.items()}, shard_bytes)
    for file, names in files.items():
        entries: dict[str, Any] = {}
        end = 0
        for name in names:
            begin, end = end, end + shapes[name].numel() * 2
            entries[name] = {"dtype": "BF16", "shape": [*shapes[name]], "data_offsets": [begin, end]}
        text = json.dumps(entries).encode()
        with (folder / file).open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + end)
    places = {name: file for file, names in files.items() for name in names}
    write_weight_index(folder, places, sum(shape.numel() * 2 for shape in shapes.values()))
    return folder


def sparse_models(folder: Path, **sizes: Any) -> Models:
    """Make models of any size, with a thousand new tokens."""
    plain = make_tokenizer(folder / "plain", BASE_TOKENS, (*SPECIALS, *CONTROLS))
    size = sizes["vocab_size"]
    rows = [[row] for row in range(size)] + [[row, row + 1, size - row - 1] for row in range(1_000)]
    tokenizer = shutil.copytree(plain, folder / "tokenizer")
    (tokenizer / "embedding_map.json").write_text(json.dumps({"strategy": "extend", "rows": rows}))
    made = {
        name: sparse_model(folder / name, plain, **{**sizes, "vocab_size": size + 1_000 * (name == "model")})
        for name in ("base", "instruct", "model")
    }
    return Models(tokenizer=tokenizer, rows=rows, **made)
