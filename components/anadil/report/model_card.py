"""The model card: what the model is, how good, of what text, under which licence.

Markdown with the front matter that the Hugging Face hub reads of a model: `README.md` of an export.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anadil import __version__
from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY
from anadil.artifacts.find import find_artifact, read_table, root_of
from anadil.core.errors import DataError
from anadil.core.format import DASH, human_figure, human_percent, number, short_count
from anadil.report.data_card import (
    NamedLanguage,
    corpus_facts,
    hub_language_codes,
    licences_by_words,
    recipe_language,
    sources_table,
    stated_licence,
)
from anadil.report.elements import TextTable
from anadil.report.format import figure, words_of
from anadil.report.licence import Licence, licence_files, licence_of
from anadil.report.measures_view import ALONE_NOTE
from anadil.report.newest_scores import newest_scores
from anadil.report.read import Json, base_name, field, last_part, named_tables, table_of
from anadil.report.render import front_matter, render_template
from anadil.report.verdict import (
    candidates_of,
    check_words,
    forgotten,
    gate_verdict,
    lost_checks,
    outcome_words,
)

CANDIDATES = {"model": "adapted", "adapter": "finetuned"}
"""Kind of artifact -> the candidate of the scores that it is."""
MEASURES = (
    ("bits_per_byte", "bits_per_byte", "bits per byte of held-out text"),
    ("fertility", "fertility", "tokens per word"),
    ("words_in_context", "words_in_context", "words in the context"),
    ("questions.bits_per_byte", "answers_bits_per_byte", "bits per byte of answers to unseen questions"),
    ("questions.chrf", "chrf", "chrF of answers to unseen questions"),
    ("questions.exact", "exact_match", "unseen questions answered word for word"),
)
"""Path in a candidate's scores, the name of the metric in front matter, what the row is called."""
SHARES = ("questions.exact",)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MAX_NAME = 96
"""Characters of a name on the hub."""
MAX_TASKS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts for a card; tables are the artifacts' JSON, empty if an artifact is missing."""

    word: str
    """`model` or `adapter`."""
    manifest: Manifest
    recipe: Json
    """The resolved recipe: what it says of licences may be newer than the artifact's own."""
    corpus: Manifest | None
    stats: Json
    training: Json
    finetuning: Json
    chats: Json
    """Counts of chats: `mask_audit.json`."""
    scores: Json

    @property
    def base(self) -> str:
        """`base.model` of the recipe."""
        return str(field(self.recipe, "base.model") or "")

    @property
    def candidate(self) -> str:
        """Its name in the scores."""
        return CANDIDATES[self.word]


def model_card(model: str, scores: str | None = None) -> str:
    """The card of a model or adapter artifact, as Markdown with front matter.

    What the artifact was made from is looked for where a run keeps it, beside the artifact; what is not there any more
    is left out of the card.

    Args:
        model: URI of a model or adapter.
        scores: URI of the scores that are of it; left out, the newest that lie beside it.

    Raises:
        DataError: There is no such artifact.
        IntegrityError: A file that the card is made of differs from its manifest, or the scores are of another model.
    """
    manifest = artifact.read_manifest(model)
    if manifest is None or manifest.kind not in CANDIDATES:
        raise DataError(f"{model}: no finished model or adapter there; give the URI of one")
    return card_of_model(_facts(model, manifest, scores))


def licence_files_of(manifest: Manifest) -> dict[str, bytes]:
    """Name -> content of the files that belong beside the weights of a model or adapter: see `licence_files`."""
    return licence_files(str(field(manifest.recipe, "base.model") or ""), _stated(manifest.recipe))


