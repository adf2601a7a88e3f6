"""The near-duplicate search of `clean` alone, with its files: JSONL in, the files of a corpus out.

python minhash_stage.py INPUT OUTPUT --language az|ja

Nothing is judged: what is left of the stage is reading, keys, sorted shards on the disk, clusters, and writing.
Prints how many documents stay.
"""

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from anadil.clean.dedup.find_duplicates import find_duplicates
from anadil.clean.dedup.sorted_documents import DocumentWriter, KeptDocument, Signatures
from anadil.clean.filters.judge_record import DOCUMENT_ID_CHARS, Settings
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.clean.write.corpus_parts import WriteTask, plan_files, write_file
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document


def kept_document(text: str, source: str, record: int, settings: Settings) -> KeptDocument:
    """A document as a shard holds it."""
    name = hashlib.sha256(text.encode()).hexdigest()[:DOCUMENT_ID_CHARS]
    document = Document(id=name, text=text, source=source, url="", lang=settings.language.code)
    return KeptDocument(
        id=name, line=json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n",
        exact_key=settings.minhash.exact_key(text), band_keys=settings.minhash.band_keys(text),
        weight=len(text), num_bytes=len(text.encode()), num_words=1, record=record,
    )  # fmt: skip


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--language", required=True)
    options = parser.parse_args()
    recipe = Recipe.model_validate({"language": options.language})
    settings = Settings(recipe=recipe)
    shard, verdicts = options.output / "shard", options.output / "dedup"
    shard.mkdir(parents=True)
    verdicts.mkdir()
    writer = DocumentWriter(shard, settings.minhash.bands)
    for number, raw in enumerate(read_records(str(options.input), "in", "text", ReadStats())):
        writer.add(kept_document(raw.text, raw.source, number, settings))
    writer.finish()
    signatures = Signatures([shard])
    duplicates = find_duplicates(signatures, settings.minhash, verdicts)
    files = plan_files(signatures, duplicates, recipe.clean)
    for number, file in enumerate(files):
        write_file(
            WriteTask(
                file=file, shards=(shard,), first_lines=({},), verdicts=verdicts, first_document=0,
                folder=options.output / f"file-{number}", key=str(number),
            )
        )  # fmt: skip
    print(sum(file.num_documents for file in files))


if __name__ == "__main__":
    main()
