"""Filters of the user's own: functions of Python files that `clean.filters` names."""

import json
import re
import textwrap
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from anadil.artifacts import storage
from anadil.clean.check import IMAGE_MODULES
from anadil.clean.filters import user_filters
from anadil.clean.shards import filter_trial
from anadil.cli.main import main
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError
from anadil.core.files import file_sha256
from anadil.core.stages import STAGES
from anadil.preflight.checks import refuse, report
from anadil.recipe.load import parse_recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.check import CLUSTER_DOCTOR, COMPILE, DOCTOR, RECIPE, SUBMIT, PlannedRun
from anadil.runtime.executors import process_limits
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import external_side_files
from tests.images.files import pins
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, content, documents, rows, samples, stats, write_jsonl
from tests.kit.texts import TURKISH

LYRICS = """
    def no_lyrics(text, statistics):
        return "lyrics" if "nəqarət" in text and statistics.words > 50 else None

    def no_tea(text, statistics):
        return "tea" if "çay" in text else None
"""


@pytest.fixture(autouse=True)
def no_trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial starts two processes, which takes longer than a test may."""
    if "slow" not in request.keywords:
        monkeypatch.setattr("anadil.clean.run.try_filters", lambda tasks: None)


def rules(folder: Path, source: str = LYRICS, name: str = "rules.py") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(textwrap.dedent(source), encoding="utf-8")
    return str(folder / name)


def write_songs(path: Path, count: int = 40) -> Path:
    return write_jsonl(
        path,
        [f"{text} Bu nəqarət." if n % 4 == 0 else text for n, text in enumerate(texts(count))] + [TURKISH],
    )


def test_a_function_drops_documents_by_its_reason_and_is_counted(tmp_path: Path) -> None:
    file = rules(tmp_path)

    corpus = clean(tmp_path, write_songs(tmp_path / "a.jsonl"), filters=[f"{file}:no_lyrics"])

    found = stats(corpus)
    assert found["dropped"] == {"language": 1, "lyrics": 10}
    assert found["filters"] == {"names": [f"{file}:no_lyrics"], "documents": 40, "failed": 0}
    assert found["kept"] == 30
    assert {(row["reason"], row["filter"]) for row in samples(corpus, "lyrics")} == {
        ("lyrics", "rules.py:no_lyrics")
    }
    assert [row["reason"] for row in rows(corpus)].count("lyrics") == 10
    assert not any("nəqarət" in each.text for each in documents(corpus))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 5])
def test_workers_and_shards_change_no_byte(tmp_path: Path, workers: int) -> None:
    raw, filters = write_songs(tmp_path / "a.jsonl", 300), [f"{rules(tmp_path)}:no_lyrics"]
    plain = content(clean(tmp_path / "1", raw, filters=filters))

    cut = content(
        clean(tmp_path / "2", raw, filters=filters, executor=Processes(workers), shard_bytes=20_000)
    )

    assert cut == plain


def test_the_content_and_the_function_are_part_of_the_key_and_the_place_is_not(tmp_path: Path) -> None:
    def origin(file: str, function: str) -> dict[str, str]:
        recipe = parse_recipe("", "r", [f"clean.filters=[{file}:{function}]"])
        return stage_origin(STAGES["clean"], recipe, {}, (), external_side_files(STAGES["clean"], recipe))

    first = origin(rules(tmp_path / "a"), "no_lyrics")

    assert origin(rules(tmp_path / "b", name="other.py"), "no_lyrics") == first
    assert origin(rules(tmp_path / "a"), "no_tea") != first
    assert origin(rules(tmp_path / "c", LYRICS + "    # changed\n"), "no_lyrics") != first


def test_another_function_makes_the_shards_of_a_killed_run_again(tmp_path: Path) -> None:
    raw, file = write_songs(tmp_path / "a.jsonl"), rules(tmp_path)
    clean(tmp_path, raw, filters=[f"{file}:no_lyrics"])

    corpus = clean(tmp_path, raw, filters=[f"{file}:no_tea"])

    assert "lyrics" not in stats(corpus)["dropped"]
    assert stats(corpus)["dropped"]["tea"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {}['x']", r"line 4: KeyError: 'x'"),
        ("return float('nan')", r"returned nan \(float\)\. Return None, or a name"),
        ("return True", r"returned True \(bool\)"),
        ("return 'not a name'", "returned 'not a name'"),
        ("return 'short'", r"It counts other documents\. Return another name"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("statistics.words = 1", "AttributeError"),
        ("text[0] = 'a'", "TypeError: 'str' object does not support item assignment"),
        ("while True: pass", r"line 4: takes more than 0\.2 s of CPU time"),
        ("import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", r"line 4: takes more than 0\.2 s of CPU time"),
        ("import time; time.sleep(9)", r"line 4: takes more than 0\.4 s"),
    ],
)  # fmt: skip
def test_a_record_on_which_a_filter_fails_is_bad_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    monkeypatch.setattr(user_filters, "CALL_CPU_S", 0.2)
    monkeypatch.setattr(user_filters, "CALL_S", 0.4 if "sleep" in body else 30.0)
    file = rules(
        tmp_path,
        f"def f(text, statistics):\n    if 'nəqarət' not in text:\n        return None\n    {body}\n",
    )
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(30), f"{texts(31)[-1]} Bu nəqarət."])

    corpus = clean(tmp_path, raw, filters=[f"{file}:f"])

    found = stats(corpus)
    assert (found["in"], found["bad"], found["filters"]["failed"]) == (30, 1, 1)
    [place] = found["bad_records"]["first"]
    assert place.startswith("a.jsonl:31: filter rules.py:f")
    assert re.search(words, place), place


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["os._exit(3)", "os.kill(os.getpid(), 11)", "bytearray(6 << 30)"])
def test_a_record_on_which_a_filter_ends_the_process_is_skipped(tmp_path: Path, harm: str) -> None:
    file = rules(
        tmp_path, f"import os\ndef f(text, statistics):\n    if 'nəqarət' in text:\n        {harm}\n"
    )
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(6), f"{texts(7)[-1]} Bu nəqarət."])

    corpus = clean(tmp_path, raw, filters=[f"{file}:f"], executor=Processes(1), max_bad_records=0.5)

    [place] = stats(corpus)["bad_records"]["first"]
    assert place.startswith("a.jsonl:7: kills the process that works on it")
    assert stats(corpus)["kept"] == 6


@pytest.mark.slow
def test_filters_that_fail_on_all_documents_of_a_trial_end_the_run(tmp_path: Path) -> None:
    always = rules(tmp_path, "def f(text, statistics):\n    return 1\n", "always.py")

    with pytest.raises(
        DataError, match=r"failed on all 32 documents of a trial, such as a\.jsonl:1: filter always"
    ):
        clean(tmp_path, write_songs(tmp_path / "a.jsonl", 60), filters=[f"{always}:f"])


@pytest.mark.slow
def test_a_trial_of_filters_that_hang_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_trial, "TRIAL_S", 0.0)
    monkeypatch.setattr(process_limits, "death_alone", lambda function, *values, **_: function(*values))
    always = rules(tmp_path, "def f(text, statistics):\n    return 1\n", "always.py")

    with pytest.raises(DataError, match=r"failed on all 1 documents of a trial, such as a\.jsonl:1: "):
        clean(tmp_path, write_songs(tmp_path / "a.jsonl", 60), filters=[f"{always}:f"])


def test_filters_that_fail_often_end_the_run(tmp_path: Path) -> None:
    raw = write_songs(tmp_path / "a.jsonl", 60)
    often = rules(
        tmp_path, "def f(text, statistics):\n    return 1 if 'nəqarət' in text else None\n", "often.py"
    )

    with pytest.raises(
        DataError, match=r"failed on 15 of 60 documents, more than 10 and 1%.*\n +a\.jsonl:1: filter often"
    ):
        clean(tmp_path, raw, filters=[f"{often}:f"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "import random\ndef f(text, statistics):\n    return 'lot' if random.random() < .5 else None\n",
        "def f(text, statistics):\n    return 'hash' if hash(text) % 2 else None\n",
        "seen = []\ndef f(text, statistics):\n    seen.append(text)\n    return 'late' if len(seen) > 5 else None\n",
    ],
    ids=["lot", "hash", "memory"],
)
def test_a_filter_that_answers_otherwise_the_second_time_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(
        RecipeError, match=r"rules\.py:f is not deterministic: a\.jsonl:\d+ is \w+ once, and \w+ in another"
    ):
        clean(tmp_path, write_songs(tmp_path / "a.jsonl"), filters=[f"{rules(tmp_path, source)}:f"])


@pytest.mark.slow
def test_a_thread_that_a_filter_leaves_holds_nothing_up(tmp_path: Path) -> None:
    source = "import threading\ndef f(text, statistics):\n    threading.Thread(target=threading.Event().wait).start()\n"

    corpus = clean(
        tmp_path,
        write_songs(tmp_path / "a.jsonl", 8),
        filters=[f"{rules(tmp_path, source)}:f"],
        executor=Processes(1),
    )

    assert stats(corpus)["filters"] == {"names": [f"{tmp_path}/rules.py:f"], "documents": 8, "failed": 0}


MISTAKES = [
    ("import no_such_package\ndef f(text, statistics):\n    pass\n", "f", PreflightError, "imports no_such_package, which"),
    ("def f(text, statistics)\n    pass\n", "f", RecipeError, r"rules\.py, line 1: .*expected ':'"),
    ("def no_lyrics(text, statistics):\n    pass\n", "no_lyric", RecipeError, "has no no_lyric, but no_lyrics; did you mean"),
    ("f = 3\n", "f", RecipeError, "f cannot be called with a text and its statistics"),
    ("def f(text):\n    pass\n", "f", RecipeError, r"too many positional.*Write `def f\(text, statistics\):`"),
    ("async def g(text, statistics):\n    pass\n", "f", RecipeError, r"has no f, but g"),
    ("return\ndef f(text, statistics):\n    pass\n", "f", RecipeError, r"SyntaxError: 'return' outside function"),
    ("1 / 0\ndef f(text, statistics):\n    pass\n", "f", RecipeError, r"rules\.py, line 1: ZeroDivisionError"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "function", "kind", "words"), MISTAKES)
def test_code_that_cannot_run_is_refused_before_any_document(
    tmp_path: Path, source: str, function: str, kind: type[AnadilError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        clean(tmp_path, write_songs(tmp_path / "a.jsonl"), filters=[f"{rules(tmp_path, source)}:{function}"])


@pytest.mark.parametrize(("source", "function", "kind", "words"), MISTAKES[:3])
def test_the_doctor_sees_it_without_running_the_code(
    tmp_path: Path, source: str, function: str, kind: type[AnadilError], words: str
) -> None:
    file = rules(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\n{source}")
    recipe = parse_recipe("", "r", [f"clean.filters=[{file}:{function}]"])

    results = report(PlannedRun(by=DOCTOR, recipe=recipe, stages=[STAGES["clean"]]))

    [line] = [each for each in results if each.name == "clean.filters"]
    assert line.status == "failed"
    assert re.search(words.split("; ", maxsplit=1)[0].replace("line 1", "line 2"), line.detail)
    assert not (tmp_path / "ran").exists()


def test_the_file_and_its_digest_are_said_by_whoever_checks_the_recipe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = rules(tmp_path)
    recipe = parse_recipe("", "r", [f"clean.filters=[{file}:no_lyrics]"])

    refuse(PlannedRun(by=RECIPE, recipe=recipe, here=False))

    assert f"clean.filters: runs no_lyrics of {file}, SHA-256 {file_sha256(file)}" in caplog.text


def test_a_file_of_this_machine_is_refused_on_a_cluster(tmp_path: Path) -> None:
    file = rules(tmp_path)
    recipe = parse_recipe("", "r", [f"clean.filters=[{file}:no_lyrics]"])

    for by in (SUBMIT, COMPILE, CLUSTER_DOCTOR):
        planned = PlannedRun(by=by, recipe=recipe, stages=[STAGES["clean"]], here=False)
        [line] = [each for each in report(planned) if each.name == "clean.filters"]
        assert (line.status, "no step on the cluster would see" in line.detail) == ("failed", True)


def test_a_module_that_the_image_lacks_is_refused_on_a_cluster(tmp_path: Path) -> None:
    file = rules(tmp_path, "import torch, regex\ndef f(text, statistics):\n    pass\n")
    volume = f"cluster.volumes=[{{claim: c, path: {tmp_path}}}]"
    recipe = parse_recipe("", "r", [f"clean.filters=[{file}:f]", volume])
    planned = PlannedRun(by=SUBMIT, recipe=recipe, stages=[STAGES["clean"]], here=False)

    [line] = [each for each in report(planned) if each.name == "clean.filters"]

    assert line.detail.startswith(f"{file} imports torch, which the image of clean does not hold")


@pytest.mark.parametrize("value", ["rules.py", "rules.py:", "rules.txt:f", "rules.py:f()", "*.py:f", ":f"])
def test_a_value_that_names_no_function_is_refused(value: str) -> None:
    with pytest.raises(RecipeError, match=r"names no function of a Python file\. Write FILE\.py:FUNCTION"):
        parse_recipe("", "r", [f"clean.filters=['{value}']"])


def test_a_clean_corpus_has_no_filters() -> None:
    with pytest.raises(
        RecipeError, match="as_is leaves every text as it is, and filters would change or drop some"
    ):
        parse_recipe("", "r", ["clean.as_is=true", "clean.filters=[rules.py:f]"])


def test_a_text_for_a_reason_is_refused(tmp_path: Path) -> None:
    file = rules(
        tmp_path, "import zlib\ndef f(text, statistics):\n    return f'r{zlib.crc32(text.encode())}'\n"
    )

    with pytest.raises(RecipeError, match="filters returned more than 50 reasons, such as r"):
        clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", texts(80)), filters=[f"{file}:f"])


def test_what_is_left_of_a_trimmed_document_is_asked_about_again(tmp_path: Path) -> None:
    footer = "Bu saytın bütün hüquqları qorunur və paylaşılır."
    raw = write_jsonl(tmp_path / "a.jsonl", [f"{text}\n{footer}" for text in texts(30)])
    source = """
    def f(text, statistics):
        if "qorunur" not in text:
            return {}["x"] if "İndi" in text.split()[:40] else "trimmed" if "Bakıda" in text.split()[:20] else None
    """
    file = rules(tmp_path, source)
    expected = [("İndi" in text.split()[:40], "Bakıda" in text.split()[:20]) for text in texts(30)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_filters, "MAX_FAILURES", 40)
        corpus = clean(tmp_path, raw, filters=[f"{file}:f"])

    found = stats(corpus)
    assert found["bad"] == found["filters"]["failed"] == sum(failed for failed, _ in expected) > 0
    assert found["dropped"]["trimmed"] == sum(drops for failed, drops in expected if not failed) > 0
    assert found["in"] == 30 - found["bad"] == len(rows(corpus))


def test_what_a_filter_prints_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rules(tmp_path, "print('read')\ndef f(text, statistics):\n    print('asked')\n")

    clean(tmp_path, write_songs(tmp_path / "a.jsonl"), filters=[f"{file}:f"])

    said = capsys.readouterr()
    assert (said.out, said.err.count("asked"), said.err.count("read")) == ("", 40, 1)


def test_explain_shows_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, file = write_songs(tmp_path / "a.jsonl"), rules(tmp_path)
    settings = ["--set", "language=az", "--set", f"clean.filters=[{file}:no_lyrics]"]

    assert main(["clean", "explain", f"{raw}:1", "--recipe", "smoke", *settings, "-o", "json"]) == 0

    steps = json.loads(capsys.readouterr().out)
    assert steps["filters"] == {"reason": "lyrics", "filter": "rules.py:no_lyrics"}
    assert steps["verdict"] == "lyrics"


def test_modules_that_filters_may_import_are_in_the_image() -> None:
    held, brings = pins("clean").keys(), packages_distributions()
    for module in IMAGE_MODULES - {"anadil"}:
        assert {each.lower().replace("_", "-") for each in brings[module]} & held, module


def test_a_file_in_s3_runs_as_a_local_one_does_and_doctor_and_submit_see_it(
    tmp_path: Path, bucket: str
) -> None:
    file, raw = rules(tmp_path), write_songs(tmp_path / "a.jsonl")
    storage.store(f"{bucket}/rules.py").write(f"{bucket}/rules.py", Path(file).read_bytes())
    recipe = parse_recipe("", "r", [f"clean.filters=[{bucket}/rules.py:no_lyrics]"])

    corpus = clean(tmp_path, raw, filters=[f"{bucket}/rules.py:no_lyrics"])

    assert stats(corpus)["dropped"]["lyrics"] == 10
    for by, here in ((DOCTOR, True), (SUBMIT, False)):
        planned = PlannedRun(by=by, recipe=recipe, stages=[STAGES["clean"]], here=here)
        [line] = [each for each in report(planned) if each.name == "clean.filters"]
        assert (line.status, file_sha256(file) in line.detail) == ("passed", True)
