import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from anadil.artifacts import artifact
from anadil.artifacts.find import read_table
from anadil.core.errors import DataError
from anadil.page.licence import licence_files, licence_of
from anadil.recipe.fields import CONTROL
from anadil.recipe.sections import Recipe
from anadil.report.data_card import card_of_corpus
from anadil.report.model_card import licence_files_of, model_card, model_name
from anadil.text.parallel import TEMPLATE
from tests.kit import report_run

HOSTILE = (
    "---\nlicense: mit\n---\n# Owned",
    '"\n---\nlicense: mit\n',
    "[a](javascript:alert(1)) <script>alert(1)</script>",
    "| x |\n| --- |\n```sh\nrm -rf\n```",
    "\u2028--- {{7*7}} {% raw %}\x00\x1b[31m",
)
Json = dict[str, Any]


def recipe(**more: Any) -> Json:
    return Recipe.model_validate({"language": "az", **more}).model_dump(mode="json")


def data_card(corpus: str) -> str:
    manifest = artifact.finished_manifest(corpus, "corpus")
    return card_of_corpus(manifest, read_table(corpus, manifest, "stats.json"))


def run_of(root: Path, *, base: str = "tiny", scores: Json | None = None, **more: Any) -> dict[str, str]:
    """A corpus, a model, an adapter and scores as a run leaves them; the URI of each."""
    told = recipe(base={"model": base}, **more)
    counts = report_run.corpus() | {
        "by_source": {"web.jsonl": {"in": 18_400, "kept": 13_856, "words": 4_182_331, "bytes": 1, "dropped": {}}},
        "hosts": {"news.example.az": {"in": 9, "kept": 8, "words": 836_466, "bytes": 9}},
        "by_licence": {
            "CC BY 4.0": {"kept": 8_000, "words": 4_000_000, "bytes": 1},
            "": {"kept": 5_856, "words": 182_331, "bytes": 1},
        },
    }  # fmt: skip
    corpus = sealed(
        root / "corpus/0a", "corpus", {"file /raw/web.jsonl": "1f" * 32}, told, {"stats.json": counts}
    )
    training: Json = {"steps": 300, "tokens": 1_228_800, "average_of": [280, 300]}
    training["phases"] = [{"trains": "all", "steps": 300, "lr": 0.0024}]
    model = sealed(
        root / "model/0a", "model", {"input corpus": digest(corpus)}, told, {"training.json": training}
    )
    adapter = sealed(
        root / "adapter/0a",
        "adapter",
        {"input model": digest(model)},
        told,
        {"mask_audit.json": report_run.audit()},
    )
    origin = {"input model": digest(model), "input adapter": digest(adapter)}
    files = {"scores.json": report_run.scores() if scores is None else scores}
    judged = sealed(root / "scores/0a", "scores", origin, told, files)
    return {"corpus": corpus, "model": model, "adapter": adapter, "scores": judged}


def sealed(folder: Path, kind: str, origin: dict[str, str], told: Json, files: Json) -> str:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    artifact.seal(folder, kind=kind, origin=origin, recipe=told)
    return str(folder)


def digest(uri: str) -> str:
    found = artifact.read_manifest(uri)
    assert found is not None
    return found.digest


def fields(card: str) -> Json:
    """The front matter, as the hub cuts it out."""
    match = re.match(r"^---[\r\n]+([\S\s]*?)[\r\n]+---(\r\n|\r|\n|$)", card)
    assert match is not None
    found = yaml.safe_load(match[1])
    assert isinstance(found, dict)
    return found


