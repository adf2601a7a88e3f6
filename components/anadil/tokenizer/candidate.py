"""A candidate tokenizer: how it is made from the base's and written."""

import functools
import json
import logging
import shutil
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from anadil.artifacts.base_kind import stored_template
from anadil.artifacts.base_model import CHAT_TEMPLATE, CHAT_TOKENS, OTHER_CHAT_TOKENS, PAD
from anadil.artifacts.base_vocabulary import frame_of, token_text
from anadil.artifacts.sentence_piece import SENTENCE_PIECE, write_pieces
from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import write_indented
from anadil.recipe.sections import Strategy
from anadil.text.cut_patterns import SYMBOLS, Merge, to_bytes
from anadil.text.pieces import has_pieces, is_of_pieces, pairs_that_make
from anadil.tokenizer.usage import TokenUsage

log = logging.getLogger(__name__)

JsonObject = dict[str, Any]
Merges = list[Merge]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerCandidate:
    """One tokenizer of the comparison."""

    strategy: Strategy
    asked: int
    """The recipe's vocabulary size: of the whole (replace), added (extend) or exchanged (surgery); for base its own."""
    got: int
    """The same, as it came out: a small corpus gives fewer tokens."""
    tokenizer: Tokenizer
    usage: TokenUsage | None = None
    """How often the corpus uses its tokens; None where that was not counted."""

    @property
    def name(self) -> str:
        """Name in files and tables."""
        return "base" if self.strategy == "base" else f"{self.strategy}-{self.asked}"

    @property
    def vocab_size(self) -> int:
        """The largest id and one more."""
        return vocab_size(self.tokenizer)

    def num_rows(self, pad_to: int) -> int:
        """Rows of the embedding: a multiple of `pad_to` where the vocabulary does not keep the base's size."""
        if self.strategy in ("base", "surgery"):
            return self.vocab_size
        return -(-self.vocab_size // pad_to) * pad_to


def vocab_size(tokenizer: Tokenizer) -> int:
    """The largest id and one more: with gaps in the ids, more than the number of tokens."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def replace_vocabulary(base: Tokenizer, vocab: dict[str, int], merges: Merges) -> Tokenizer:
    """The base's tokenizer with a new vocabulary; its special tokens follow the ordinary ones."""
    content = json.loads(base.to_str())
    content["model"] |= {"vocab": vocab, "merges": merges}
    ids = {}
    # Special tokens follow the ordinary ones, so ids have no gaps.
    for number, token in enumerate(content["added_tokens"]):
        token["id"] = ids[token["content"]] = len(vocab) + number
    content["post_processor"] = _renumbered(content["post_processor"], ids)
    return checked_tokenizer(content, ids)


def extend_vocabulary(base: Tokenizer, merges: Merges) -> Tokenizer:
    """The base's tokenizer with more merges; the new tokens come after all old ids."""
    content = json.loads(base.to_str())
    tokens = [left + right for left, right in merges]
    return _with_tokens(content, tokens, vocab_size(base), merges)


def add_merges(content: JsonObject, merges: Merges) -> None:
    """Append the merges of new tokens, which are in the vocabulary already, and of pieces every pair that makes them."""
    tokens = [left + right for left, right in merges]
    model = content["model"]
    model["merges"] += pairs_that_make(tokens, model["vocab"]) if is_of_pieces(content) else merges


def _with_tokens(
    content: JsonObject, tokens: list[str], first: int, merges: Merges | None = None
) -> Tokenizer:
    """The tokenizer of a JSON object with new tokens, whose ids begin at `first`, and the merges that make them."""
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    # Special tokens that stand only in `added_tokens` get new ids when the file is read, counted
    # from the size of the model's vocabulary, and would collide with the new tokens.
    content["model"]["vocab"] |= ids | {token: first + number for number, token in enumerate(tokens)}
    add_merges(content, merges or [])
    return checked_tokenizer(content, ids)


def missing_bytes(vocab: Mapping[str, int]) -> list[str]:
    """Bytes, as their symbols, that a byte-level vocabulary lacks: they stood nowhere in what it was trained on."""
    return [symbol for symbol in SYMBOLS if symbol not in vocab]


def missing_letters(vocab: Mapping[str, int], characters: Counter[str], least: int) -> list[str]:
    """Letters and their marks, most frequent first, that a vocabulary of pieces lacks and a corpus has so often.

    Two tokens of bytes never merge, so no new token could hold such a letter.
    """
    lacking = {
        character: count
        for character, count in characters.items()
        if count >= least and character not in vocab and unicodedata.category(character)[0] in "LM"
    }
    return sorted(lacking, key=lambda character: (-lacking[character], character))


def with_all_bytes(base: Tokenizer, letters: Sequence[str] = ()) -> Tokenizer:
    """The base's tokenizer, in which each of the 256 bytes and of some letters is a token; new ones come after all old ids.

    Its model drops bytes that it lacks without a word, and each new token that holds one would lose them too.
    """
    content = json.loads(base.to_str())
    missing = [*letters] if is_of_pieces(content) else missing_bytes(content["model"]["vocab"])
    if not missing:
        return base
    log.info(
        "the base's vocabulary lacks %d of %s, which become tokens: %s",
        len(missing), "the corpus's letters" if letters else "the 256 bytes",
        " ".join(missing if letters else [to_bytes(symbol).hex() for symbol in missing]),
    )  # fmt: skip
    return _with_tokens(content, missing, vocab_size(base))


def _renumbered(processor: JsonObject | None, ids: dict[str, int]) -> JsonObject | None:
    """The post-processor, which adds BOS and EOS, with new ids."""
    if processor is None or processor["type"] == "ByteLevel":
        return processor
    if processor["type"] == "Sequence":
        return processor | {"processors": [_renumbered(part, ids) for part in processor["processors"]]}
    if processor["type"] == "TemplateProcessing":
        tokens = {
            name: special | {"ids": [ids[token] for token in special["tokens"]]}
            for name, special in processor["special_tokens"].items()
        }
        return processor | {"special_tokens": tokens}
    raise DataError(
        f"base.model: its tokenizer adds special tokens by {processor['type']}, which replace does not know; "
        "leave replace out of tokenizer.strategies"
    )


def checked_tokenizer(content: JsonObject, ids: dict[str, int]) -> Tokenizer:
    """The tokenizer of a JSON object, with its ids compared: the library renumbers tokens without a word."""
    tokenizer = Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    for token, expected in (content["model"]["vocab"] | ids).items():
        actual = tokenizer.token_to_id(token)
        if actual != expected:
            raise IntegrityError(
                f"tokenizer: {token!r} should have id {expected} but has {actual}; "
                "this base's special tokens cannot be kept: leave the strategy out of tokenizer.strategies"
            )
    # As training encodes: control words in a document are read as letters.
    tokenizer.encode_special_tokens = True
    special = {added["content"] for added in content["added_tokens"] if added["special"]}
    for token, index in ids.items():
        if token in special and index in tokenizer.encode(token, add_special_tokens=False).ids:
            raise IntegrityError(
                f"tokenizer: the text {token!r} in a document would become a control token; "
                "leave the strategy out of tokenizer.strategies, or choose another base.model"
            )
    return tokenizer


def write_tokenizer(
    candidate: TokenizerCandidate, base: Path, settings: JsonObject, template: str, target: Path
) -> None:
    """Write a Hugging Face tokenizer directory."""
    target.mkdir(parents=True)
    served = prompt_tokenizer(candidate.tokenizer, settings, template)
    is_own = candidate.strategy == "base" and served is candidate.tokenizer
    if is_own:
        # The file itself: writing it again could change bytes, and with them its digest.
        shutil.copyfile(base / "tokenizer.json", target / "tokenizer.json")
    else:
        served.save(str(target / "tokenizer.json"))
    if candidate.strategy != "base" and (base / SENTENCE_PIECE).is_file() and has_pieces(served):
        write_pieces(base / SENTENCE_PIECE, served, target / SENTENCE_PIECE)
    # tokenizer.json says what is set round a text; transformers 4 builds a Llama's anew from this key.
    dropped = ["added_tokens_decoder", "chat_template", "add_eos_token"]
    dropped += [] if is_own and settings.get("add_bos_token") else ["add_bos_token"]
    config = {key: value for key, value in settings.items() if key not in dropped}
    if not is_own or not config:
        # A class of the base's own may build its own tokenizer instead of reading tokenizer.json.
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # Left to itself this setting joins " ," to "," when text is decoded.
    config["clean_up_tokenization_spaces"] = False
    if not config.get("pad_token") and candidate.tokenizer.token_to_id(PAD) is not None:
        config["pad_token"] = PAD
    write_indented(target / "tokenizer_config.json", config, 2)
    (target / CHAT_TEMPLATE.name).write_text(template, encoding="utf-8")


@functools.cache  # every candidate has the base's
def _log_frame(around: str, begin: str) -> None:
    log.log(
        logging.WARNING if around else logging.INFO,
        "base.model: its tokenizer sets %s round each text; the one that is shipped sets %s before it, so that a prompt "
        "begins as documents do and is gone on with",
        around or "nothing", begin or "nothing",
    )  # fmt: skip


def prompt_tokenizer(tokenizer: Tokenizer, settings: JsonObject, template: str = "") -> Tokenizer:
    """The tokenizer, which sets before a text what stands before a document in training, and nothing else round it.

    A server encodes a prompt with it. Training ends documents by itself, and a prompt goes on.
    """
    bos, eos = (token_text(settings.get(f"{role}_token")) for role in ("bos", "eos"))
    frame = frame_of(tokenizer.get_vocab(), bos, eos, template)
    begin = "" if frame is None else tokenizer.id_to_token(frame[0])
    around = tokenizer.encode("a").tokens
    text = tokenizer.encode("a", add_special_tokens=False).tokens
    if around == ([begin, *text] if begin else text):
        return tokenizer
    _log_frame(" and ".join(token for token in around if token not in text), begin)
    content = json.loads(tokenizer.to_str())
    processor = content["post_processor"] or {"type": None}
    steps: list[processors.PostProcessor] = [
        processors.ByteLevel(trim_offsets=part["trim_offsets"])
        for part in processor.get("processors", [processor])
        if part["type"] == "ByteLevel"
    ]
    changed = Tokenizer.from_str(json.dumps({**content, "post_processor": None}))
    if begin:
        number = tokenizer.token_to_id(begin)
        single, pair = f"{begin} $A", f"{begin} $A {begin} $B"
        steps.append(
            processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(begin, number)])
        )
    if steps:
        changed.post_processor = processors.Sequence(steps)
    return changed


