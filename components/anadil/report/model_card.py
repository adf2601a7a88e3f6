"""The model card: scores, limits, training, text and licence of a model.

Markdown with front matter for a model on the Hugging Face hub: `README.md` of an export.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

from anadil import __version__
from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY
from anadil.artifacts.find import artifacts_below, find_artifact, read_table, roots_of
from anadil.core.candidates import BY_KIND, CANDIDATES, answers
from anadil.core.errors import DataError
from anadil.core.format import DASH, counted, human_figure, human_percent, number, short_count
from anadil.core.measures import view_results
from anadil.core.stages import forms_of
from anadil.core.table import Table
from anadil.page.format import figure, words_of
from anadil.page.licence import Licence, licence_files, licence_of
from anadil.page.part import Part
from anadil.page.render import front_matter, render_template
from anadil.page.values import Json, base_name, candidates_of, field, list_of, named_tables, table_of
from anadil.report import data_card, verdict
from anadil.report.measures_view import ALONE_NOTE
from anadil.report.read import CorpusFacts, NamedLanguage, parts_of, recipe_language, sum_stats, views
from anadil.runtime.job import by_source

FOLDER = Path(__file__).parent
MEASURES = (
    ("bits_per_byte", "bits_per_byte", "bits per byte of held-out text"),
    ("fertility", "fertility", "tokens per word"),
    ("words_in_context", "words_in_context", "words in the context"),
    ("questions.bits_per_byte", "answers_bits_per_byte", "bits per byte of answers to unseen questions"),
    ("questions.chrf", "chrf", "chrF of answers to unseen questions"),
    ("questions.exact", "exact_match", "unseen questions answered word for word"),
)
"""Path in a candidate's scores, name of the metric in front matter, label of the row."""
SHARES = ("questions.exact",)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MAX_NAME = 96
MAX_TASKS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts for a card; tables are the artifacts' JSON, empty if an artifact is missing."""

    word: str
    manifest: Manifest
    recipe: Json
    """The resolved recipe, whose licences may be newer than the artifact's own."""
    corpora: tuple[CorpusFacts, ...]
    """Those that it was trained on; none where they are gone."""
    training: Json
    parts: Mapping[str, Part]
    """Parts that stages bring, of the model itself and of those that it was made from."""
    finetuning: Json
    chats: Json
    """Counts of chats: `mask_audit.json`."""
    scores: Json

    @property
    def base(self) -> str:
        """`base.model` of the recipe."""
        return str(field(self.recipe, "base.model") or "")

    @property
    def stats(self) -> Json:
        """Counts of all corpora together."""
        return sum_stats([each.stats for each in self.corpora])

    @property
    def steps(self) -> dict[str, Part]:
        """Artifact word -> part of a stage that changed the model's weights."""
        return {word: part for word, part in self.parts.items() if word in BY_KIND}

    @property
    def candidate(self) -> str:
        """Its name in the scores."""
        return BY_KIND[self.word].name

    @property
    def answers(self) -> bool:
        """True if it is asked through its chat template."""
        return answers(self.word, self.manifest.figures)


def facts_of_model(uri: str, manifest: Manifest, scores: str | None) -> ModelFacts:
    """Collect the inputs of an artifact that lie beside it."""
    roots = roots_of(uri, manifest)
    is_adapter = manifest.kind == "adapter"
    chain = {manifest.kind: (uri, manifest)}
    # Each candidate may have been made of any that comes before it.
    for made_of, kind in reversed([*combinations([each.kind for each in CANDIDATES], 2)]):
        digest = chain[kind][1].origin.get(f"input {made_of}") if kind in chain else None
        if digest and (each := find_artifact(roots, made_of, digest)):
            chain[made_of] = each
    trained = chain.get("model")
    if scores is None:
        scored = newest_scores(roots, manifest)
    else:
        scored = scores, artifact.finished_manifest(scores, "scores")
        if scored[1].origin.get(f"input {manifest.kind}") != manifest.digest:
            raise DataError(f"{scores}: the scores are not of this {manifest.kind}; give those that are")
    # Licences decide no artifact, so a later recipe may have added some.
    report = table_of(manifest.recipe.get("report"))
    later = table_of(field(scored[1].recipe, "report.licences")) if scored else {}
    licences = table_of(report.get("licences")) | later
    resolved = manifest.recipe | {"report": report | {"licences": licences}}
    made = {word: read_table(*chain[word], view.FILE) for word, view in views().items() if word in chain}
    return ModelFacts(
        word=manifest.kind,
        manifest=manifest,
        recipe=resolved,
        corpora=_corpora(roots, trained[1], licences) if trained else (),
        training=read_table(*trained, "training.json") if trained else {},
        parts=parts_of(made, resolved, {word: each for word, (_, each) in chain.items()}),
        finetuning=read_table(uri, manifest, "training.json") if is_adapter else {},
        chats=read_table(uri, manifest, "mask_audit.json") if is_adapter else {},
        scores=read_table(*scored, "scores.json") if scored else {},
    )


