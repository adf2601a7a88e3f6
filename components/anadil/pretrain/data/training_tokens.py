"""Tokens that training reads: a finished artifact, or its own where it got none."""

import socket
from pathlib import Path

from anadil.artifacts import artifact, sealed_dir
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import PIECES, STAGES, WRITERS
from anadil.model.load import document_ids, encode_text, load_tokenizer, window_bos
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import Job, word_of
from anadil.runtime.signals import Stop
from anadil.tokens.encode_file import document_tokenizer
from anadil.tokens.make_tokens import make_tokens
from anadil.tokens.settings import Settings, settings_of
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from anadil.tokens.tokens_file import TokensFacts


def tokens_of(job: Job, source: str = "", *, write: bool) -> StoredTokens:
    """Open the tokens of a source, and make what is missing or damaged in the work directory where none were given.

    Nodes that share the work directory share the files of the corpus among themselves; other nodes encode all.

    `write` is True in one process of each node, which makes the tokens before the others read them.
    """
    if stream := job.streams.get(word_of(PIECES, source)):
        tokens = open_tokens(stream.uri, stream.manifest)
        _check_length(tokens, job.recipe.pretrain.sequence_length)
    else:
        recipe = job.recipe.of_source(source) if source else job.recipe
        settings = settings_of(job, recipe, STAGES["pretrain"], word_of("corpus", source))
        tokens = made_tokens(settings, job.work, job.stop, write=write)
    check_tokenizer(tokens.facts, tokens.uri, job.inputs["tokenizer"])
    return tokens


def made_tokens(settings: Settings, work: Path, stop: Stop, *, write: bool) -> StoredTokens:
    """Make tokens in a directory, and open them; see `tokens_of`."""
    # The frame follows from the tokenizer, and from the program that reads it.
    _, frame = document_tokenizer(settings.tokenizer)
    origin = {**settings.origin, "frame": str(frame), "length": str(settings.sequence_length)}
    # Blocks end where the champion's text does.
    origin |= {f"champion's {kind}": uri for kind, uri in settings.champion.items()}
    folder = work / f"tokens-{artifact.origin_key(origin)}"
    # Every byte is compared: a kill may have left a damaged file.
    if write and not sealed_dir.verify(folder, origin, once_a_boot=True):
        # Processes of their own: a copy of one that has threads may hang.
        with (
            Processes(may_fork=False, stop=stop) as executor,
            sealed_dir.create(folder, origin, socket.gethostname()) as draft,
        ):
            make_tokens(settings, draft, work, executor)
    manifest = artifact.read_manifest(str(folder))
    if manifest is None:
        raise DataError(f"{folder}: not there; each node's first process makes it in its work directory")
    return open_tokens(str(folder), manifest)


def check_tokenizer(facts: TokensFacts, uri: str, folder: Path) -> None:
    """Compare tokens with the tokenizer that the model gets."""
    if facts.tokenizer != (digest := artifact.digest_of(folder)):
        raise IntegrityError(
            f"{uri}: are tokens of the tokenizer {facts.tokenizer[:16]}, and {folder} is {digest[:16]}; give the "
            f"tokenizer that they were made with, or run {WRITERS[PIECES].name} again"
        )
    tokenizer = load_tokenizer(folder)
    frame = (*document_ids(tokenizer, str(folder)), window_bos(tokenizer))
    text, ids = facts.sample
    if frame == (facts.begin, facts.end, facts.bos) and tuple(encode_text(tokenizer, text)) == ids:
        return
    raise IntegrityError(
        f"{folder}: transformers reads its tokenizer in another way than the tokenizers library, by which {uri} was "
        "encoded (other ids of a text, or other tokens round it); set tokenizer_class in tokenizer_config.json of "
        "base.model to PreTrainedTokenizerFast, and run again"
    )


def _check_length(tokens: StoredTokens, length: int) -> None:
    if tokens.facts.sequence_length != length:
        raise IntegrityError(
            f"{tokens.uri}: are packed for sequences of {tokens.facts.sequence_length:,} tokens, and "
            f"pretrain.sequence_length is {length:,}; run {WRITERS[PIECES].name} with the same recipe"
        )
