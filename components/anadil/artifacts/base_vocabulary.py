"""The vocabulary of a base: its special tokens and their roles, whichever of its files names them.

A family's files agree on little: `<|endoftext|>` may be an added token of `tokenizer.json`, stand in its vocabulary
alone and be named in `tokenizer_config.json`, or have nothing but an id in `config.json`.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.artifacts.base_model import CHAT_TOKENS, END, model_config, read_tokenizer
from anadil.artifacts.sentence_piece import check_pieces
from anadil.artifacts.text_part import read_settings
from anadil.core.errors import DataError
from anadil.recipe.sections import Tokenizer as TokenizerSettings
from anadil.text.cut_patterns import JsonObject
from anadil.text.pieces import BYTE_TOKENS, blanks_fault, is_of_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Special tokens that transformers has a key for, in `tokenizer_config.json` (`eos_token`) and in `config.json` (`eos_token_id`)."""
USUAL_ENDS = (END, "<|endoftext|>", "</s>", "<eos>")
"""Tokens that end a text in Llama 3, GPT-2, SentencePiece's and Gemma's models."""
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
"""The second wins."""
LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Keys of special tokens without a role, as transformers 4 and 5 call them."""


def read_base(folder: Path) -> "Tokenizer":
    """Return the tokenizer of a base, in which every special token that its files name is one.

    One that only its vocabulary and settings name would count as an ordinary token, and be lost where those are replaced.
    """
    from tokenizers import AddedToken

    tokenizer = read_tokenizer(folder)
    check_pieces(folder, tokenizer)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    special = _special_tokens(folder, tokenizer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special if token not in known]
    )
    return tokenizer


def base_settings(folder: Path, tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return the base's `tokenizer_config.json` with the roles that only other files name.

    A role whose token the vocabulary lacks is skipped with a warning: transformers would give it an id without a row in the
    embedding.
    """
    settings = _settings(folder)
    for name, token in _unknown_roles(settings, tokenizer).items():
        log.warning("%s: %s is %r, which its vocabulary lacks; left out", folder, name, token)
    return _with_roles(settings, folder, tokenizer)


def require_end(folder: Path, tokenizer: "Tokenizer") -> None:
    """Check that a model's documents can be told apart."""
    if not (folder / "config.json").is_file():  # its vocabulary may be studied; nothing is trained on it
        return
    if any(tokenizer.token_to_id(token) is not None for token in (END, CHAT_TOKENS[-1])):  # named or not
        return
    if not token_text(_with_roles(_settings(folder), folder, tokenizer).get("eos_token")):
        raise DataError(
            f"base.model: {folder}: no file says which token ends a text; name it as eos_token in tokenizer_config.json"
        )


def require_rows(folder: Path, tokenizer: "Tokenizer") -> None:
    """Check that the model has a row for each token that a text becomes. A special one gets the mean of all."""
    rows = model_config(folder).get("vocab_size")
    special = {index for index, each in tokenizer.get_added_tokens_decoder().items() if each.special}
    ids = {index: token for token, index in tokenizer.get_vocab().items() if index not in special}
    if isinstance(rows, int) and ids and max(ids) >= rows:
        raise DataError(
            f"{folder}: its embedding has {rows:,} rows (vocab_size), and tokenizer.json gives {ids[max(ids)]!r} id {max(ids):,}, "
            "fetch both again, or give the model those rows (transformers: resize_token_embeddings)"
        )


def require_changeable(tokenizer: "Tokenizer", name: str, settings: TokenizerSettings) -> None:
    """Check that the strategies of a recipe can change the base's vocabulary."""
    if not set(settings.strategies) - {"base"}:
        return
    content = json.loads(tokenizer.to_str())
    if fault := _pieces_fault(content) if is_of_pieces(content) else _byte_level_fault(content):
        raise DataError(
            f"base.model: the vocabulary of {name} cannot be changed: {fault}. extend, surgery and replace change a byte-level "
            "BPE, and extend and surgery one of SentencePiece's kind; set tokenizer.strategies to [base]"
        )
    if not is_of_pieces(content):
        return
    kind_name = "a vocabulary of SentencePiece's kind (byte_fallback)"
    if "replace" in settings.strategies:
        raise DataError(
            f"base.model: {name} has {kind_name}, which replace does not make. Leave replace out of tokenizer.strategies, "
            "and take extend or surgery"
        )
    if settings.prune:
        raise DataError(
            f"base.model: {name} has {kind_name}, whose tokens tokenizer.prune does not take out. Set it to false, or take "
            "surgery"
        )


