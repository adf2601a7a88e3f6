"""Measures of a candidate before training: bits per byte, tokens a word, cost of a billion words, language of its output."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.artifacts.prefetch import fetch
from anadil.artifacts.scored_text import RETAINED_KEY, RETAINED_TEXT, read_retained
from anadil.bases.candidates import LEFT_OUT, Candidate, Refused, with_base
from anadil.bases.extrapolate import Curve, Extrapolation
from anadil.core.errors import AnadilError, DataError, message_of
from anadil.core.format import one_line
from anadil.core.stages import STAGES
from anadil.estimate.instances import Machine, machine, this_machine
from anadil.estimate.model_shape import shape_from
from anadil.evaluate import generate, models
from anadil.evaluate.candidate import openings_of, text_figures
from anadil.evaluate.heldout import digest_of, read_heldout
from anadil.model.template_limits import RAISED
from anadil.page.values import last_part
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import execute
from anadil.runtime.flow import recipe_of_step
from anadil.runtime.job import external_files, external_side_files
from anadil.text.corpus import Document
from anadil.text.language import known_languages, load_language
from anadil.text.language_data import Language
from anadil.text.letters import script_of
from anadil.text.metrics import words_in_context

log = logging.getLogger(__name__)

ENGLISH = "en"
NUM_BEGINNINGS = 24
"""Held-out beginnings that each candidate continues. A choice: a share of a half is known to .2."""
MAX_FAULT = 120
"""Characters of what a chat template says of its fault."""
BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The text that every candidate is measured on."""

    taught: tuple[Document, ...]
    english: tuple[Document, ...]
    places: Mapping[str, str]
    """Where each of the two comes from."""

    def table(self) -> dict[str, Any]:
        """Entry of the JSON."""
        return {
            name: {
                "from": self.places[name], "num_documents": len(documents), "sha256": digest_of(documents),
                "num_bytes": sum(len(each.text.encode()) for each in documents),
            }
            for name, documents in (("taught", self.taught), ("english", self.english))
        }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Measured:
    """A candidate with its figures."""

    candidate: Candidate
    scored: models.ScoredModel
    encoded: dict[str, models.EncodedDocuments]
    """`taught` and `english` in its tokens."""
    nats: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    after: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """The same after its short run, if there was one."""
    curve: Curve | None = None
    """Its scores on the way, if they are enough to extrapolate."""
    extrapolation: Extrapolation | None = None
    table: dict[str, Any] = field(default_factory=dict)
    """Its entry in the JSON."""

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """Bytes of each document in the taught language."""
        return self.encoded["taught"].num_bytes


def corpora_of(recipe: Recipe) -> dict[str, Path]:
    """Find the corpus of each source in the taught language, by source, or make it as `anadil run` does."""
    stage, corpora = STAGES["clean"], {}
    for source in recipe.target_sources or ("",):
        part, _ = recipe_of_step(stage, recipe, source)
        corpora[source] = fetch(execute(stage, part, {}, (), None).uri, stage.writes)[0]
    return corpora


def read_texts(recipe: Recipe, most_bytes: int) -> Texts:
    """Read the recipe's held-out text and English, of each about `most_bytes` spread evenly over all documents."""
    stage = STAGES["evaluate"]
    files, field_name = external_files(stage, recipe), recipe.clean.text_field
    corpora = {} if files else corpora_of(recipe)
    heldout = read_heldout([*corpora.values()], files, field_name, recipe.language_code)
    given = external_side_files(stage, recipe).get(RETAINED_KEY, ())
    english = [each for each in read_retained(given, field_name) if each.lang == ENGLISH]
    if given and not english:
        log.warning("%s: names no English, so the built-in text is taken", RETAINED_KEY)
    is_given = bool(given and english)
    english = english or [*read_retained()]
    return Texts(
        taught=_spread(heldout.documents, most_bytes),
        english=_spread(english, most_bytes),
        places={
            "taught": _named("evaluate.heldout", files) if files else "the corpus's held-out part",
            "english": _named(RETAINED_KEY, given) if is_given else RETAINED_TEXT,
        },
    )


def _named(key: str, files: Sequence[str]) -> str:
    # A page is passed on, and names no place of a machine.
    return f"{key} ({', '.join(map(last_part, files))})"