def card_of_model(facts: ModelFacts) -> str:
    """The card of a model whose facts are at hand."""
    language = recipe_language(facts.recipe)
    licence = licence_of(facts.base, _stated(facts.recipe))
    view: dict[str, Any] = {
        "front": front_matter(_fields(facts, language, licence)),
        "name": model_name(facts.base, language.code, licence, facts.word),
        "facts": facts,
        "base": base_name(facts.base),
        "base_is_public": HUB_ID.fullmatch(facts.base) is not None,
        "language": language,
        "licence": licence,
        "chat_licence": stated_licence(facts.recipe, "chats"),
        "scores": measures_table(facts),
        "verdict": gate_verdict(facts.scores) if facts.scores else "",
        "limits": known_limits(facts),
        "training": training_facts(facts),
        "corpus": corpus_facts(facts.corpus, facts.stats) if facts.corpus else [],
        "sources": sources_table(facts.stats),
        "licences": licences_by_words(facts.recipe, facts.stats),
        "made_from": made_from(facts),
        "version": facts.manifest.program.get("version") or __version__,
    }
    return render_template("model_card.md.j2", view)


def model_name(base: str, language: str, licence: Licence, word: str) -> str:
    """A name for the model that its base's licence allows, such as `Llama-3.2-1B-az`.

    Source: Llama 3 Community Licenses, 1.b.i: a model made from Llama has "Llama" at the beginning of its name.
    """
    own = "tiny" if base == TINY else last_part(base)
    if licence.prefix:
        own = own.removeprefix("Meta-")
        own = own if own.startswith(licence.prefix) else f"{licence.prefix}-{own}"
    named = f"{own}-{language}{'-chat' if word == 'adapter' else ''}"
    return re.sub(r"[^\w.-]+", "-", named)[:MAX_NAME].strip("-.") or "model"


def measures_table(facts: ModelFacts) -> TextTable:
    """The measures of the model beside those of its base."""
    candidates = candidates_of(facts.scores)
    names = [name for name in ("base", "adapted", facts.candidate) if name in candidates]
    names = list(dict.fromkeys(names))
    rows = [
        (label, *(say(number(field(candidates[name], path))) for name in names))
        for path, _, label in MEASURES
        for say in [human_percent if path in SHARES else figure]
        if any(number(field(candidates[name], path)) is not None for name in names)
    ]
    for code in dict.fromkeys(code for name in names for code in table_of(candidates[name].get("retained"))):
        cells = (figure(number(table_of(candidates[name].get("retained")).get(code))) for name in names)
        rows.append((f"bits per byte of {code}, which the base knows", *cells))
    for task, by_candidate in named_tables(facts.scores.get("tasks"))[:MAX_TASKS]:
        entries = [table_of(by_candidate.get(name)) for name in names]
        metric = next((str(entry["metric"]) for entry in entries if entry.get("metric")), "")
        rows.append(
            (f"{words_of(task)} ({metric})", *(figure(number(entry.get("value"))) for entry in entries))
        )
    interval = field(candidates.get(facts.candidate), "bits_per_byte_interval")
    ends = [number(end) for end in interval] if isinstance(interval, list) else []
    note = (
        f"95 % interval of its bits per byte: {figure(ends[0])} to {figure(ends[-1])}. {ALONE_NOTE}"
        if len(ends) == 2
        else ""
    )
    return TextTable(caption="Scores", columns=("measure", *names), rows=tuple(rows), note=note)


def known_limits(facts: ModelFacts) -> list[str]:
    """Sentences about limits and weaknesses of the model."""
    sentences = [
        "It was not tested for safety, bias or truth. Do not use its output as a source of facts.",
        "It also has the faults of its base. The base's own card may say what it was trained on.",
        *_losses(facts),
    ]
    share = number(field(facts.scores, "contamination.share"))
    if share:
        sentences.append(
            f"{human_percent(share)} of the held-out documents share long passages with training text, so its scores are somewhat too good."
        )
    documents = number(field(candidates_of(facts.scores).get(facts.candidate), "num_documents"))
    if documents is not None:
        sentences.append(f"Its bits per byte are of {human_figure(documents)} held-out documents.")
    if not facts.scores:
        sentences.append("It has no scores.")
    if facts.word == "adapter":
        sentences.append("It answers in the style of its chats. It guesses facts that they do not contain.")
        sentences += _system_turn(facts)
    else:
        sentences.append("It continues text. It was not trained to answer.")
    return sentences


