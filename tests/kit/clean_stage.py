"""Runs the stage on files of a test's own."""

import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from anadil.artifacts.line_reader import bounded_lines
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.clean.run import run
from anadil.clean.write.row_files import read_rows
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor, Task
from anadil.runtime.job import Job, external_side_files
from anadil.text.corpus import Document, read_documents


def write_jsonl(path: Path, texts: Iterable[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def read_file(path: Path, text_field: str = "text", **settings: Any) -> tuple[list[RawRecord], ReadStats]:
    read_stats = ReadStats()
    return list(read_records(str(path), path.name, text_field, read_stats, **settings)), read_stats


class InThisProcess:
    """An executor that starts nothing: tests replace functions, and processes cost time."""

    num_workers = 2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(
        self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None] = lambda: None
    ) -> None:
        for task in tasks:
            function(task)
            tick()


def executor(_: Job) -> InThisProcess:
    """Makes this module an engine."""
    return InThisProcess()


def clean(
    folder: Path, *files: Path | str, language: str = "az", executor: Executor | None = None, **settings: Any
) -> Path:
    out = folder / "corpus"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    others = settings.pop("others", {})
    shard_bytes = settings.pop("shard_bytes", None)
    recipe = Recipe.model_validate({"language": language, "clean": settings, **others})
    if shard_bytes:  # smaller than users may set it, so that a test's few documents make many shards
        small = recipe.clean.model_copy(update={"shard_bytes": shard_bytes})
        recipe = recipe.model_copy(update={"clean": small})
    job = Job(
        recipe=recipe, inputs={}, files=tuple(map(str, files)), out=out, work=folder, base_cache=folder,
        side_files=external_side_files(STAGES["clean"], recipe),
    )  # fmt: skip
    run(job, executor or InThisProcess())
    return out


def documents(corpus: Path) -> list[Document]:
    return [*read_documents(corpus, "train"), *read_documents(corpus, "heldout")]


def stats(corpus: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((corpus / "stats.json").read_text(encoding="utf-8"))
    return read


def samples(corpus: Path, reason: str) -> list[dict[str, Any]]:
    """The samples of dropped documents."""
    return [json.loads(line) for line in bounded_lines(corpus / f"rejected/{reason}.jsonl.zst")]  # type: ignore[arg-type]  # none is too long


def rows(corpus: Path) -> list[dict[str, Any]]:
    """The row of every document."""
    return [row for batch in read_rows(corpus) for row in batch.to_pylist()]


def content(corpus: Path) -> dict[str, bytes]:
    """Every file but the statistics, which hold times."""
    files = sorted(file for file in corpus.rglob("*") if file.is_file() and file.name != "stats.json")
    return {file.relative_to(corpus).as_posix(): file.read_bytes() for file in files}


def warc_record(
    body: bytes,
    *,
    url: str = "https://a.az/1",
    kind: str = "text/html",
    status: str = "200 OK",
    extra: str = "",
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode()
    block = head + body
    fields = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:b13c6074-b221-42b0-bdde-b82251ff303c>\r\n"
        "WARC-Date: 2026-11-21T00:58:06Z\r\nContent-Type: application/http; msgtype=response\r\n"
        f"WARC-Target-URI: {url}\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return fields.encode() + block + b"\r\n\r\n"


def bare_record(block: bytes, kind: str, content_type: str, url: str = "https://a.az/1") -> bytes:
    """A record that holds something itself, and no HTTP message."""
    fields = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return fields.encode() + block + b"\r\n\r\n"


def members(records: Iterable[bytes]) -> list[bytes]:
    return [gzip.compress(record, mtime=0) for record in records]


def write_warc(path: Path, records: Iterable[bytes]) -> Path:
    """A file of records, each a gzip member where the name says so."""
    path.write_bytes(b"".join(members(records) if path.name.lower().endswith(".gz") else records))
    return path


def page(*paragraphs: str, head: str = '<html lang="az"><title>Xəbər</title>') -> bytes:
    inner = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return (
        f"{head}<body><nav><a href=/>Ana səhifə</a> <a href=/x>Xəbərlər</a></nav>"
        "<div class=cookie-banner>Bu sayt kukilərdən istifadə edir.</div>"
        f"<article><h1>Bakıda külək</h1>{inner}</article><footer>Bütün hüquqlar qorunur.</footer></body></html>"
    ).encode()