def _byte_level_fault(content: JsonObject) -> str:
    if content["model"]["type"] == "Unigram":
        return "its model is Unigram, which cuts a text by probabilities of all its tokens, and new tokens have none"
    if content["model"]["type"] != "BPE":
        return f"its model is {content['model']['type']}"
    if '"type": "ByteLevel"' not in json.dumps(content["pre_tokenizer"]):
        return "its pre-tokenizer does not write text as bytes (ByteLevel)"
    return ""


def _pieces_fault(content: JsonObject) -> str:
    vocab = content["model"]["vocab"]
    if missing := [token for token in BYTE_TOKENS if token not in vocab]:
        return f"it lacks {len(missing)} of the 256 tokens of bytes, such as {missing[0]}"
    if '"type": "ByteFallback"' not in json.dumps(content["decoder"]):
        return "its decoder does not join tokens of bytes (ByteFallback)"
    return blanks_fault(content)


def _settings(folder: Path) -> dict[str, Any]:
    return {key: value for name in SETTINGS for key, value in read_settings(folder / name).items()}


def _unknown_roles(settings: Mapping[str, Any], tokenizer: "Tokenizer") -> dict[str, str]:
    """Keys of the settings that name a token which the vocabulary lacks -> the token."""
    named = {f"{role}_token": token_text(settings.get(f"{role}_token")) for role in ROLES}
    return {name: token for name, token in named.items() if token and tokenizer.token_to_id(token) is None}


def _with_roles(settings: Mapping[str, Any], folder: Path, tokenizer: "Tokenizer") -> dict[str, Any]:
    unknown = _unknown_roles(settings, tokenizer)
    by_id = _tokens_by_id(folder, tokenizer)
    others = {f"{role}_token": tokens[0] for role, tokens in by_id.items() if tokens}
    roles = others | {name: value for name, value in settings.items() if name not in unknown}
    usual = _usual_end(folder, tokenizer)
    return {**roles, "eos_token": usual} if usual and not token_text(roles.get("eos_token")) else roles


def _usual_end(folder: Path, tokenizer: "Tokenizer") -> str:
    """The token that ends texts by custom where `tokenizer.json` lies alone; empty where other files may say it."""
    if any((folder / name).is_file() for name in ("config.json", *SETTINGS)):
        return ""
    unmerged = _unmerged_tokens(tokenizer)
    return next((token for token in USUAL_ENDS if token in unmerged), "")


def _special_tokens(folder: Path, tokenizer: "Tokenizer") -> list[str]:
    settings = _settings(folder)
    named = [token_text(settings.get(f"{role}_token")) for role in ROLES]
    for key in LISTS:
        listed = settings.get(key) or ()
        named += map(token_text, listed.values() if isinstance(listed, Mapping) else listed)
    unmerged = _unmerged_tokens(tokenizer)
    by_id = [token for tokens in _tokens_by_id(folder, tokenizer).values() for token in tokens]
    usual = _usual_end(folder, tokenizer)
    return [token for token in dict.fromkeys([*named, *by_id, usual]) if token in unmerged]


def _tokens_by_id(folder: Path, tokenizer: "Tokenizer") -> dict[str, list[str]]:
    """Role -> tokens whose ids `config.json` gives; an id of an ordinary token is a leftover of another tokenizer."""
    if not (folder / "config.json").is_file():
        return {}
    config, unmerged = model_config(folder), _unmerged_tokens(tokenizer)
    ids_by_role = {role: config.get(f"{role}_token_id") for role in ROLES}
    ids = {role: each if isinstance(each, list) else [each] for role, each in ids_by_role.items()}
    tokens = {
        role: [tokenizer.id_to_token(index) for index in each if isinstance(index, int) and index >= 0]
        for role, each in ids.items()
    }
    return {role: [token for token in each if token in unmerged] for role, each in tokens.items()}


def _unmerged_tokens(tokenizer: "Tokenizer") -> set[str]:
    """Return special tokens, and those of a BPE's vocabulary that no text becomes: neither one letter nor made by a merge."""
    content = json.loads(tokenizer.to_str())
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    if content["model"]["type"] != "BPE":
        return special
    made = {"".join(pair) for pair in content["model"]["merges"]}
    return special | {token for token in content["model"]["vocab"] if len(token) > 1 and token not in made}


