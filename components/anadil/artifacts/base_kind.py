"""The kind of a base, by its directory without its weights: pretrained, or post-trained to answer in chats.

A chat template alone proves nothing: Qwen's pretrained bases have one. Sampling settings prove nothing either:
`generation_config.json` of Llama 3.2 1B, which is pretrained, samples at temperature 0.6.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from anadil.artifacts import base_vocabulary
from anadil.artifacts.base_model import CHAT_TEMPLATE, TINY, read_tokenizer, tokenizer_config
from anadil.artifacts.mlmodel import MLMODEL

Kind = Literal["pretrained", "post-trained", "unknown"]
KINDS: dict[int, Kind] = {1: "post-trained", 0: "unknown", -1: "pretrained"}

POST_TRAINED_WORDS = frozenset(
    ["instruct", "chat", "it", "sft", "dpo", "rlhf", "thinking", "reasoning", "assistant", "conversational"]
)
PRETRAINED_WORDS = frozenset(["base", "pt", "pretrained", "pretrain", "foundation"])
"""Words of publishers' names and tags: `Qwen3-4B-Base`, `gemma-3-1b-pt` and `-it`, `Llama-3.2-1B-Instruct`."""
DOCUMENT_ENDS = (*base_vocabulary.USUAL_ENDS, "<｜end▁of▁sentence｜>")
"""Tokens that end documents, and in some templates turns too (Mistral, OLMo, DeepSeek): they tell no kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseKind:
    """The use that a base was trained for, and the reasons to say so."""

    kind: Kind
    reasons: tuple[str, ...]

    @property
    def is_post_trained(self) -> bool:
        """True if it was taught to answer in its chat format."""
        return self.kind == "post-trained"

    @property
    def clause(self) -> str:
        """The reasons in one clause."""
        return "; ".join(self.reasons)


def base_kind(folder: Path, name: str) -> BaseKind:
    """Tell the kind of a base; `unknown` where the evidence is missing or contradicts itself.

    Args:
        folder: Its config, tokenizer and, where it has one, `generation_config.json`; weights are not read.
        name: `base.model` of the recipe: a hub id, a directory or `tiny`.
    """
    if name == TINY:
        return BaseKind(kind="pretrained", reasons=("tiny is trained on running text alone",))
    if trained_here := _kind_of_artifact(folder):
        return trained_here
    template = stored_template(folder)
    by_name, words = _sign_of_name(folder, name)
    by_end, ends = _sign_of_ends(folder, template)
    reasons = tuple(filter(None, (ends, words)))
    if template is None:
        # A conversion may have lost the template, and without it nobody can be asked.
        kind: Kind = "unknown" if by_name > 0 or by_end > 0 else "pretrained"
        return BaseKind(kind=kind, reasons=("it has no chat template", *reasons))
    sign = by_end or by_name
    if by_end * by_name < 0:
        # Gemma 2's Instruct models list the end of documents alone. The other way round the name may be the user's own.
        sign = 1 if by_name > 0 else 0
    if not reasons:
        reasons = ("its turns end as its documents do, and neither its name nor its card says a kind",)
    return BaseKind(kind=KINDS[sign], reasons=reasons)


def stored_template(folder: Path) -> str | None:
    """Return the Jinja template beside a model, or None."""
    file = folder / CHAT_TEMPLATE.name
    if file.is_file():
        return file.read_text(encoding="utf-8")
    written: Any = tokenizer_config(folder).get("chat_template")
    if isinstance(written, list):  # several by name, as transformers 4 wrote them
        written = {each.get("name"): each.get("template") for each in written if isinstance(each, dict)}
    written = chosen_template(written)
    return written if isinstance(written, str) else None


def chosen_template(written: Any) -> Any:
    """Return the one of several templates, by name, that chats are served with: `default`, or the only one; else what is given."""
    if not isinstance(written, Mapping):
        return written
    return written.get("default") or (next(iter(written.values())) if len(written) == 1 else written)


def _kind_of_artifact(folder: Path) -> BaseKind | None:
    """Return the kind of a model of this program; None for any other."""
    file = folder / MLMODEL
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if "llm/v1/chat" in text:
        return BaseKind(kind="post-trained", reasons=(f"its {MLMODEL} says that it was finetuned on chats",))
    if "llm/v1/completions" in text:
        # Its files list every end of its vocabulary, and only its own base tells whether it ever saw a chat.
        words = f"its {MLMODEL} says that it was trained further on running text, and not what it was before"
        return BaseKind(kind="unknown", reasons=(words,))
    return None


def _sign_of_ends(folder: Path, template: str | None) -> tuple[int, str]:
    """Return 1 if generation ends with the end of a turn, -1 if with that of documents alone, 0 if nothing tells."""
    tokenizer = read_tokenizer(folder)
    special = [each.content for each in tokenizer.get_added_tokens_decoder().values() if each.special]
    known = (base_vocabulary.END_OF_TURN, *base_vocabulary.OTHER_ENDS_OF_TURNS)
    of_template = known if template is None else [token for token in special if token in template]
    listed = [(file, token) for file, token in _listed_ends(folder, tokenizer) if token]
    for file, token in listed:
        if token in of_template and token not in DOCUMENT_ENDS:
            return 1, f"{file} ends texts with {token}, an end of turns"
    # A template that writes `eos_token` ends turns as documents end.
    if not listed or not of_template or template is None or "eos_token" in template:
        return 0, ""
    if any(token in of_template for _, token in listed):
        return 0, ""
    ends = ", ".join(dict.fromkeys(token for _, token in listed))
    return -1, f"texts end with {ends} alone, which no turn of its chat template ends with"


def _listed_ends(folder: Path, tokenizer: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the ends of a generation, each with the file that lists it."""
    # generation_config.json decides when text is generated; config.json stands in for it.
    for name, tokens in [*base_vocabulary.ends_by_file(folder, tokenizer).items()][:1]:
        yield from ((name, token) for token in tokens)
    yield "tokenizer_config.json", base_vocabulary.token_text(tokenizer_config(folder).get("eos_token"))