def _system_turn(facts: ModelFacts) -> list[str]:
    """The system turn that the chat template writes, and who wrote it."""
    if left_out := facts.chats.get("system_turn_left_out"):
        words = "In a chat without a system turn its chat template writes none, as it was taught (finetune.system: none)"
        return [f"{words}; that of its base writes: {left_out}"]
    text = facts.chats.get("system_turn")
    if not text:
        return []
    own = field(facts.recipe, "finetune.system")
    whose = (
        "finetune.system"
        if own
        else "its base, with which it was taught (finetune.system sets another, or none)"
    )
    return [f"In a chat without a system turn its chat template writes that of {whose}: {text}"]


def _losses(facts: ModelFacts) -> list[str]:
    """Sentences about figures that are worse than the base's or the gate's limit."""
    lost = forgotten(candidates_of(facts.scores), facts.candidate)
    sentences = [
        f"{recipe_language({'language': code}).name} costs it {rise} more bits per byte than the base: it has forgotten part of what the base knew."
        for code, rise in lost
    ]
    checks = [
        check
        for check in lost_checks(facts.scores, facts.candidate)
        # Those to the base are told above.
        if ".retained" not in str(check.get("name"))
    ]
    sentences += [
        f"Quality gate: {check_words(check, facts.candidate)} {outcome_words(check)}." for check in checks
    ]
    return sentences


def training_facts(facts: ModelFacts) -> list[tuple[str, str]]:
    """Names and values of how the model was trained."""
    summary, rows = facts.training, []
    for key, label in (
        ("steps", "steps"), ("tokens", "tokens"), ("epochs", "passes over the text"), ("sequence_length", "tokens in a sequence"),
    ):  # fmt: skip
        if (value := number(summary.get(key))) is not None:
            rows.append((f"continued pre-training, {label}", human_figure(value)))
    for place, (_, phase) in enumerate(named_tables(summary.get("phases")), start=1):
        steps, rate = (human_figure(number(phase.get(key))) for key in ("steps", "lr"))
        rows.append((f"phase {place}", f"{phase.get('trains') or DASH}, {steps} steps, learning rate {rate}"))
    if (parameters := number(summary.get("parameters"))) is not None:
        rows.append(("parameters", short_count(parameters)))
    rows += [(key, str(summary[key])) for key in ("precision", "device") if summary.get(key)]
    if facts.word == "adapter":
        num_chats = number(facts.chats.get("kept"))
        trains = field(facts.recipe, "finetune.trains")
        how = f"LoRA, rank {field(facts.recipe, 'finetune.rank')}" if trains == "adapter" else "all weights"
        rows += [
            ("finetuning, chats", human_figure(num_chats)),
            ("finetuning, steps", human_figure(number(facts.finetuning.get("steps")))),
            ("finetuning, trained", how),
        ]
    return rows


def made_from(facts: ModelFacts) -> TextTable:
    """The artifact and its inputs, by digest."""
    inputs = {
        name.removeprefix("input "): digest
        for name, digest in facts.manifest.origin.items()
        if name.startswith("input ")
    }
    rows = [(f"this {facts.word}", facts.manifest.digest), *inputs.items()]
    if base := facts.manifest.origin.get("base files"):
        rows.append(("files of the base", base))
    return TextTable(caption="Made from", columns=("artifact", "SHA-256"), rows=tuple(rows), words=(1,))