def _spread(documents: Sequence[Document], most_bytes: int) -> tuple[Document, ...]:
    # The first of a file may be of one kind.
    num_bytes = sum(len(each.text.encode()) for each in documents)
    return tuple(documents[:: max(1, -(-num_bytes // most_bytes))])


def encode(candidates: Sequence[Candidate], texts: Texts) -> tuple[list[Measured], list[Refused]]:
    """Encode the texts with each candidate's tokenizer. A document that a tokenizer alters is skipped for all."""
    opened: list[Measured] = []
    refused = []
    for each in candidates:
        try:
            scored = models.open_model(
                each.slug, each.path, answers=each.declared["has_template"], digest=each.digest
            )
            encoded = {
                kind: models.encode_for_all((scored,), documents)
                for kind, documents in (("taught", texts.taught), ("english", texts.english))
            }
            opened.append(Measured(candidate=each, scored=scored, encoded=encoded))
        except LEFT_OUT as error:
            refused.append(_left_out(each, error))
    for kind in ("taught", "english"):
        altered = {name for one in opened for name in one.encoded[kind].altered}
        for one in opened:
            one.encoded[kind] = _without(one.encoded[kind], one.scored.name, altered)
    return opened, refused


def _left_out(candidate: Candidate, error: AnadilError) -> Refused:
    log.warning("%s: left out: %s", candidate.name, message_of(error))
    return Refused(name=candidate.name, error=error)


def _without(encoded: models.EncodedDocuments, name: str, altered: set[str]) -> models.EncodedDocuments:
    chosen = [place for place, each in enumerate(encoded.documents) if each.id not in altered]
    return models.EncodedDocuments(
        documents=tuple(encoded.documents[place] for place in chosen),
        ids={name: [encoded.ids[name][place] for place in chosen]},
        altered=tuple(sorted(altered)),
    )


def measure(opened: Sequence[Measured], recipe: Recipe, work: Path) -> tuple[list[Measured], list[Refused]]:
    """Measure the candidates one after another. What an earlier start measured in `work` is not measured again."""
    language = load_language(recipe.language)
    kind = recipe.cluster.instance
    chosen = this_machine() if kind is None else machine(kind)
    measured, refused = [], []
    for each in opened:
        try:
            _measure(each, recipe, language, work / "measured" / each.candidate.digest)
            each.table["billion_words"] = _billion_words(each, recipe, chosen)
            measured.append(each)
        except LEFT_OUT as error:
            refused.append(_left_out(each.candidate, error))
    return measured, refused


def _measure(each: Measured, recipe: Recipe, language: Language, folder: Path) -> None:
    name, candidate = each.scored.name, each.candidate
    folder.mkdir(parents=True, exist_ok=True)
    loaded = models.open_candidate(each.scored, recipe, models.read_measurements(folder))
    each.nats = {kind: loaded.nats(encoded.ids[name]) for kind, encoded in each.encoded.items()}
    prompts = [
        generate.GenerationPrompt(text=text, kind="continuation")
        for text in openings_of(each.encoded["taught"].documents)[:NUM_BEGINNINGS]
    ]
    questions, not_asked = _questions(each, language)
    prompts += questions
    written = generate.generate_texts(
        loaded.decoder(), each.scored.tokenizer, prompts, max_new_tokens=recipe.evaluate.max_new_tokens, seed=recipe.seed,
        name=name, modes=("greedy",),
    )  # fmt: skip
    languages = {"taught": language, "english": load_language(ENGLISH)}
    figures = {
        kind: text_figures(encoded, name, each.nats[kind], recipe, languages[kind])
        for kind, encoded in each.encoded.items()
    }
    longest = candidate.config.get("max_position_embeddings")
    words = words_in_context(longest, figures["taught"]["fertility"]) if isinstance(longest, int) else None
    each.table = candidate.table() | figures | {
        "parameters": loaded.parameters, "active_parameters": loaded.parameters - _idle(candidate), "context": loaded.context,
        "context_bytes": round(loaded.context * figures["taught"]["bytes_per_token"]),
        "longest_context": longest, "words_in_longest_context": words,
        "text_begins_with": each.scored.tokenizer.decode([each.scored.prefix]),
        "output": output_table(generate.with_languages(written, language), language) | {"not_asked": not_asked},
    }  # fmt: skip
    loaded.memory.now.texts = {**loaded.memory.earlier.texts, **loaded.memory.now.texts}
    loaded.memory.now.written = {**loaded.memory.earlier.written, **loaded.memory.now.written}
    models.write_measurements(folder, [loaded.memory.now])
    loaded.free()


def _questions(each: Measured, language: Language) -> tuple[list[generate.GenerationPrompt], str | None]:
    """Questions that the base's chat template writes, and the reason why it writes none."""
    if not each.candidate.declared["has_template"]:
        return [], None
    asked = [generate.GenerationPrompt(text=text, kind="answer", chat=True) for text in language.questions]
    try:
        if all(generate.prompt_ids(each.scored.tokenizer, question) for question in asked):
            return asked, None
        fault = "it writes nothing"
    except (*RAISED, DataError) as error:
        fault = one_line(str(error), MAX_FAULT)
    log.warning(
        "%s: is asked no questions: its chat template does not write them: %s", each.candidate.name, fault
    )
    return [], f"its chat template does not write them: {fault}"


def _idle(candidate: Candidate) -> int:
    """Parameters that a token does not meet: other experts."""
    try:
        shape = shape_from(candidate.config, candidate.name)
    except LEFT_OUT:  # sizes that only its own class knows: no mixture
        return 0
    return shape.idle * shape.layers


def output_table(texts: Sequence[generate.GeneratedText], language: Language) -> dict[str, Any]:
    """Shares of texts by the language and script that they are in, and the texts."""
    names = {row.cld2: row.name for row in known_languages().values() if row.cld2} | {
        language.code: language.name
    }
    rows, counts = [], Counter[tuple[str, str]]()
    for text in texts:
        letters = [*filter(str.isalpha, text.text)]
        own_script = 2 * sum(map(language.is_script, letters)) >= len(letters)
        script = language.script if own_script else script_of(letters)
        if text.language is not None:
            counts[text.language, script] += 1
        rows.append({
            "kind": text.kind, "prompt": text.prompt, "text": text.text, "language": text.language,
            "script": script if letters else None,
        })  # fmt: skip
    num = counts.total()
    other = sum(count for (_, script), count in counts.items() if script != language.script)
    return {
        "num_texts": len(rows), "num_identified": num, "texts": rows,
        "own_share": counts[language.code, language.script] / num if num else None,
        "other_script_share": other / num if num else None,
        "languages": [
            {"code": code, "name": names.get(code, "not identified"), "script": script, "share": count / num}
            for (code, script), count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        ],
    }  # fmt: skip


def _billion_words(each: Measured, recipe: Recipe, chosen: Machine) -> dict[str, Any]:
    """Memory of a device, hours and USD to train on a billion words in the candidate's own vocabulary."""
    keeps = recipe.tokenizer.model_copy(update={"strategies": ("base",), "choice": "base", "trial": None})
    planned = with_base(recipe, each.candidate.base).model_copy(update={"tokenizer": keeps})
    nodes = recipe.cluster.nodes if recipe.cluster.instance else 1
    tokens = BILLION * each.table["taught"]["fertility"]
    table: dict[str, Any] = {"machine": chosen.name, "nodes": nodes, "tokens": round(tokens)}
    try:
        request = request_for(each.candidate.slug, planned, chosen, nodes, None, then=())
        plan = build_plan(request, choose_layout(request))
    except LEFT_OUT as error:
        return table | {"why_not": message_of(error)}
    memory, rate, price = plan.peak.memory, plan.phases[-1].tokens_per_s, plan.cost.on_demand.per_hour
    table |= {
        "memory_bytes": memory.total_bytes,
        "device_bytes": memory.device_bytes,
        "verdict": plan.verdict,
    }
    if rate and plan.time.hours:
        best = tokens / rate / 3600
        ends = (plan.expected_hours, plan.time.hours_low, plan.time.hours_high)
        hours = [None if end is None else best * end / plan.time.hours for end in ends]
        table |= dict(zip(("hours", "hours_low", "hours_high"), hours, strict=True))
        table["usd"] = None if price is None or hours[0] is None else price * hours[0]
    return table
