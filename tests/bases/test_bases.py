import json
from pathlib import Path
from typing import Any

import pytest

from anadil.bases.candidates import take
from anadil.bases.measure import output_table
from anadil.cli.main import main
from anadil.core.errors import DataError, PreflightError
from anadil.evaluate import generate
from anadil.evaluate.generate import GeneratedText, with_languages
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from tests.kit.pretraining import make_model
from tests.kit.texts import ANOTHER, AZERBAIJANI, TURKISH

KAZAKH = (
    "Кеше кешке қалада қатты жел соғып, бірнеше көшеде ағаштар құлады. Тұрғындар мұндай ауа райы бұл маусымда сирек "
    "болатынын, бірақ жыл сайын қайталанатынын айтады."
)
CHATS = "{% for message in messages %}{{ message['content'] }}<|eot_id|>{% endfor %}"


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bases that differ, with a recipe's text; not to be changed."""
    folder = tmp_path_factory.mktemp("bases")
    make_model(folder / "first", seed=1)
    make_model(folder / "second", seed=2)
    rows = [{"text": text} for text in (AZERBAIJANI, ANOTHER, AZERBAIJANI + ANOTHER, ANOTHER + AZERBAIJANI)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "text.jsonl").write_text(lines, encoding="utf-8")
    return folder


def settings(bases: Path, work: Path) -> list[str]:
    keys = {
        "evaluate.heldout": [str(bases / "text.jsonl")], "evaluate.max_new_tokens": 4, "sources": {}, "evaluate.context": 64,
        "clean.inputs": [str(bases / "text.jsonl")],
        "pretrain.phases": [{"trains": "all", "steps": 40, "lr": 0.001}],
    }  # fmt: skip
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return [*words, "--work", str(work), "--text-bytes", "2000"]


def compare(
    bases: Path,
    work: Path,
    capsys: pytest.CaptureFixture[str],
    *candidates: str,
    code: int = 0,
    more: tuple[str, ...] = (),
) -> Any:
    capsys.readouterr()

    assert main(["bases", "smoke", *candidates, "-o", "json", *settings(bases, work), *more]) == code

    return json.loads(capsys.readouterr().out)


def recipe(root: Path) -> Recipe:
    return load_recipe("smoke", [f"storage.root={root}"])


def test_each_candidate_has_its_figures_on_the_same_bytes(
    bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(bases / "first"), str(bases / "second")]

    shown = compare(bases, tmp_path, capsys, *names, more=("--page", str(tmp_path / "page.html")))

    first, second = shown["candidates"]
    assert {first["name"], second["name"]} == {*names}
    assert first["taught"]["bits_per_byte"] <= second["taught"]["bits_per_byte"]
    for each in shown["candidates"]:
        assert each["taught"]["num_bytes"] == shown["texts"]["taught"]["num_bytes"]
        assert each["english"]["num_bytes"] == shown["texts"]["english"]["num_bytes"]
        assert each["taught"]["bits_per_byte_interval"][0] < each["taught"]["bits_per_byte"]
        assert each["words_in_longest_context"] == int(256 / each["taught"]["fertility"])
        assert each["declared"]["kind"] == "not said"
        assert each["output"]["num_texts"] == 1 + len(load_language("az").questions)
        assert each["billion_words"]["memory_bytes"] > 0
        assert each["tokenizer_strategies"] == {"base": None, "extend": None, "replace": None}
    assert "Azerbaijani" in shown["says"][0]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(sentence[:40] in page for sentence in shown["says"])


def test_a_candidate_that_cannot_be_taken_leaves_the_others(
    bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = make_model(tmp_path / "odd")
    config = json.loads((odd / "config.json").read_text(encoding="utf-8"))
    (odd / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}), encoding="utf-8")
    packed = make_model(tmp_path / "packed")
    (packed / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}), encoding="utf-8"
    )
    typed = make_model(tmp_path / "typed")
    (typed / "tokenizer_config.json").write_text('{"tokenizer_class": 7}')
    names = [
        *map(str, (tmp_path / "absent", odd, packed)),
        "s3://bucket/base",
        str(typed),
        str(bases / "first"),
    ]

    shown = compare(bases, tmp_path / "work", capsys, *names, code=DataError.exit_code)

    assert [each["name"] for each in shown["candidates"]] == [str(bases / "first")]
    reasons = {each["name"]: each["left_out"] for each in shown["left_out"]}
    assert list(reasons) == names[:5]
    assert "no tokenizer there" in reasons[str(typed)]
    assert "no such directory" in reasons[names[0]]
    assert "model type 'mamba' is not proven to train" in reasons[str(odd)]
    assert "its weights are quantized (gptq)" in reasons[str(packed)]
    assert "s3:// is not supported" in reasons["s3://bucket/base"]
    assert shown["left_out"][1]["exit_code"] == PreflightError.exit_code


