import errno
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zstandard

from anadil.core.errors import DataError, PreflightError, Stopped
from anadil.core.stages import STAGES
from anadil.model.architecture import read_config
from anadil.model.chat_ids import chat_ids
from anadil.model.decoding import Continuation, choose
from anadil.model.load import load_model, load_tokenizer
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.replay import run as replay
from anadil.replay.run import Writer
from anadil.runtime.cache_key import recipe_origin, stage_origin
from anadil.runtime.entry_point import main
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.text.corpus import read_corpora
from anadil.text.encoder import Encoder
from anadil.text.language import load_language
from anadil.text.written import read_written
from anadil.tokens.encode_file import document_tokenizer
from tests.kit.families import make_family
from tests.kit.writing_base import WORDS, writing_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that writes short documents."""
    return writing_base(tmp_path_factory.mktemp("base") / "talks")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (
        ("SHARD_DOCUMENTS", 48),
        ("MAX_TOKENS", 64),
        ("QUESTION_TOKENS", 32),
        ("ANSWER_TOKENS", 32),
    ):
        monkeypatch.setattr(replay, name, size)


def recipe_of(base: Path, root: Path, *settings: str) -> Recipe:
    text = (
        "language: az\nsources: {web: {inputs: [w.jsonl]}, self: {written_by: base, tokens: 1K, clean: {rules: none}}}\n"
        "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, self: .1}}]}\ntracking: {uri: off}"
    )
    changes = [f"base.model={base}", f"storage.root={root}", *settings]
    return parse_recipe(text, "r.yaml", changes)


def test_keys_of_layers_that_differ_are_counted_as_the_widest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(make_family(tmp_path, "gemma4_text"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**9, 0))
    monkeypatch.setattr(replay, "batch_tokens", lambda _, token_bytes: token_bytes)
    model: Any = SimpleNamespace(config=config, device=torch.device("cuda"), dtype=torch.bfloat16)

    assert replay._batch_tokens(model) == 2 * 4 * (2 * 16) * 2


def written(recipe: Recipe) -> MadeArtifact:
    return execute(STAGES["replay"], recipe.of_source("self"), {}, (), None)


def rows_of(made: MadeArtifact) -> tuple[list[bytes], dict[str, Any]]:
    files, about = read_written(Path(made.uri))
    return [Path(each).read_bytes() for each in files], about


def test_a_base_writes_as_many_tokens_as_are_asked_for(base: Path, tmp_path: Path) -> None:
    made = written(recipe_of(base, tmp_path))

    files, about = rows_of(made)
    assert len(files) > 1
    # No more than the last document of each row beyond it.
    assert 1_000 <= about["tokens"] < 1_500
    assert about["written"] == about["documents"] + sum(about["dropped"].values())
    assert (about["base"], about["seed"]) == (str(base), 0)
    assert about["sampling"]["text"] == {"temperature": 1.0, "top_p": 1.0}
    assert 0 < about["chats"] < about["documents"] == made.manifest.records["documents"]


def test_a_killed_run_writes_no_shard_twice_and_ends_with_the_same_text(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(recipe_of(base, tmp_path / "whole"))
    begun: list[range] = []
    write = Writer.write

    def write_one(self: Writer, numbers: range) -> Any:
        begun.append(numbers)
        if len(begun) == 2:
            raise Stopped("killed")
        return write(self, numbers)

    monkeypatch.setattr(Writer, "write", write_one)
    with pytest.raises(Stopped):
        written(recipe_of(base, tmp_path / "killed"))
    again = written(recipe_of(base, tmp_path / "killed"))

    assert begun[0] == range(16)
    assert begun[2] == begun[1]
    assert rows_of(again) == rows_of(whole)


def test_what_a_base_has_written_serves_other_phases_tokenizers_and_corpora(
    base: Path, tmp_path: Path
) -> None:
    settings = (
        "tokenizer.vocab_sizes=[9999]", "pretrain.phases.0.steps=5", "clean.pii=true", "pretrain.sequence_length=64",
        "sources.self.max_tokens=5K", "sources.self.language=none", "sources.web.inputs=[x.txt]", "language=kk",
    )  # fmt: skip
    stage, recipe = STAGES["replay"], recipe_of(base, tmp_path)
    key = stage_origin(stage, recipe.of_source("self"), {}, ())

    assert stage_origin(stage, recipe_of(base, tmp_path, *settings).of_source("self"), {}, ()) == key
    for setting in ("seed=1", "sources.self.tokens=2K"):
        assert stage_origin(stage, recipe_of(base, tmp_path, setting).of_source("self"), {}, ()) != key
    assert "recipe sources.self.tokens" in recipe_origin(recipe.of_source("self"), stage.keys)


def test_a_base_that_writes_nothing_is_refused_with_what_it_wrote(tmp_path: Path) -> None:
    loops = writing_base(tmp_path / "loops", {"Ġvalue": 30.0})

    with pytest.raises(DataError) as caught:
        written(recipe_of(loops, tmp_path))

    assert str(caught.value) == (
        f"sources.self: the base {loops} writes nothing of use: 16 documents written, all dropped: "
        "text loop 16 (100 %); it wrote "
        + ", ".join([repr(("value" + " value" * 64)[:200])] * 3)
        + "; check base.model, or give real text as `inputs` in place of written_by"
    )


def test_a_base_without_a_tokenizer_is_refused(base: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((base / "config.json").read_text())

    with pytest.raises(DataError, match=r"base\.model: .*bare holds no tokenizer\.json"):
        written(recipe_of(bare, tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("clean_in_this_process")
def test_a_corpus_is_made_of_what_the_base_wrote(base: Path, tmp_path: Path) -> None:
    recipe = recipe_of(base, tmp_path)
    made = written(recipe)

    corpus = execute(STAGES["clean"], recipe.of_source("self"), {"written": made.uri}, (), None)

    texts = {document.text for document in read_corpora([Path(corpus.uri)], "train")}
    files, _ = rows_of(made)
    rows = [json.loads(line) for each in files for line in zstandard.decompress(each).decode().splitlines()]
    normalize = load_language("en").normalize
    assert texts <= {normalize(row["text"]) for row in rows}
    assert any(text.startswith("<|start_header_id|>") for text in texts)
    stats = json.loads((Path(corpus.uri) / "stats.json").read_text())
    assert stats["written"]["base"] == str(base)
    assert corpus.manifest.origin["input written"] == made.manifest.digest


@pytest.mark.slow
@pytest.mark.usefixtures("clean_in_this_process")
def test_text_in_another_language_than_the_source_says_is_refused_with_samples(
    base: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(base, tmp_path, "sources.self.language=ja", "sources.self.clean.rules={}")
    made = written(recipe)

    with pytest.raises(DataError) as caught:
        execute(STAGES["clean"], recipe.of_source("self"), {"written": made.uri}, (), None)

    text = str(caught.value)
    assert "corpus is empty after cleaning" in text
    assert f"; {base} wrote '" in text
    assert "name the language that it writes, or `none`, in the source's `language`" in text


def test_a_full_disk_leaves_no_shard_that_is_taken_for_one(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        json.dumps(recipe_of(base, tmp_path / "root").model_dump(mode="json", exclude_defaults=True))
    )
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write_bytes(self, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        code = main("replay", ["--recipe", str(path)])

    assert code == PreflightError.exit_code
    assert "disk full: " in capsys.readouterr().err
    assert not [*(tmp_path / "root").rglob("shard-*")]
    assert rows_of(written(recipe_of(base, tmp_path / "root")))[1]["documents"]


def writer_of(base: Path, seed: int = 0) -> Writer:
    return Writer(load_model(base), load_tokenizer(base), seed, "base")


def test_a_document_is_the_same_in_any_batch(base: Path) -> None:
    writer = writer_of(base)

    together = writer.write(range(12))

    assert [each.number for each in together] == list(range(12))
    assert [writer.write([number])[0] for number in (7, 2)] == [together[7], together[2]]
    assert writer_of(base).write(range(4, 9)) == together[4:9]
    assert len({each.text for each in together}) == 12


def test_another_seed_writes_other_text(base: Path) -> None:
    first, other = (writer_of(base, seed).write(range(2)) for seed in (0, 1))

    assert {each.text for each in first}.isdisjoint({each.text for each in other})


def test_every_second_document_is_a_chat_in_the_template_of_the_base(base: Path) -> None:
    tokenizer = load_tokenizer(base)

    kept = [each for each in writer_of(base).write(range(16)) if not each.dropped]

    assert {each.kind for each in kept if each.number % 2} == {"chat"}
    assert {each.kind for each in kept if each.number % 2 == 0} == {"text"}
    chat = next(each for each in kept if each.kind == "chat")
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    question, answer = chat.text.removeprefix(header.format("user")).split("<|eot_id|>")[:2]
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer.removeprefix(header.format("assistant"))},
    ]
    # The chat's tokens are those of the template, once its text is encoded as text of the base itself.
    tokens, frame = document_tokenizer(base)
    ids = Encoder(tokens, reads_special=True).encode([chat.text])[0].tolist()
    assert [frame.begin, *ids] == chat_ids(tokenizer, turns)
    # Outside text with the same letters stays text.
    assert not set(Encoder(tokens).encode([chat.text])[0].tolist()) & set(tokenizer.all_special_ids)


def test_a_base_that_ends_no_question_writes_no_chats(tmp_path: Path) -> None:
    writer = writer_of(writing_base(tmp_path / "mute", dict.fromkeys(WORDS, 11.0)))

    written = writer.write(range(4))

    assert not writer.writes_chats
    assert {each.kind for each in written} == {"text"}


def test_an_empty_document_is_dropped_and_has_cost_its_end_token(tmp_path: Path) -> None:
    written = writer_of(writing_base(tmp_path / "base", {"<|end_of_text|>": 30.0})).write([0, 2])

    assert {each.dropped for each in written} == {"empty"}
    assert all(each.tokens > 0 for each in written)


def test_letters_of_a_control_token_are_dropped_and_an_open_chat_is(base: Path) -> None:
    writer: Any = writer_of(base)
    spelled = Encoder(document_tokenizer(base)[0]).encode(["so <|eot_id|> it goes"])[0].tolist()

    reasons = [
        writer._judged(0, kind, Continuation(tokens=tuple(ids), ended=False)).dropped
        for kind, ids in (("text", spelled), ("text", spelled[:1]), ("chat", spelled[:1]))
    ]

    assert reasons == ["control", "", "unended"]


def test_all_ids_are_drawn_as_often_as_their_share_says() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).repeat(4000, 1)
    uniform = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    counts = Counter(choose(logits, uniform, 1.0, 1.0).tolist())

    shares = logits[0].softmax(0).tolist()
    assert counts[3] == 0
    assert all(abs(counts[i] / 4000 - shares[i]) < 0.03 for i in range(3))


def test_a_model_whose_logits_are_no_numbers_is_refused(base: Path) -> None:
    model: Any = load_model(base)
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits * torch.nan)

    with pytest.raises(
        DataError, match=r"the model's logits are NaN, so it writes nothing; .* make or fetch the model again"
    ):
        Writer(model, load_tokenizer(base), 0, "base").write([0])