def test_the_hubs_own_reader_takes_the_card_of_a_model(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    uris = run_of(tmp_path, report={"licences": {"wikimedia/wikipedia": "CC BY-SA 3.0"}})

    data: Any = ModelCard(model_card(uris["adapter"])).data

    assert data.language == ["az"]
    assert data.license == "apache-2.0"
    assert data.datasets == ["wikimedia/wikipedia"]
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert "base_model" not in data.to_dict()
    values = {(each.dataset_type, each.metric_type): each.metric_value for each in data.eval_results}
    assert values["held-out", "bits_per_byte"] == 1.8021
    assert values["belebele_azj_Latn", "acc"] == 0.34


def test_the_hubs_own_reader_takes_the_card_of_a_corpus(tmp_path: Path) -> None:
    from huggingface_hub import DatasetCard

    data: Any = DatasetCard(data_card(run_of(tmp_path)["corpus"])).data

    assert data.language == ["az"]
    assert data.license == "cc-by-4.0"
    assert data.size_categories == ["10K<n<100K"]


def test_a_data_card_tells_of_sources_domains_licences_and_dropped_documents(tmp_path: Path) -> None:
    card = data_card(run_of(tmp_path)["corpus"])

    assert "| web.jsonl | 18,400 | 13,856 | 4,182,331 | 100 % |" in card
    assert "| news.example.az | 9 | 8 | 836,466 | 20.0 % |" in card
    assert "| CC BY 4.0 | 8,000 | 4,000,000 | 95.6 % |" in card
    assert "| not stated | 5,856 | 182,331 | 4.36 % |" in card
    assert "| language | 1,804 | 9.80 % | drops |" in card
    assert "| short | 1,263 | — | only counted |" in card
    assert "Personal data was not searched for" in card
    assert f"| web.jsonl | {'1f' * 32} |" in card
    assert "/raw/" not in card


def test_a_data_card_tells_which_personal_data_was_replaced(tmp_path: Path) -> None:
    uri = run_of(tmp_path, clean={"pii": True})["corpus"]
    manifest = artifact.finished_manifest(uri, "corpus")

    card = card_of_corpus(manifest, report_run.corpus() | {"personal_data": {"EMAIL": 1_234}})

    assert "Placeholders written: EMAIL 1,234." in card


def test_the_card_of_pairs_says_how_they_are_written_and_judged(tmp_path: Path) -> None:
    counts = report_run.corpus() | {
        "kept": 900, "records": {"train": 1_600, "heldout": 200}, "limits": "none", "dropped": {"missing_side": 3},
        "pairs": {
            "languages": ["en", "az"], "template": TEMPLATE, "directions": 2,
            "sides": {"en": {"en": 600, "unjudged": 300}, "az": {"az": 890, "tr": 1, "unjudged": 9}},
        },
    }  # fmt: skip
    told = recipe() | {"language": "en + az"}
    corpus = sealed(tmp_path / "corpus/0a", "corpus", {}, told, {"stats.json": counts})

    card = data_card(corpus)

    assert fields(card)["language"] == ["en", "az"]
    assert "English and Azerbaijani corpus" in card
    assert "| each pair | two documents, one a direction, as {from\\_name}: {from\\_text} / " in card
    assert "309 sides were too short to tell their language, and stayed." in card
    assert "No rule judged" not in card
    assert "see its own card" not in card


def test_a_card_names_the_data_sets_of_the_hub_with_their_licences(tmp_path: Path) -> None:
    from huggingface_hub import DatasetCard

    manifest = artifact.finished_manifest(run_of(tmp_path)["corpus"], "corpus")
    named = [
        {"name": "org/texts", "commit": "0a" * 20, "licence": "odc-by, mit"},
        {"name": "org/others", "commit": "1b" * 20, "licence": ""},
    ]

    card = card_of_corpus(manifest, report_run.corpus() | {"data_sets": named})

    assert f"| org/texts | {'0a' * 20} | odc-by, mit |" in card
    assert f"| org/others | {'1b' * 20} | not stated |" in card
    assert "As its page on the Hugging Face hub states it; not checked." in card
    data: Any = DatasetCard(card).data
    assert data.license == ["odc-by", "mit"]


def test_the_model_card_finds_what_the_model_was_made_from(tmp_path: Path) -> None:
    uris = run_of(tmp_path)

    card = model_card(uris["model"])

    assert "| bits per byte of held-out text | 2.913 | 1.745 |" in card
    assert "| web.jsonl |" in card
    assert "| continued pre-training, steps | 300 |" in card
    assert "| weights | mean of 2 checkpoints, the last at step 300 |" in card
    assert digest(uris["corpus"]) in card
    alone = tmp_path / "elsewhere/model/0a"
    alone.parent.mkdir(parents=True)
    Path(uris["model"]).rename(alone)
    assert "The corpus was not at hand" in model_card(str(alone))


def test_the_card_of_a_model_that_answers_names_the_system_turn_that_its_template_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = model_card(run_of(tmp_path / "without")["adapter"])
    audit = report_run.audit() | {"system_turn": "Sən Ayla adlı köməkçisən."}
    monkeypatch.setattr(report_run, "audit", lambda: audit)
    uris = run_of(tmp_path / "base")
    own = run_of(tmp_path / "own", finetune={"system": "Sən Ayla adlı köməkçisən."})

    begin = "In a chat without a system turn its chat template writes that of"
    assert begin not in without
    assert re.search(rf"{begin} its base, .*: Sən Ayla adlı köməkçisən\.\n", model_card(uris["adapter"]))
    assert f"{begin} finetune.system: Sən Ayla adlı köməkçisən.\n" in model_card(own["adapter"])
    audit["system_turn_left_out"] = audit.pop("system_turn")
    none = model_card(run_of(tmp_path / "none", finetune={"system": "none"})["adapter"])
    assert re.search(
        r"its chat template writes none, .*; that of its base writes: Sən Ayla adlı köməkçisən\.\n", none
    )
    assert begin not in model_card(uris["model"]), "that is the model before it was taught chats"


def test_a_card_says_what_the_model_has_forgotten_and_which_checks_did_not_hold(tmp_path: Path) -> None:
    scores = report_run.scores()
    for name, bits in (("base", 2.0), ("adapted", 2.9), ("finetuned", 3.4)):
        scores["candidates"][name]["retained"] = {"de": bits}
    scores["gate"]["checks"][3] |= {"name": "adapted.loops", "value": 0.7, "limit": 0.5, "passed": False}
    uris = run_of(tmp_path, scores=scores)

    card = model_card(uris["model"])

    limits = card.partition("## What to know before using it")[2].partition("##")[0]
    assert "German costs it 45 % more bits per byte than the base: it has forgotten" in limits
    assert "Quality gate: share of texts that loop is 0.7, the limit 0.5." in limits
    assert "70 %" not in limits, "that is the other model"
    assert "keeps what its base" not in limits


def test_scores_of_another_model_are_refused(tmp_path: Path) -> None:
    ours = run_of(tmp_path)
    others = sealed(tmp_path / "scores/0b", "scores", {"input model": "00" * 32}, {}, {"scores.json": {}})

    with pytest.raises(DataError, match="the scores are not of this model"):
        model_card(ours["model"], others)


@pytest.mark.parametrize(
    ("base", "licence", "name"),
    [
        ("meta-llama/Llama-3.2-1B", "llama3.2", "Llama-3.2-1B-az"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3.3", "Llama-3.3-70B-Instruct-az"),
        ("meta-llama/Meta-Llama-3-8B", "llama3", "Llama-3-8B-az"),
        ("/models/Llama-3.2-3B", "llama3.2", "Llama-3.2-3B-az"),
        ("TinyLlama/TinyLlama-1.1B", "unknown", "TinyLlama-1.1B-az"),
    ],
)
def test_the_licence_follows_the_base_and_unknown_is_said_as_unknown(
    tmp_path: Path, base: str, licence: str, name: str
) -> None:
    card = model_card(run_of(tmp_path, base=base)["model"])

    assert fields(card)["license"] == licence
    assert f"# {name}\n" in card
    assert ("**Built with" in card) == licence.startswith("llama")
    assert ("Copyright © Meta Platforms" in card) == licence.startswith("llama")
    assert ("<https://www.llama.com/llama" in card) == licence.startswith("llama")
    assert ("Unknown. Neither" in card) == (licence == "unknown")
    assert fields(card).get("base_model") == (None if base.startswith("/") else base)


@pytest.mark.parametrize(
    ("files", "licence", "name"),
    [
        ({"README.md": "---\nlicense: llama3.2\n---\n# x"}, "llama3.2", "Llama 3.2 Community License"),
        ({"LICENSE.txt": "LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\n..."}, "llama3.1", "Llama 3.1 Community License"),
        ({"LICENSE": "Apache License\n   Version 2.0, January 2004"}, "apache-2.0", "apache-2.0"),
        ({"README.md": "---\nlicense: gemma\n---\n"}, "gemma", "gemma"),
        (
            {"README.md": "---\nlicense: other\nlicense_name: qwen-research\nlicense_link: LICENSE\n---\n", "LICENSE": "Qwen"},
            "other",
            "qwen-research",
        ),
        ({"LICENSE": "Do as we say."}, "other", "see LICENSE of the base"),
        ({"README.md": "---\nlicense: [broken\n---\n"}, "unknown", ""),
        ({"README.md": "---\nlicense: mit\nreleased: 2024-02-30\n---\n"}, "unknown", ""),
        ({"README.md": "no front matter"}, "unknown", ""),
    ],
)  # fmt: skip
def test_what_the_bases_own_files_say_is_taken_first(
    tmp_path: Path, files: dict[str, str], licence: str, name: str
) -> None:
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")

    found = licence_of(str(tmp_path))

    assert (found.id, found.name) == (licence, name)


def test_a_name_that_the_licence_asks_for_is_put_first() -> None:
    licence = licence_of("someone/my-base", "Llama 3.2 Community License")

    assert licence.id == "llama3.2"
    assert model_name("someone/my-base", "az", licence, answers=True) == "Llama-my-base-az-chat"


def test_licence_policy_and_notice_of_the_base_lie_beside_the_weights(tmp_path: Path) -> None:
    (tmp_path / "LICENSE.txt").write_text("LLAMA 3.2 COMMUNITY LICENSE AGREEMENT", encoding="utf-8")
    (tmp_path / "USE_POLICY.md").write_text("policy", encoding="utf-8")

    found = licence_files(str(tmp_path))

    assert set(found) == {"LICENSE.txt", "USE_POLICY.md", "NOTICE"}
    assert b"Llama 3.2 Community License, Copyright" in found["NOTICE"]
    assert licence_files("Qwen/Qwen3-0.6B") == {}
    manifest = artifact.read_manifest(run_of(tmp_path / "run", base=str(tmp_path))["model"])
    assert manifest is not None
    assert licence_files_of(manifest) == found


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_users_breaks_out_of_neither_front_matter_nor_markdown(tmp_path: Path, text: str) -> None:
    plain = CONTROL.sub(" ", text)  # all that a recipe takes
    told = {"report": {"licences": {"base": plain, "text": plain, "chats": plain, plain: plain}}}
    scores = report_run.scores()
    scores["tasks"] = {text: {"finetuned": {"metric": text, "value": 0.3}}}
    uris = run_of(tmp_path, base=f"/models/{plain}", scores=scores, **told)
    by_text = {"by_source": {text: {"in": 1}}, "hosts": {text: {}}, "by_licence": {text: {}}}
    manifest = artifact.finished_manifest(uris["corpus"], "corpus")

    for card in (
        model_card(uris["adapter"]),
        card_of_corpus(manifest, report_run.corpus() | by_text | {"dropped": {text: 3}}),
    ):
        head, body = fields(card), card.split("\n---\n", maxsplit=1)[1]
        assert head["license"] in ("other", ["other"])
        assert all(value.isprintable() for value in head.values() if isinstance(value, str))
        assert "<script>" not in body
        assert not re.search(r"(?<!\\)\]\(", body)
        assert "\n---\n" not in body
        assert "Owned" not in [line.lstrip("# ") for line in body.splitlines() if line.startswith("#")]
        assert [line for line in body.splitlines() if line.startswith("```")] in (["```python", "```"], [])