def _corpora(roots: Sequence[str], trained: Manifest, licences: Json) -> tuple[CorpusFacts, ...]:
    """The corpora of a model that are found, in the recipe's order."""
    digests = by_source("corpus", trained.inputs)
    order = [*table_of(trained.recipe.get("sources"))]
    facts = []
    for source in sorted(digests, key=lambda name: order.index(name) if name in order else len(order)):
        if corpus := find_artifact(roots, "corpus", digests[source]):
            recipe = corpus[1].recipe
            recipe = recipe | {"report": table_of(recipe.get("report")) | {"licences": licences}}
            if source:  # another run may have made it, by another name
                recipe["sources"] = {source: {}}
            facts.append(
                CorpusFacts(
                    source=source, manifest=corpus[1], stats=read_table(*corpus, "stats.json"), recipe=recipe
                )
            )
    return tuple(facts)


def newest_scores(roots: Sequence[str], model: Manifest) -> tuple[str, Manifest] | None:
    """Find the newest scores of a model, merged model or adapter below some storage roots."""
    scores = artifacts_below(roots, "scores")
    return next((pair for pair in scores if pair[1].origin.get(f"input {model.kind}") == model.digest), None)


def model_card(model: str, scores: str | None = None) -> str:
    """The card of an artifact that is a candidate of a release, as Markdown with front matter.

    Inputs of the artifact are searched beside it, as a run stores them. The card skips those that are gone.

    Without `scores` it takes the newest that lie beside the model.
    """
    return card_of_model(facts_of_model(model, artifact.finished_manifest(model, *BY_KIND), scores))


def licence_files_of(manifest: Manifest) -> dict[str, bytes]:
    """Name -> content of the files that belong beside the weights of a model, merged model or adapter: see `licence_files`."""
    return licence_files(str(field(manifest.recipe, "base.model") or ""), _stated(manifest.recipe))


def card_of_model(facts: ModelFacts) -> str:
    """The card of a model whose facts are at hand."""
    language = recipe_language(facts.recipe)
    licence = licence_of(facts.base, _stated(facts.recipe))
    name = model_name(facts.base, language.code, licence, answers=facts.answers)
    rows = [(f"this {facts.word}", facts.manifest.digest), *facts.manifest.inputs.items()]
    rows += [("files of the base", base)] if (base := facts.manifest.origin.get("base files")) else []
    view: dict[str, object] = {
        "front": front_matter(_fields(facts, language, licence, name)),
        "name": name,
        "facts": facts,
        "base": base_name(facts.base),
        "language": language,
        "licence": licence,
        "chat_licence": data_card.stated_licence(facts.recipe, "chats"),
        "scores": _measures_table(facts),
        "verdict": verdict.gate_verdict(facts.scores) if facts.scores else "",
        "limits": _known_limits(facts),
        "training": _training_facts(facts),
        "corpus": data_card.corpus_facts(facts.corpora[0].manifest, facts.stats) if facts.corpora else [],
        "mixture": data_card.corpora_table(facts.corpora, facts.training),
        "sources": data_card.sources_table(facts.stats),
        "licences": data_card.licences_by_words(facts.recipe, facts.stats),
        "data_sets": data_card.data_sets_table(facts.stats),
        "made_from": Table("Made from", ("artifact", "SHA-256"), rows, words=(1,)),
        "version": facts.manifest.program.get("version") or __version__,
    }
    return render_template(FOLDER / "model_card.md.j2", view)


