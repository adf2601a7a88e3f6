"""One model of a merge: its tensors by their names in the model, read in FP32, some rows at a time."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anadil.artifacts.base_vocabulary import declared_ends
from anadil.artifacts.weight_files import StoredTensor
from anadil.core.errors import DataError
from anadil.core.json_text import read_json, write_indented
from anadil.model.architecture import check_fit, empty_model, read_config
from anadil.model.chat_ids import ControlWords
from anadil.model.chat_template import rendered, turn_end
from anadil.model.family_table import families
from anadil.model.load import document_ids, load_tokenizer, refuse_not_numbers
from anadil.model.mxfp4 import unpacked_tensors
from anadil.model.safetensors_files import read_rows
from anadil.model.template_limits import RAISED
from anadil.model.tensor_names import Part, names_in_model, parts_of, written_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """A Hugging Face directory whose files were compared with its config.json."""

    name: str
    """Recipe key that names it, for messages."""
    folder: Path
    config: Any
    tensors: Mapping[str, StoredTensor]
    in_files: Mapping[str, str]
    """Names of tensors in files."""
    parts: Mapping[str, Sequence[Part]]
    """Parts of the parameters that files hold in parts, which are tensors of a merge."""
    trained: frozenset[str]
    """Names of parameters or of their parts; tied ones count once. So do buffers in files, such as Gemma 4's scale of a layer.
    Other tensors are constants."""

    @property
    def settings(self) -> dict[str, Any]:
        """Keys of config.json: attributes of a config whose layers differ, such as Gemma 4's, cannot be asked for."""
        settings: dict[str, Any] = self.config.to_dict()
        return settings

    @property
    def tables(self) -> tuple[str, ...]:
        """Parameters with one row for each token: the input table, and the output table where it is not the same."""
        names = families()[self.config.model_type].names.tables
        return tuple(name for name in names if name in self.trained)

    @property
    def num_tokens(self) -> int:
        """Rows of a table."""
        return self.tensors[self.tables[0]].shape[0]

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Read rows of a tensor in FP32; those behind a table's end are 0."""
        tensor = self.tensors[name]
        present = max(0, min(count, (tensor.shape or (1,))[0] - first))
        rows = read_rows(tensor, first, present).float()
        if present == count:
            return rows
        padded = torch.zeros(count, *tensor.shape[1:])
        padded[:present] = rows
        return padded


def open_weights(folder: Path, name: str) -> ModelWeights:
    """Open the weights of a directory; nothing but headers is read."""
    check_fit(folder)
    config = read_config(folder)
    if config.model_type not in families():
        raise DataError(
            f"{name}: {folder} is of type {config.model_type!r}, which is not merged; take one of "
            f"{', '.join(sorted(families()))}"
        )
    model: Any = empty_model(folder)
    stored = unpacked_tensors(folder)
    names = names_in_model(stored, model)
    tensors = {names[name]: each for name, each in stored.items()}
    for name_of_copy, original in model.all_tied_weights_keys.items():  # files may hold either of them
        if name_of_copy in tensors:
            tensors.setdefault(original, tensors[name_of_copy])
    parts = parts_of(tensors, model)
    return ModelWeights(
        name=name,
        folder=folder,
        config=config,
        tensors=tensors,
        in_files=written_names(names),
        parts=parts,
        trained=frozenset(
            part.stored
            for name in [*dict(model.named_parameters()), *(dict(model.named_buffers()).keys() & tensors)]
            for part in parts.get(name, [Part(stored=name)])
        ),
    )