def _facts(uri: str, manifest: Manifest, scores: str | None) -> ModelFacts:
    """Collect the inputs of an artifact that lie beside it."""
    roots = [root_of(uri), *_recipe_root(manifest)]
    is_adapter = manifest.kind == "adapter"
    trained: tuple[str, Manifest] | None = (uri, manifest)
    if is_adapter:
        trained = find_artifact(roots, "model", manifest.origin.get("input model", ""))
    digest = trained[1].origin.get("input corpus", "") if trained else ""
    corpus = find_artifact(roots, "corpus", digest)
    judged, scored_recipe = _scores(manifest, scores, roots)
    return ModelFacts(
        word=manifest.kind,
        manifest=manifest,
        recipe=with_licences(manifest.recipe, scored_recipe),
        corpus=corpus[1] if corpus else None,
        stats=read_table(*corpus, "stats.json") if corpus else {},
        training=read_table(*trained, "training.json") if trained else {},
        finetuning=read_table(uri, manifest, "training.json") if is_adapter else {},
        chats=read_table(uri, manifest, "mask_audit.json") if is_adapter else {},
        scores=judged,
    )


def with_licences(recipe: Json, newer: Json) -> Json:
    """A recipe with what a newer one says of licences, which decides no artifact and so may be added to later."""
    section = table_of(recipe.get("report"))
    known = table_of(section.get("licences")) | table_of(field(newer, "report.licences"))
    return recipe | {"report": section | {"licences": known}}


def _scores(manifest: Manifest, given: str | None, roots: Sequence[str]) -> tuple[Json, Json]:
    """The scores that are of an artifact, and the recipe that they were made by.

    Raises:
        DataError: Those that were given are none of this artifact.
    """
    if given is not None:
        scored = artifact.finished_manifest(given, "scores")
        if scored.origin.get(f"input {manifest.kind}") != manifest.digest:
            raise DataError(f"{given}: the scores are not of this {manifest.kind}; give those that are")
        return read_table(given, scored, "scores.json"), scored.recipe
    if newest := newest_scores(roots, manifest):
        return read_table(*newest, "scores.json"), newest[1].recipe
    return {}, {}


def _recipe_root(manifest: Manifest) -> list[str]:
    root = field(manifest.recipe, "storage.root")
    return [root] if isinstance(root, str) else []


def _stated(recipe: Json) -> str:
    return str(table_of(field(recipe, "report.licences")).get("base") or "")


def _fields(facts: ModelFacts, language: NamedLanguage, licence: Licence) -> Mapping[str, object]:
    licences = table_of(field(facts.recipe, "report.licences"))
    is_public = HUB_ID.fullmatch(facts.base) is not None
    tags = ["anadil", "continued-pretraining", *(["conversational"] if facts.word == "adapter" else [])]
    return {
        "language": hub_language_codes(language.code),
        "license": licence.id,
        "license_name": licence.name if licence.id == "other" else "",
        "license_link": licence.link if licence.id == "other" else "",
        "base_model": facts.base if is_public else "",
        "base_model_relation": "finetune" if is_public else "",
        "datasets": [name for name in licences if HUB_ID.fullmatch(name)],
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags,
        "model-index": _model_index(facts, model_name(facts.base, language.code, licence, facts.word)),
    }


def _model_index(facts: ModelFacts, name: str) -> list[Mapping[str, object]]:
    """The scores as the hub's model-index, of which it draws a table."""
    own = candidates_of(facts.scores).get(facts.candidate, {})
    metrics = [
        {"type": metric, "name": label, "value": value}
        for path, metric, label in MEASURES
        if (value := number(field(own, path))) is not None
    ]
    source = str(field(facts.scores, "heldout.source") or "corpus")
    dataset = {"type": "held-out", "name": "held-out text of the corpus" if source == "corpus" else "held-out text of the recipe"}  # fmt: skip
    results = [_result(dataset, metrics)] if metrics else []
    for task, by_candidate in named_tables(facts.scores.get("tasks"))[:MAX_TASKS]:
        entry = table_of(by_candidate.get(facts.candidate))
        if (value := number(entry.get("value"))) is not None:
            metric = str(entry.get("metric") or "value")
            results.append(
                _result({"type": task, "name": task}, [{"type": metric, "name": metric, "value": value}])
            )
    return [{"name": name, "results": results}] if results else []


def _result(dataset: Mapping[str, str], metrics: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    return {
        "task": {"type": "text-generation", "name": "Text Generation"},
        "dataset": dataset,
        "metrics": metrics,
    }