def model_name(base: str, language: str, licence: Licence, *, answers: bool) -> str:
    """A name for the model that its base's licence allows, such as `Llama-3.2-1B-az`.

    Source: Llama 3 Community Licenses, 1.b.i: a model made from Llama has "Llama" at the beginning of its name.
    """
    stem = "tiny" if base == TINY else base_name(base)
    if licence.prefix:
        stem = stem.removeprefix("Meta-")
        stem = stem if stem.startswith(licence.prefix) else f"{licence.prefix}-{stem}"
    named = f"{stem}-{language}{'-chat' if answers else ''}"
    return re.sub(r"[^\w.-]+", "-", named)[:MAX_NAME].strip("-.") or "model"


def _measures_table(facts: ModelFacts) -> Table:
    candidates = candidates_of(facts.scores)
    made = [each.name for each in CANDIDATES]
    # The model stands beside those that it was made of.
    names = [name for name in ("base", *made[: made.index(facts.candidate) + 1]) if name in candidates]
    tables = [candidates[name] for name in names]
    rows = []
    for path, _, label in MEASURES:
        values = [number(field(table, path)) for table in tables]
        if any(value is not None for value in values):
            rows.append((label, *map(human_percent if path in SHARES else figure, values)))
    retained = [table_of(table.get("retained")) for table in tables]
    codes, sources = (
        dict.fromkeys(code for table in retained for code in table),
        table_of(facts.recipe.get("sources")),
    )
    rows += [
        (
            f"bits per byte of {verdict.name_of_text(code, codes, sources)}, which the base could read",
            *(figure(table.get(code)) for table in retained),
        )
        for code in codes
    ]
    for task, by_candidate in named_tables(facts.scores.get("tasks"))[:MAX_TASKS]:
        entries = [table_of(by_candidate.get(name)) for name in names]
        metric = next((str(entry["metric"]) for entry in entries if entry.get("metric")), "")
        rows.append((f"{words_of(task)} ({metric})", *(figure(entry.get("value")) for entry in entries)))
    ends = list_of(field(candidates.get(facts.candidate), "bits_per_byte_interval"))
    note = ""
    if len(ends) == 2:
        note = f"95 % interval of its bits per byte: {figure(ends[0])} to {figure(ends[1])}. {ALONE_NOTE}"
    return Table("Scores", ("measure", *names), rows, note=note)


def _known_limits(facts: ModelFacts) -> list[str]:
    candidates = candidates_of(facts.scores)
    sentences = [
        "It was not tested for safety, bias or truth. Do not use its output as a source of facts.",
        "It also has the faults of its base. The base's own card may say what it was trained on.",
    ]
    sources = table_of(facts.recipe.get("sources"))
    changes = verdict.changes_of(facts.scores, facts.candidate)[: verdict.MAX_TEXTS]
    for change in changes:
        name = verdict.name_of_text(change.text, [each.text for each in changes], sources)
        end = ": it has forgotten part of what the base knew" if change.is_forgotten else ""
        sentences.append(f"{name[:1].upper()}{name[1:]} costs it {change.words}{end}.")
    sentences += chain.from_iterable(view_results("sentences", facts.scores, facts.candidate))
    sentences += [
        f"Quality gate: {verdict.check_words(check, facts.candidate, verdict.before(facts.scores))} {verdict.outcome_words(check)}."
        for check in verdict.lost_checks(facts.scores, facts.candidate)
        if ".retained" not in str(check.get("name"))  # the sentences before have it
    ]
    if share := number(field(facts.scores, "contamination.share")):
        sentences.append(
            f"{human_percent(share)} of the held-out documents share long passages with training text, so its scores are somewhat too good."
        )
    documents = number(field(candidates.get(facts.candidate), "num_documents"))
    if documents is not None:
        sentences.append(f"Its bits per byte are of {human_figure(documents)} held-out documents.")
    if not facts.scores:
        sentences.append("It has no scores.")
    if not facts.answers:
        return [*sentences, "It continues text. It was not trained to answer."]
    if facts.word in forms_of("model"):
        return [*sentences, "It answers as the models that were added do. It saw no chats in its language."]
    style = "It answers in the style of its chats. It guesses facts that they do not contain."
    return [*sentences, style, *_system_turn(facts)]


