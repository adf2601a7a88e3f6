"""Pages in WARC records without an HTTP head."""

from pathlib import Path

import pytest

from anadil.clean.read import readers
from tests.kit.clean_stage import bare_record, members, page, read_file, warc_record


@pytest.mark.parametrize("kind", ["resource", "conversion"])
def test_pages_that_stand_in_a_warc_without_a_head_are_read_and_the_rest_is_counted(
    tmp_path: Path, kind: str
) -> None:
    html = "<p>şirin gün</p>".encode("iso-8859-9")
    records = [
        warc_record(page("a")),
        bare_record(html, kind, "text/html; charset=iso-8859-9", "file:///ev/1.html"),
        bare_record(html, kind, "APPLICATION/XHTML+XML"),
        bare_record(b"GIF89a", kind, "image/gif"),
        bare_record(b"", "revisit", "application/http; msgtype=response"),
        warc_record(page("b"), status="404 Not Found"),
    ]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(members(records)))

    found, read_stats = read_file(tmp_path / "a.warc.gz")

    assert [raw.html for raw in found] == [page("a"), html, html]
    assert [(raw.url, raw.charset) for raw in found[1:]] == [
        ("file:///ev/1.html", "iso-8859-9"),
        ("https://a.az/1", ""),
    ]
    assert read_stats.not_read == {kind: 1, "revisit": 1}
    assert (read_stats.skipped, read_stats.bad) == (1, 0)


def test_a_page_over_the_limit_is_told_from_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 100)
    records = [bare_record(b"x" * 200, "resource", kind) for kind in ("text/html", "video/mp4")]
    (tmp_path / "a.warc").write_bytes(b"".join(records))

    found, read_stats = read_file(tmp_path / "a.warc")

    assert [raw.too_large for raw in found] == [True]
    assert read_stats.not_read == {"resource": 1}