def chat_template(base: Path, tokenizer: Tokenizer) -> str:
    """The chat template of every candidate: ours for Llama 3's control tokens, else the base's own."""
    if None not in map(tokenizer.token_to_id, CHAT_TOKENS):
        return CHAT_TEMPLATE.read_text(encoding="utf-8")
    if template := stored_template(base):
        return template
    other = next((each for each in OTHER_CHAT_TOKENS if None not in map(tokenizer.token_to_id, each)), None)
    if other:
        log.info("the base has no chat template; finetune takes the template of %s", other[0])
    else:
        log.warning(
            "the base has no chat template and no control tokens of a known one, such as %s: finetune cannot teach it chats",
            " ".join(CHAT_TOKENS),
        )
    return CHAT_TEMPLATE.read_text(encoding="utf-8")


Rows = list[list[int]]


def embedding_rows(base: Tokenizer, new: Tokenizer, num_rows: int | None = None) -> Rows:
    """For every row of the new embedding the base ids whose rows are averaged; none for a row that no token has.

    Every special token of `new` is the base's too. `num_rows` None means as many as the tokenizer has ids.
    """
    base_ids = base.get_vocab(with_added_tokens=True)
    tokens = {index: token for token, index in new.get_vocab(with_added_tokens=True).items()}
    one_byte = [base_ids[symbol] for symbol in SYMBOLS if symbol in base_ids]
    of_pieces = has_pieces(base)  # which lack nothing: all bytes are tokens
    rows: Rows = []
    for index in range(num_rows or vocab_size(new)):
        token = tokens.get(index)
        # Such a row fills the table up to a multiple of `pad_to`.
        if token is None:
            rows.append([])
        elif token in base_ids:
            rows.append([base_ids[token]])
        else:
            # The base skips bytes that it lacks, or gives its unknown token for them.
            pieces = [piece.id for piece in base.model.tokenize(token) if piece.value in token or of_pieces]
            rows.append(pieces or one_byte)
    return rows


def write_embedding_map(
    candidate: TokenizerCandidate, base: Tokenizer, target: Path, pad_to: int = 1
) -> None:
    """Write `embedding_map.json`.

    `rows` holds base ids for each row: one for a token of the base, its pieces for a new token, none for an unused row. It
    is null where every row stays as it is. `vocab_size` counts rows, as `config.json` of the model will; `tokens` ids.
    """
    num_rows = candidate.num_rows(pad_to)
    rows = None if candidate.strategy == "base" else embedding_rows(base, candidate.tokenizer, num_rows)
    content: dict[str, Any] = {
        "strategy": candidate.strategy,
        "base_vocab_size": vocab_size(base),
        "vocab_size": num_rows,
    }
    if rows is not None:
        kinds = Counter(
            "unused" if not row else "new" if len(row) > 1 else "kept" if row == [index] else "moved"
            for index, row in enumerate(rows)
        )
        content["tokens"] = candidate.vocab_size
        content |= {kind: kinds[kind] for kind in ("kept", "moved", "new", "unused")}
    text = json.dumps({**content, "rows": rows}, separators=(",", ":"))
    (target / "embedding_map.json").write_text(text + "\n", encoding="utf-8")