def _system_turn(facts: ModelFacts) -> list[str]:
    """The system turn that the chat template writes, and its author."""
    if base_turn := facts.chats.get("system_turn_left_out"):
        words = "In a chat without a system turn its chat template writes none, as it was taught (finetune.system: none)"
        return [f"{words}; that of its base writes: {base_turn}"]
    text = facts.chats.get("system_turn")
    author = "its base, with which it was taught (finetune.system sets another, or none)"
    if field(facts.recipe, "finetune.system"):
        author = "finetune.system"
    return (
        [f"In a chat without a system turn its chat template writes that of {author}: {text}"] if text else []
    )


def _training_facts(facts: ModelFacts) -> list[tuple[str, str]]:
    summary, rows = facts.training, []
    for key, label in (
        ("steps", "steps"), ("tokens", "tokens"), ("epochs", "passes over the text"), ("sequence_length", "tokens in a sequence"),
    ):  # fmt: skip
        if (value := number(summary.get(key))) is not None:
            rows.append((f"continued pre-training, {label}", human_figure(value)))
    if averaged := list_of(summary.get("average_of")):
        rows.append(
            (
                "weights",
                f"mean of {counted(len(averaged), 'checkpoint')}, the last at step {human_figure(number(averaged[-1]))}",
            )
        )
    for place, (_, phase) in enumerate(named_tables(summary.get("phases")), start=1):
        steps, rate = (human_figure(number(phase.get(key))) for key in ("steps", "lr"))
        rows.append((f"phase {place}", f"{phase.get('trains') or DASH}, {steps} steps, learning rate {rate}"))
    if (parameters := number(summary.get("parameters"))) is not None:
        rows.append(("parameters", short_count(parameters)))
    rows += [(key, str(summary[key])) for key in ("precision", "device") if summary.get(key)]
    if facts.word == "adapter":
        lora = field(facts.recipe, "finetune.trains") == "adapter"
        rows += [
            ("finetuning, chats", human_figure(number(facts.chats.get("kept")))),
            ("finetuning, steps", human_figure(number(facts.finetuning.get("steps")))),
            (
                "finetuning, trained",
                f"LoRA, rank {field(facts.recipe, 'finetune.rank')}" if lora else "all weights",
            ),
        ]
    return rows


def _stated(recipe: Json) -> str:
    return str(table_of(field(recipe, "report.licences")).get("base") or "")


def _fields(facts: ModelFacts, language: NamedLanguage, licence: Licence, name: str) -> Mapping[str, object]:
    public_base = facts.base if HUB_ID.fullmatch(facts.base) else ""
    return {
        "language": data_card.hub_language_codes(language.code),
        "license": licence.id,
        "license_name": licence.name if licence.id == "other" else "",
        "license_link": licence.link if licence.id == "other" else "",
        "base_model": public_base,
        "base_model_relation": "finetune" if public_base else "",
        "datasets": [
            each for each in table_of(field(facts.recipe, "report.licences")) if HUB_ID.fullmatch(each)
        ],
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [
            "anadil",
            "continued-pretraining",
            *(part.title.lower() for part in facts.steps.values()),
            *(["conversational"] if facts.answers else []),
        ],
        "model-index": _model_index(facts, name),
    }


def _model_index(facts: ModelFacts, name: str) -> list[Mapping[str, object]]:
    """The scores as the hub's model-index, of which it draws a table."""

    def result(dataset: Mapping[str, str], metrics: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        task = {"type": "text-generation", "name": "Text Generation"}
        return {"task": task, "dataset": dataset, "metrics": metrics}

    figures = candidates_of(facts.scores).get(facts.candidate, {})
    metrics = [
        {"type": metric, "name": label, "value": value}
        for path, metric, label in MEASURES
        if (value := number(field(figures, path))) is not None
    ]
    whose = "corpus" if (field(facts.scores, "heldout.source") or "corpus") == "corpus" else "recipe"
    results = (
        [result({"type": "held-out", "name": f"held-out text of the {whose}"}, metrics)] if metrics else []
    )
    for task, by_candidate in named_tables(facts.scores.get("tasks"))[:MAX_TASKS]:
        entry = table_of(by_candidate.get(facts.candidate))
        if (value := number(entry.get("value"))) is not None:
            metric = str(entry.get("metric") or "value")
            results.append(
                result({"type": task, "name": task}, [{"type": metric, "name": metric, "value": value}])
            )
    return [{"name": name, "results": results}] if results else []