SAME_COMPUTATION = ("model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "per_layer_config")  # fmt: skip
"""Keys of config.json without which tensors of equal shapes mean different things."""
OTHER_COMPUTATION = (
    "hidden_act", "hidden_activation", "rms_norm_eps", "layer_norm_eps", "rope_theta", "rope_parameters", "rope_scaling",
    "partial_rotary_factor", "sliding_window", "layer_types",
)  # fmt: skip
"""Keys of config.json that change what a model computes, and that a merge does not carry."""
SAMPLED_ROWS = 64
"""Rows of each matrix that tell how far two models are from each other: 0.1 GB of an 8B model."""
MOST_DIFFERENT = 0.5
"""Least relative difference of two models that have nothing to do with each other. Independent weights of one spread differ by
1.41; instruct models differ from their bases by a few hundredths. Chosen by us between the two."""


def check_alike(one: ModelWeights, base: ModelWeights) -> None:
    """Refuse a model whose tensors do not mean what the base's mean; tables may have other rows."""
    difference = _difference(one, base)
    if difference:
        raise DataError(
            f"{one.name}: {one.folder} is another model than {base.name} {base.folder}: {difference}; give a model that was "
            "trained from that base"
        )


def _difference(one: ModelWeights, base: ModelWeights) -> str:
    """Describe the first difference in what tensors mean; empty for none."""
    for key in SAME_COMPUTATION:
        its, bases = (each.settings.get(key) for each in (one, base))
        if its != bases:
            return f"{key} is {its!r}, and {bases!r} in the base"
    if len(one.tables) != len(base.tables):
        words = {1: "tied", 2: "not tied"}
        return f"its input and output tables are {words[len(one.tables)]}, and {words[len(base.tables)]} in the base"
    if lost := sorted(one.trained ^ base.trained):
        where = "the base" if lost[0] in one.trained else "it"
        return f"{len(lost)} tensors are not in both; {where} lacks {lost[0]}"
    for name in sorted(base.trained):
        skipped = name in base.tables  # its rows, which differ with the vocabulary
        its, bases = (list(each.tensors[name].shape[skipped:]) for each in (one, base))
        if its != bases:
            return f"{name} has {its}{' columns' if skipped else ''}, and {bases} in the base"
    return ""


def other_settings(model: ModelWeights, minus: ModelWeights) -> list[str]:
    """Say which settings a model was trained with that its `minus`, and so the merged model, does not have."""
    # Mistral 7B Instruct v0.2 has another `rope_theta` than the base v0.1, and weights as near as those of any other Instruct.
    return [
        f"{key} is {its!r}, and {minuses!r} in {minus.name} {minus.folder}: the difference of weights does not hold it, so "
        "the merged model may answer worse; take the base that the model was trained from"
        for key in OTHER_COMPUTATION
        if (its := model.settings.get(key)) != (minuses := minus.settings.get(key))
    ]


def check_vocabulary(one: ModelWeights, base: ModelWeights, used: Collection[int]) -> None:
    """Refuse a model in whose tables a row is another token's than in the base's."""
    its, bases = (
        {number: token for token, number in load_tokenizer(each.folder).get_vocab().items()}
        for each in (one, base)
    )
    # A row behind the table is no row, whatever the tokenizer says.
    strange = [
        number
        for number in sorted(used)
        if number in bases and (its.get(number) != bases[number] or number >= one.num_tokens)
    ]
    if strange:
        first = strange[0]
        raise DataError(
            f"{one.name}: {one.folder} has another vocabulary than {base.name} {base.folder}: {len(strange):,} of "
            f"{len(used):,} tokens differ, the first is {first}, {its.get(first)!r} and {bases[first]!r}; only rows of the "
            "base's own tokens can be carried, so give a model with the base's tokenizer"
        )


def check_lineage(model: ModelWeights, minus: ModelWeights, base: ModelWeights) -> float:
    """Return how far a model is from its `minus`, and refuse two that do not belong together."""
    if model.folder.resolve() == base.folder.resolve():
        raise DataError(
            f"{model.name}: {model.folder} is base.model, so its difference takes away what {minus.folder} learnt; swap "
            "model and minus"
        )
    if model.folder.resolve() == minus.folder.resolve():
        raise DataError(
            f"{model.name}: {model.folder} is the directory of {minus.name}, too, and their difference is nothing; name "
            "the model that was trained from it"
        )
    if minus.folder != base.folder and not (far := relative_difference(minus, base)) < MOST_DIFFERENT:
        raise DataError(
            f"{minus.name}: {minus.folder} has nothing to do with {base.name} {base.folder}: they differ by {far:.2f} of its "
            f"weights, and models of one origin by less than {MOST_DIFFERENT}; give the base, or a model trained from it"
        )
    far = relative_difference(model, minus)
    if not far < MOST_DIFFERENT:
        raise DataError(
            f"{minus.name}: {minus.folder} is not the model that {model.folder} was trained from: they differ by {far:.2f} of "
            f"its weights, and a model differs from its base by less than {MOST_DIFFERENT}; give the base of that model"
        )
    return far


def relative_difference(one: ModelWeights, other: ModelWeights) -> float:
    """Norm of the difference of two models in the norm of the second, over the first rows of all matrices."""
    difference = norm = 0.0
    for name in sorted(other.trained - {*other.tables}):
        shape = other.tensors[name].shape
        if len(shape) < 2:
            continue
        count = min(SAMPLED_ROWS, shape[0])
        its, others = (each.rows(name, 0, count) for each in (one, other))
        for each, rows in ((one, its), (other, others)):
            refuse_not_numbers(each.folder, name, rows)
        difference += float((its - others).double().square().sum())
        norm += float(others.double().square().sum())
    return math.sqrt(difference / norm) if norm else math.inf if difference else 0.0


CHAT = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
)
"""A chat that every template writes; some refuse a system turn."""
TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Template of a model, and its control tokens in two vocabularies."""

    template: str
    is_new: bool
    """True if the model's `minus` has none or another."""
    ids: Mapping[str, tuple[int, int]]
    """Control token -> its id in the merged model, and in the model that brings it."""
    absent: tuple[str, ...]
    """Tokens that the template names and a plain chat does not use, such as those of tools, which the merged model lacks."""
    ends: tuple[str, ...]
    """Tokens that end its turns and texts."""