def token_text(token: object) -> str:
    """The text of a token as `tokenizer_config.json` writes it, alone or with flags; empty for none."""
    written = token.get("content") if isinstance(token, Mapping) else token
    return written if isinstance(written, str) else ""


END_OF_TEXT = "<|end_of_text|>"
END_OF_TURN = "<|eot_id|>"
OTHER_ENDS_OF_TURNS = ("<|im_end|>", "<end_of_turn>", "<|end|>", "<|turn_end|>")
"""Ends of turns in bases other than Llama 3: Qwen and others that write ChatML, Gemma, Phi. A base's EOS is the end of a text, and
one that was taught chats would never be stopped by it."""
BEGINNINGS_OF_TURNS = ("<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|start|>", "<|user|>")
"""Beginnings of turns in the same. SmolLM2's Instruct models call theirs BOS; in their pre-training it stood nowhere."""


def ends_of(vocabulary: Mapping[str, int], eos: str | None) -> list[int]:
    """Return the ids that end a generation; the first ends a document."""
    # An Instruct model's EOS ends turns; its pre-training ended documents with another token.
    documents = [vocabulary[token] for token in (END_OF_TEXT, END_OF_TURN) if token in vocabulary]
    if not documents and eos in OTHER_ENDS_OF_TURNS:
        documents = [vocabulary[token] for token in USUAL_ENDS if token in vocabulary][:1]
    ends = documents or ([vocabulary[eos]] if eos is not None and eos in vocabulary else [])
    turns = [vocabulary[token] for token in OTHER_ENDS_OF_TURNS if token in vocabulary]
    named = [vocabulary[eos]] if eos is not None and eos in vocabulary else []
    return list(dict.fromkeys([*ends, *named, *turns]))


def frame_of(
    vocabulary: Mapping[str, int], bos: str | None, eos: str | None, template: str
) -> tuple[int, int] | None:
    """Return the ids before and after a document: BOS, or the end of text in its place, and the end of text.

    Training, prompts and the shipped tokenizer begin a text so. None for a vocabulary without an end.
    """
    if not (ends := ends_of(vocabulary, eos)):
        return None
    known = bos in vocabulary and not begins_turns(bos, template)
    return vocabulary[str(bos)] if known else ends[0], ends[0]


def declared_ends(folder: Path) -> list[str]:
    """Return the tokens with which a model's own files end a generation; none where nothing says which ids they are."""
    try:
        tokenizer = read_tokenizer(folder)
    except DataError:  # whoever needs it as a tokenizer is told
        return []
    # The id of an ordinary token is a leftover of another tokenizer.
    unmerged = _unmerged_tokens(tokenizer)
    return [
        token for tokens in ends_by_file(folder, tokenizer).values() for token in tokens if token in unmerged
    ]


def ends_by_file(folder: Path, tokenizer: "Tokenizer") -> dict[str, list[str | None]]:
    """Return the files that list ends of a generation -> the tokens; None for an id that none has."""
    listed: dict[str, list[str | None]] = {}
    for name in ("generation_config.json", "config.json"):
        settings = read_settings(folder / name)
        ids = settings.get("eos_token_id") or (settings.get("text_config") or {}).get("eos_token_id")
        if ids is not None:
            listed[name] = [
                tokenizer.id_to_token(index) if type(index) is int and index >= 0 else None
                for index in (ids if isinstance(ids, list) else [ids])
            ]
    return listed


def begins_turns(bos: str | None, template: str) -> bool:
    """Return whether a token that settings call BOS is the beginning of a turn, which begins no document."""
    return bos in BEGINNINGS_OF_TURNS and "bos_token" not in template


def read_embedding_map(tokenizer: Path) -> tuple[list[list[int]] | None, bool]:
    """Return the base ids of each row, and whether the embedding keeps the size of the base's, which may exceed its vocabulary.

    There are no rows where the base's own vocabulary stays.
    """
    file = tokenizer / "embedding_map.json"
    if not file.is_file():
        raise DataError(f"{file}: no such file; run the tokenizer stage again")
    content = json.loads(file.read_text(encoding="utf-8"))
    if content["rows"] is None:
        return None, True
    rows = [[row] if pieces is None else pieces for row, pieces in enumerate(content["rows"])]
    return rows, content.get("strategy") == "surgery"
