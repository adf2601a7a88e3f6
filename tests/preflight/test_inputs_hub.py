"""Inputs on a hub, looked at before a run."""

import io
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from anadil.cli import main
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.format import GIB
from anadil.language.sample_parts import read_texts
from anadil.preflight.inputs import inspect_clean_cost
from anadil.preflight.text_size import text_of
from anadil.recipe.sections import Recipe
from tests.kit.fake_hub import COMMIT, ROOT, FakeHub
from tests.kit.harness import again
from tests.kit.inspect_inputs import SMALL, lines, look
from tests.kit.texts import AZERBAIJANI

DOCUMENTS = lines(*({"text": f"{number} {AZERBAIJANI}"} for number in range(20)))


def table(column: str) -> bytes:
    out = io.BytesIO()
    rows = pa.table({column: [f"{number} {'x' * 100}" for number in range(5_000)]})
    parquet.write_table(rows, out, compression="none")
    return out.getvalue()


@pytest.mark.usefixtures("small")
def test_inputs_of_a_hub_are_looked_at_like_those_of_a_bucket(recipe: Recipe, hub: FakeHub) -> None:
    place, large = hub.put("a.jsonl", DOCUMENTS), hub.put("b.parquet", table("content"), large=True)

    assert "20 documents" in look(recipe, "clean", place).detail
    asked = hub.bytes_sent()
    with pytest.raises(DataError, match=r"no column 'text' \(clean\.text_field\) among content"):
        look(recipe, "clean", large)
    assert hub.bytes_sent() - asked < SMALL


def test_what_is_wrong_with_an_input_of_a_hub_ends_a_run_at_its_start(
    recipe: Recipe, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = hub.put("a.jsonl", DOCUMENTS)
    with pytest.raises(RecipeError, match="is not a commit and can change; write hf://"):
        look(recipe, "clean", place.replace(COMMIT, "main"))
    hub.token = "hf_of_somebody"
    with pytest.raises(PreflightError, match="private, gated or not there"):
        look(recipe, "clean", place)
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    assert "20 documents" in look(recipe, "clean", place).detail


def test_the_size_of_files_on_a_hub_counts(recipe: Recipe, hub: FakeHub) -> None:
    hub.put("data/a.jsonl", b"x" * 3_000_000)
    hub.put("data/b.parquet", b"x" * 1_000_000)
    named = again(recipe, f"clean.inputs=[{ROOT}/data/*]", "pretrain.max_epochs=4")

    assert text_of(named)[""].tokens == (3_000_000 + 4 * 1_000_000) // 3
    assert "3.8 MiB of files" in inspect_clean_cost(named, 8 * GIB, 4).detail
    assert not hub.bytes_sent()


@pytest.mark.parametrize("source", ["b.csv:2", f"{ROOT}/data/b.csv:2"])
def test_a_record_on_a_hub_is_explained(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    hub.put("data/a.jsonl", DOCUMENTS)
    hub.put("data/b.csv", f'id,text\n1,"{AZERBAIJANI}"\n'.encode())
    files = ["--recipe", "smoke", "--set", "language=az", "--raw", f"{ROOT}/data/*"]

    assert main.main(["clean", "explain", source, *files, "-o", "json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["source"] == "b.csv:2"
    assert explained["read"]["begins"] == AZERBAIJANI[:300]


def test_a_language_is_learnt_of_tables_on_a_hub(hub: FakeHub) -> None:
    place = hub.put("a.tsv", f"text\turl\n{AZERBAIJANI.split()[0]}\thttps://a.az/1\n".encode())

    assert [(text, text.source) for text in read_texts([place], "text")] == [(AZERBAIJANI.split()[0], "a.az")]
