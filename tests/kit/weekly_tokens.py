"""Tokens with the border of a retraining: those of a champion, then those of the text that came since."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from anadil.artifacts import artifact
from anadil.runtime.job import Stream
from anadil.tokens.stored_tokens import StoredTokens
from anadil.tokens.tokens_file import EarlierFacts
from tests.kit.pretraining import make_corpus
from tests.kit.tokens import tokens_of_corpus


def weekly_tokens(
    folder: Path, tokenizer: Path, weeks: Sequence[Sequence[str]], *, length: int = 32
) -> Stream:
    """Tokens of several weeks, of which the last one is new; those of one week have no border."""
    parts = []
    for number, texts in enumerate(weeks):
        corpus = make_corpus(folder / f"corpus-{number}", texts)
        parts.append(tokens_of_corpus(corpus, tokenizer, folder / f"work-{number}", length=length))
    joined = parts[0]
    for number, part in enumerate(parts[1:]):
        joined = _joined(folder / f"tokens-{number}", joined, part)
    manifest = artifact.read_manifest(joined.uri)
    assert manifest is not None
    return Stream(uri=joined.uri, manifest=manifest)


def _joined(folder: Path, earlier: StoredTokens, new: StoredTokens) -> StoredTokens:
    before, after = earlier.facts, new.facts
    shutil.copytree(earlier.uri, folder)
    prefix = f"{len(before.train):03}"
    for file in [*(each.file for each in after.train), *(each.file for each in after.blocks)]:
        target = folder / f"{prefix}-{file}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(new.uri) / file, target)
    train = tuple(replace(each, file=f"{prefix}-{each.file}") for each in after.train)
    blocks = tuple(
        replace(each, file=f"{prefix}-{each.file}", first_shard=each.first_shard + len(before.train))
        for each in after.blocks
    )
    facts = replace(
        before,
        stream=before.stream + after.stream,
        documents=before.documents + after.documents,
        tokens=before.tokens + after.tokens,
        bytes=before.bytes + after.bytes,
        sequences=before.sequences + after.sequences,
        targets=before.targets + after.targets,
        train=(*before.train, *train),
        blocks=(*before.blocks, *blocks),
        earlier=EarlierFacts.of(before.train, before.blocks),
    )
    facts.write(folder)
    artifact.seal(folder, kind="tokens", origin={})
    return StoredTokens(uri=str(folder), facts=facts)