def chat_format_of(model: Path, minus: Path, tokenizer: Path, name: str) -> ChatFormat | None:
    """Read the chat format of a model; None where it has no template.

    The tokens round a document are left out: pre-training has taught them, and their rows are no message of the chat
    format alone.
    """
    its, ours = load_tokenizer(model), load_tokenizer(tokenizer)
    if not its.chat_template:
        return None
    try:
        template = its.get_chat_template()
        chat = str(rendered(its, CHAT, tokenize=False, add_generation_prompt=True))
    except RAISED as error:
        raise DataError(f"{name}: the chat template of {model} cannot be used ({error})") from None
    words, known = ControlWords(its), ControlWords(ours).tokens
    needed, named = (dict.fromkeys(words.pattern.findall(text)) for text in (chat, template))
    if lost := [token for token in needed if token not in known]:
        raise DataError(
            f"{name}: the chat template of {model} writes {', '.join(lost)}, which the tokenizer of the trained model lacks "
            f"({tokenizer}); take a model whose control tokens the base has, or a base that has them"
        )
    frame = document_ids(ours, str(tokenizer))
    ids = {
        token: (known[token].id, words.tokens[token].id)
        for token in {**needed, **named}
        if token in known and known[token].id not in frame
    }
    absent = tuple(token for token in named if token not in known)
    is_new = template != _template_of(load_tokenizer(minus))
    ends = (turn_end(its), *declared_ends(model))
    return ChatFormat(template=template, is_new=is_new, ids=ids, absent=absent, ends=ends)


def write_chat_template(folder: Path, template: str) -> None:
    """Put a template in place of that of a model directory."""
    (folder / TEMPLATE).write_text(template, encoding="utf-8")
    settings = folder / SETTINGS
    content = read_json(settings)
    # Two templates would be one for each reader: vLLM and transformers take the file, older ones the key.
    if content.pop("chat_template", None) is not None:
        write_indented(settings, content, 2)


def _template_of(tokenizer: Any) -> str | None:
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else None