def test_equal_candidates_are_measured_once(
    bases: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same = make_model(tmp_path / "copy", seed=1)

    candidates, refused = take([str(bases / "first"), str(same), str(bases / "first")], recipe(tmp_path))

    assert ([each.name for each in candidates], refused) == ([str(bases / "first")], [])
    assert "has the same files" in caplog.text


def test_what_was_measured_is_not_measured_again(
    bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compare(bases, tmp_path, capsys, str(bases / "first"))
    monkeypatch.setattr(
        "anadil.evaluate.models.load_for_scoring", lambda *_: pytest.fail("its weights are loaded")
    )

    assert compare(bases, tmp_path, capsys, str(bases / "first")) == first


def test_a_base_whose_chat_template_fails_is_asked_no_questions(
    bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing, silent = make_model(tmp_path / "failing", seed=3), make_model(tmp_path / "silent", seed=4)
    (failing / "chat_template.jinja").write_text("{{ raise_exception('a system turn, please') }}")
    (silent / "chat_template.jinja").write_text("{# nothing #}")

    shown = compare(bases, tmp_path / "work", capsys, str(failing), str(silent))

    outputs = {Path(each["name"]).name: each["output"] for each in shown["candidates"]}
    assert {name: each["num_texts"] for name, each in outputs.items()} == {"failing": 1, "silent": 1}
    assert "does not write them: a system turn, please" in outputs["failing"]["not_asked"]
    assert "it writes nothing" in outputs["silent"]["not_asked"]


def test_a_card_and_a_template_say_what_a_base_is_and_its_name_does_not(tmp_path: Path) -> None:
    tuned, plain = make_model(tmp_path / "some-base"), make_model(tmp_path / "some-instruct", seed=3)
    card = "---\nlicense: mit\nbase_model: maker/base\nbase_model_relation: finetune\nlanguage: kk\ntags: [sft]\n---\n"
    (tuned / "README.md").write_text(card, encoding="utf-8")
    (tuned / "chat_template.jinja").write_text(CHATS, encoding="utf-8")

    candidates, _ = take([str(tuned), str(plain)], recipe(tmp_path))

    told, silent = (each.declared for each in candidates)
    assert (told["kind"], told["made_from"], told["made_by"]) == (
        "post-trained",
        ["maker/base"],
        ["finetune"],
    )
    assert (told["licence"], told["languages"], told["has_template"]) == ("mit", ["kk"], True)
    assert "tag sft" in told["kind_says"]
    assert (silent["kind"], silent["licence"], silent["made_from"]) == ("not said", "unknown", [])


def test_a_base_of_a_sibling_language_is_shown_as_one() -> None:
    def written(text: str) -> GeneratedText:
        return generate.GeneratedText(
            prompt="", kind="answer", mode="greedy", chat=True, text=text, num_tokens=1, ended=True, loop=False,
            distinct_1=1, distinct_2=1, distinct_4=1,
        )  # fmt: skip

    language = load_language("az")
    texts = with_languages([*map(written, [KAZAKH] * 6 + [TURKISH] * 2 + [AZERBAIJANI, "Hə."])], language)

    table = output_table(texts, language)

    assert (table["num_texts"], table["num_identified"], table["own_share"]) == (10, 9, 1 / 9)
    assert table["other_script_share"] == 6 / 9
    assert [(each["name"], each["script"]) for each in table["languages"]] == [
        ("Kazakh", "Cyrl"), ("Turkish", "Latn"), ("Azerbaijani", "Latn"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "code", "words"),
    [
        (["evaluate.heldout=[]", "clean.inputs=[]"], 2, "clean.inputs: names no file"),
        (["evaluate.retained=['{empty}']"], 3, "holds no text"),
    ],
)
def test_a_recipe_without_text_is_refused_by_name(
    bases: Path, tmp_path: Path, keys: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty := tmp_path / "empty.jsonl").write_text("")
    more = [word for key in keys for word in ("--set", key.format(empty=empty))]

    assert main(["bases", "smoke", str(bases / "first"), *settings(bases, tmp_path), *more]) == code

    assert words in capsys.readouterr().err
