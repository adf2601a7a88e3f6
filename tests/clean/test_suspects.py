"""Records that kill the process which works on them."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from anadil.clean.filters.judge_record import ExtractedDocument, FilterResult, Settings, judge_prepared
from anadil.clean.shards.map_shard import NOTE, CrashGuard, MapTask, Phase, Place, death_alone, map_shard
from anadil.clean.shards.shards import plan_shards
from anadil.core.errors import DataError
from anadil.recipe.sections import Recipe
from anadil.runtime.executors.processes import Processes
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, clean, documents, stats, write_jsonl
from tests.kit.harm import HARMFUL, install_harm
from tests.kit.marks import slow


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("crash", "SIGSEGV"),
        slow("memory", "more than 2 GiB of memory"),
        slow("batch", "SIGSEGV"),
        slow("processor", "more than 60 s of CPU time"),
    ],
)
def test_a_record_that_kills_its_process_is_left_out_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    good = texts(12)
    raw = write_jsonl(tmp_path / "a.jsonl", [*good[:5], HARMFUL, *good[6:]])
    install_harm(kind, tmp_path / "site", monkeypatch)

    corpus = clean(tmp_path / "corpus", raw, executor=Processes(1, may_fork=False), max_bad_records=0.5)

    found = stats(corpus)
    assert found["bad_records"]["first"] == [f"a.jsonl:6: kills the process that works on it ({how})"]
    assert (found["in"], found["bad"]) == (11, 1)
    assert {document.text for document in documents(corpus)} == {*good[:5], *good[6:]}


def test_a_process_that_died_at_a_batch_judges_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = plan_shards([str(write_jsonl(tmp_path / "a.jsonl", texts(9)))], 10**9, 1)[0]
    sizes: list[int] = []

    def counted(batch: list[ExtractedDocument], settings: Settings) -> list[FilterResult]:
        sizes.append(len(batch))
        return judge_prepared(batch, settings)

    monkeypatch.setattr("anadil.clean.shards.map_shard.judge_prepared", counted)
    for name in ("whole", "died"):
        task = MapTask(shard=shard, recipe=Recipe(), lists=None, folder=tmp_path / name, key="key")
        map_shard(task)
        (tmp_path / "died.place").write_bytes(NOTE.pack(0, 0, Phase.BATCH))

    assert sizes == [9, *[1] * 9]
    whole, died = ((tmp_path / name / "documents.zst").read_bytes() for name in ("whole", "died"))
    assert whole == died


class DiedAtTheSixth(InThisProcess):
    """Begins where processes have found that the sixth record kills them."""

    def map(self, function, tasks, tick=lambda: None):  # type: ignore[no-untyped-def]  # that of the base
        for task in tasks:
            verdict = {"0 5 JUDGE": {"deaths": 1, "why": "kills the process"}}
            task.folder.with_suffix(".suspects.json").write_text(json.dumps(verdict))
        super().map(function, tasks, tick)


def test_too_many_records_that_kill_are_refused_like_bad_ones(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(6))

    with pytest.raises(DataError, match=r"1 of 6 records are unreadable .*\n  a\.jsonl:6: kills the process"):
        clean(tmp_path, raw, executor=DiedAtTheSixth())


def test_a_record_that_harms_nobody_alone_is_tried_again_and_left_out_after_three_deaths(
    tmp_path: Path,
) -> None:
    tried = []

    def dies_alone(place: Place, phase: Phase) -> str:
        tried.append((place, phase))
        return ""

    place = Place(1, 7)
    for expected in ("", "", "3 processes died at it"):
        suspects = CrashGuard(tmp_path / "shard", dies_alone)
        with suppress(MemoryError), suspects:
            suspects.begin(place, Phase.JUDGE)
            raise MemoryError  # what stays of a process that was killed: its note
        again = CrashGuard(tmp_path / "shard", dies_alone)
        assert again.why_skipped(place, Phase.JUDGE) == expected
        with again:
            pass

    assert tried == [(place, Phase.JUDGE)] * 3


def test_a_record_that_kills_alone_is_left_out_after_one_death(tmp_path: Path) -> None:
    place = Place(1, 7)
    with suppress(MemoryError), CrashGuard(tmp_path / "shard", lambda *_: "") as suspects:
        suspects.begin(place, Phase.JUDGE)
        raise MemoryError

    again = CrashGuard(tmp_path / "shard", lambda *_: "SIGSEGV")

    why = "kills the process that works on it (SIGSEGV)"
    assert again.why_skipped(place, Phase.JUDGE) == why
    # Whoever comes next knows it without another death.
    assert CrashGuard(tmp_path / "shard", lambda *_: "").why_skipped(place, Phase.JUDGE) == why


def test_a_record_that_raises_an_error_alone_kills_nothing(tmp_path: Path) -> None:
    assert death_alone(os.rmdir, str(tmp_path / "missing")) == ""


def test_what_follows_a_place_that_kills_the_reader_is_left_out(tmp_path: Path) -> None:
    shard = plan_shards([str(write_jsonl(tmp_path / "a.jsonl", texts(9)))], 10**9, 1)[0]
    task = MapTask(shard=shard, recipe=Recipe(), lists=None, folder=tmp_path / "shard", key="key")
    (tmp_path / "shard.place").write_bytes(NOTE.pack(0, 4, Phase.READ))
    (tmp_path / "shard.suspects.json").write_text('{"0 4 READ": {"deaths": 2}}')

    map_shard(task)

    facts = json.loads((tmp_path / "shard/facts.json").read_text())
    assert facts["clean"]["counts"]["documents_in"] == 4
    assert facts["read"][0]["places"] == ["a.jsonl:4: the rest is skipped: 3 processes died at it"]
