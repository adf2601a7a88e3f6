"""Every document of the inputs is accounted for: a row each, and sums that agree with them."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.artifact import Manifest, read_manifest
from anadil.clean.inspect.verify import verify_corpus
from anadil.clean.write import accounts, row_files
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime.planned_artifact import planned_artifact
from anadil.text.corpus import Document, read_documents, write_documents
from tests.clean.test_clean_verbs import make
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import (
    clean,
    documents,
    page,
    rows,
    samples,
    stats,
    warc_record,
    write_jsonl,
    write_warc,
)
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, TURKISH

GOOD = f"{AZERBAIJANI} {ANOTHER}"
LINES = [*texts(12), GOOD, GOOD.upper(), f"{GOOD} Son.", TURKISH, ENGLISH, "Salam.", f"{AZERBAIJANI} " * 3]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accounts")
    return clean(folder, write_jsonl(folder / "a.jsonl", LINES))


def test_every_document_has_a_row_and_rows_add_up_to_the_counts(corpus: Path) -> None:
    found, counts = rows(corpus), stats(corpus)

    assert [row["source"] for row in found] == [f"a.jsonl:{number}" for number in range(1, len(LINES) + 1)]
    assert counts["in"] == len(found) == counts["kept"] + sum(counts["dropped"].values())
    assert counts["dropped"] == Counter(row["reason"] for row in found if row["reason"])
    assert {row["id"] for row in found if not row["reason"]} == {
        document.id for document in documents(corpus)
    }
    assert sum(row["bytes_in"] for row in found) == sum(len(line.encode()) for line in LINES)
    extent = {"words": counts["words_out"], "bytes": counts["bytes_out"]}
    assert counts["by_source"] == {
        "a.jsonl": {
            "in": len(LINES), "kept": counts["kept"], "bad": 0, "dropped": counts["dropped"], **extent
        }
    }  # fmt: skip
    assert counts["by_licence"] == {"": {"kept": counts["kept"], **extent}}


def test_a_row_has_the_verdict_of_every_rule(corpus: Path) -> None:
    turkish = next(row for row in rows(corpus) if row["source"] == f"a.jsonl:{LINES.index(TURKISH) + 1}")

    assert turkish["reason"] == "language"
    assert turkish["fails_language"]
    assert turkish["fails_empty"] is False
    assert turkish["words"] == len(TURKISH.split())
    rules = stats(corpus)["rules"]
    assert rules["language"]["marginal"] == 2
    enforced = [f"fails_{name}" for name, rule in rules.items() if rule["mode"] == "enforce"]
    broken = [[name for name in enforced if row[name]] for row in rows(corpus)]
    assert any(len(each) > 1 for each in broken)
    assert {name: rules[name.removeprefix("fails_")]["unique"] for name in enforced} == {
        name: broken.count([name]) for name in enforced
    }
    assert sum(rule["chosen"] for rule in rules.values()) + 2 == sum(stats(corpus)["dropped"].values())


def test_a_duplicate_names_what_it_repeats_and_how_many_are_alike(corpus: Path) -> None:
    found = {row["source"]: row for row in rows(corpus)}
    place = LINES.index(GOOD) + 1

    kept = found[f"a.jsonl:{place + 2}"]
    assert kept["reason"] is None
    assert kept["cluster_size"] == 2
    twins = (found[f"a.jsonl:{n}"] for n in (place, place + 1))
    near = next(row for row in twins if row["reason"] == "near_duplicate")
    assert near["duplicate_of"] == kept["id"]
    sample = samples(corpus, "near_duplicate")[0]
    assert sample["duplicate_of"] == kept["id"]
    assert (sample["value"], sample["limit"]) == (2, 1)
    assert stats(corpus)["clusters"] == {"2": 1}


def test_samples_say_what_was_measured_and_what_is_allowed(corpus: Path) -> None:
    short = samples(corpus, "short")[0]

    assert (short["value"], short["limit"]) == (1, stats(corpus)["limits"]["min_words"])
    assert all({"reason", "value", "limit"} <= row.keys() for row in samples(corpus, "language"))


def test_documents_and_words_are_counted_by_the_licence_that_records_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MAX_LICENCES", 2)
    names = ["CC BY 4.0", "CC BY 4.0", "CC BY 4.0", "own\n work ", "own work", "z" * 500, "y"]
    keys = ["license", "licence"]
    lines = [
        json.dumps({"text": text, keys[place % 2]: name})
        for place, (text, name) in enumerate(zip(texts(len(names)), names, strict=True))
    ]
    raw = tmp_path / "a.jsonl"
    raw.write_text("\n".join(lines), encoding="utf-8")

    counts = stats(clean(tmp_path, raw))

    assert {name: entry["kept"] for name, entry in counts["by_licence"].items()} == {
        "CC BY 4.0": 3, "own work": 2, accounts.OTHER_LICENCES: 2
    }  # fmt: skip
    assert sum(entry["words"] for entry in counts["by_licence"].values()) == counts["words_out"]
    assert sum(entry["bytes"] for entry in counts["by_licence"].values()) == counts["bytes_out"]


def test_rows_do_not_depend_on_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "FILE_ROWS", 8)
    monkeypatch.setattr(row_files, "GROUP_ROWS", 3)
    monkeypatch.setattr("anadil.clean.write.shard_output.BATCH_ROWS", 2)
    monkeypatch.setattr("anadil.clean.shards.shards.MIN_SHARD_BYTES", 1)
    raw = write_jsonl(tmp_path / "a.jsonl", LINES)

    def files(shard_bytes: int) -> dict[str, bytes]:
        made = clean(tmp_path, raw, shard_bytes=shard_bytes)
        return {path.name: path.read_bytes() for path in sorted((made / "stats").iterdir())}

    whole = files(10**9)
    assert len(whole) == 3
    assert files(2_000) == whole


def test_listed_hosts_are_left_out_unread(tmp_path: Path) -> None:
    pages = (
        warc_record(page(*texts(8)[n : n + 2]), url=f"https://{host}/1")
        for n, host in enumerate(("a.az", "x.bad.az", "ok.bad.az"))
    )
    raw = write_warc(tmp_path / "a.warc.gz", pages)
    category = tmp_path / "ut1/gambling"
    category.mkdir(parents=True)
    (category / "domains").write_text("bad.az\n")

    made = clean(tmp_path, raw, url_lists=[str(category)], url_allow=["ok.bad.az"])

    assert stats(made)["dropped"] == {"blocked": 1}
    assert samples(made, "blocked")[0]["value"] == "x.bad.az"
    assert stats(made)["hosts"]["x.bad.az"] == {"in": 1, "kept": 0, "words": 0, "bytes": 0}


Rows = dict[int, Callable[[str], dict[str, object]]]
PAIRS: Rows = {
    0: lambda text: {"prompt": "Hava necədir?", "chosen": "Yaxşı.", "rejected": text},
    1: lambda text: {"chosen": f"\n\nHuman: Hava necədir?\n\nAssistant: {text}", "rejected": "Pis."},
    2: lambda text: {"prompt": "?", "chosen": [{"role": "assistant", "content": text}], "rejected": "Pis."},
}
QUESTIONS: Rows = {
    3: lambda text: {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "Bəli."}]},
    4: lambda text: {"question": "Hansıdır?", "choices": ["Bu", text], "answer": 1},
    5: lambda text: {"instruction": "Oxu.", "input": text, "output": "Oxudum."},
    6: lambda text: {"prompt": "Hansıdır?", "history": [[text, "Bəli."]], "response": "Bu."},
    7: lambda text: {"messages": json.dumps([{"role": "user", "content": text}])},
}


def test_answers_of_pairs_and_questions_of_all_layouts_are_looked_for(tmp_path: Path) -> None:
    held = texts(10)
    raw, chats = write_jsonl(tmp_path / "a.jsonl", held), tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "Hava necədir?", "response": "Yaxşı."}\n')
    for name, rows_of in (("pairs", PAIRS), ("questions", QUESTIONS)):
        lines = (json.dumps(row(held[number])) for number, row in rows_of.items())
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    pairs = {"inputs": [str(chats)], "preference": {"inputs": [str(tmp_path / "pairs.jsonl")]}}
    others = {"finetune": pairs, "evaluate": {"questions": [str(tmp_path / "questions.jsonl")]}}

    made = clean(tmp_path, raw, decontaminate=True, others=others)

    found = {row["text"]: row["items"] for row in samples(made, "contaminated")}
    expected = [f"pairs.jsonl:{n}" for n in (1, 2, 3)] + [f"questions.jsonl:{n}" for n in (1, 2, 3, 4, 5)]
    assert [found.get(text) for text in held] == [*([each] for each in expected), None, None]
    assert stats(clean(tmp_path, raw, others=others))["dropped"] == {}


def key_of(tmp_path: Path, **settings: object) -> str:
    raw = tmp_path / "a.jsonl"
    if not raw.exists():
        write_jsonl(raw, ["Salam."])
    data = {"language": "az", "clean": {"inputs": [str(raw)], **settings}}
    recipe = parse_recipe(json.dumps(data), "recipe", ())
    return planned_artifact(STAGES["clean"], recipe, {}, (), str(tmp_path / "out")).key


def test_the_content_of_lists_decides_the_corpus(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("bad.az\n")
    before = key_of(tmp_path, url_lists=[str(hosts)])

    hosts.write_text("worse.az\n")

    assert key_of(tmp_path, url_lists=[str(hosts)]) != before
    assert key_of(tmp_path, url_lists=[]) == key_of(tmp_path)


def test_a_list_that_is_not_there_is_refused_before_the_stage_runs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match=r"clean\.url_lists: no file matches"):
        key_of(tmp_path, url_lists=[str(tmp_path / "no")])
    (tmp_path / "empty/notes").write_text("")
    with pytest.raises(DataError, match="holds no 'domains' or 'urls'"):
        key_of(tmp_path, url_lists=[str(tmp_path / "empty")])


def test_stricter_and_looser_limits_are_tried_on_the_rows(tmp_path: Path) -> None:
    lines = [*texts(4), " ".join(AZERBAIJANI.split()[:30]) + ".", TURKISH]
    corpus = clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", lines), rules={"max_words": 1_000})

    found = stats(corpus)["limits_tried"]

    # The Turkish text breaks another rule, so that no limit of these changes its verdict.
    words = found["min_words"]
    assert (words["rule"], words["in_force"], words["documents"]) == ("short", 50, 5)
    assert [limit for limit, _ in words["tried"]] == [25, 38, 50, 75, 100]
    lengths = [row["words"] for row in rows(corpus) if not row["fails_language"]]
    assert [count for _, count in words["tried"]] == [
        sum(words < limit for words in lengths) for limit in (25, 38, 50, 75, 100)
    ]
    assert "max_words" not in found, "none of its multiples drops anything"


def test_of_hosts_beyond_number_the_most_frequent_are_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_HOSTS", 3)
    parts = []
    for start in (0, 3):
        part = accounts.Accounts()
        for number in range(start, start + 4):
            part.places["host"][f"{number}.az"].update({"in": 10 - number, "kept": 1})
        parts.append(part.as_json())
    whole = accounts.Accounts()

    for each in parts:
        whole.add(each)
    few = {host: counts["in"] for host, counts in whole.places["host"].items()}
    whole.add(parts[1])
    whole.add({**parts[0], "host": {"a.az": {"in": 1}, "b.az": {"in": 1}}})

    assert few == {"0.az": 10, "1.az": 9, "2.az": 8, "3.az": 7, "4.az": 6, "5.az": 5}
    assert sorted(whole.places["host"]) == ["0.az", "3.az", "4.az"]


__all__ = ["make"]


def rewritten(corpus: Path, change: Callable[[list[Document]], list[Document]]) -> None:
    documents = change(list(read_documents(corpus, "train")))
    for file in (corpus / "train").iterdir():
        file.unlink()
    write_documents(corpus, "train", documents)


def damaged_text(corpus: Path) -> None:
    rewritten(corpus, lambda found: [replace(found[0], text=found[0].text + "?"), *found[1:]])


def other_order(corpus: Path) -> None:
    rewritten(corpus, lambda found: found[::-1])


def one_lost(corpus: Path) -> None:
    rewritten(corpus, lambda found: found[1:])


def said_of_records(corpus: Path) -> None:
    stats: dict[str, Any] = json.loads((corpus / "stats.json").read_text())
    stats["records"] = {"train": 7}
    stats["kept"], stats["in"] = stats["kept"] + 1, stats["in"] + 1
    (corpus / "stats.json").write_text(json.dumps(stats))


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (damaged_text, (r"is not the id of its text", r"its texts are not those of the manifest")),
        (other_order, (r"comes after", r"its texts are not those of the manifest")),
        (one_lost, (r"train: [\d,]+ documents, [\d,]+ in the manifest",)),
        (said_of_records, (r"records are \{'train': 7\}", r"stats/: [\d,]+ rows are kept, [\d,]+ in stats")),
    ],
)
def test_everything_that_is_wrong_is_told(
    damage: Callable[[Path], None], messages: tuple[str, ...], make: Callable[..., Path]
) -> None:
    corpus = make("one")
    manifest = read_manifest(str(corpus))
    assert isinstance(manifest, Manifest)
    assert set(verify_corpus(corpus, manifest)) == {"files", "documents", "counts"}

    damage(corpus)

    for message in messages:
        with pytest.raises(IntegrityError, match=message + r"[\s\S]*make the corpus again"):
            verify_corpus(corpus, manifest)


def test_personal_data_is_replaced_and_counted(tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(4), f"{GOOD} Yazın: ad.soyad@example.az."])

    replaced, plain = clean(tmp_path / "1", raw, pii=True), clean(tmp_path / "2", raw)

    assert any("<EMAIL>" in document.text for document in documents(replaced))
    assert stats(replaced)["personal_data"] == {"EMAIL": 1}
    assert any("ad.soyad@example.az" in document.text for document in documents(plain))