def _sign_of_name(folder: Path, name: str) -> tuple[int, str]:
    """Return 1 if the name or a tag of the card says that the base answers, -1 if that it does not, 0 for neither."""
    path = Path(name)
    # A snapshot in the hub's cache is named by its commit, two folders below the model's name.
    title = path.parents[1].name if path.parent.name == "snapshots" else path.name
    words = re.split(r"[^a-z0-9]+", title.lower())
    tags = [tag for tag in words_of_field(card_fields(folder), "tags") if tag.lower() in POST_TRAINED_WORDS]
    # A directory called `base` or `chat` is named by its user.
    of_name = sorted({*words} & (POST_TRAINED_WORDS | PRETRAINED_WORDS)) if len(words) > 1 else []
    says = [f"its name {title} says {', '.join(of_name)}"] if of_name else []
    says += [f"its card has the tag {', '.join(tags)}"] if tags else []
    signs = {1 if word in POST_TRAINED_WORDS else -1 for word in of_name} | ({1} if tags else set())
    return (signs.pop() if len(signs) == 1 else 0), "; ".join(says)


MAX_BYTES = 1_000_000
"""Bytes of a page that are read; published ones have tens of thousands."""


def card_fields(folder: Path) -> Mapping[str, object]:
    """Return the fields of a model's card; empty where it has none that can be read."""
    page = folder / "README.md"
    if not page.is_file():
        return {}
    with page.open("rb") as stream:
        text = stream.read(MAX_BYTES).decode(errors="replace")
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---\s*(\n|$)", text, re.DOTALL)
    try:
        fields = yaml.safe_load(match[1]) if match else None
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError of `2024-02-30`, which is no day
        return {}
    return fields if isinstance(fields, dict) else {}


def words_of_field(fields: Mapping[str, object], name: str) -> list[str]:
    """Return a field that may be one word or a list of them."""
    value = fields.get(name)
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each is not None]
