"""Measures of one candidate, while it alone is in memory."""

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate import generate
from anadil.evaluate.answers import measure_answers
from anadil.evaluate.bits_per_byte import bits_by_group, domain_figures
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.measures import Evaluators
from anadil.evaluate.models import EncodedDocuments, Measurements, ScoredModel, open_candidate
from anadil.evaluate.questions import Questions
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document, beginning_of
from anadil.text.language_data import Language
from anadil.text.metrics import bits_per_byte, fertility, words_in_context

log = logging.getLogger(__name__)

NUM_BEGINNINGS = 5
NUM_CONTINUED = 40
"""Beginnings that are continued greedily: where a quarter of the texts loop, the interval of 40 ends at 0.40. Of six it
ends at 0.6 and holds the limit of 0.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Texts and questions for every candidate."""

    heldout: EncodedDocuments
    retained: EncodedDocuments
    questions: Questions
    references: dict[str, list[NDArray[np.int32]]]
    """Token ids of the right answers, by candidate."""
    measures: Evaluators


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScores:
    """Scores of one candidate."""

    table: dict[str, Any]
    """Its entry in `scores.json`."""
    nats: NDArray[np.float64]
    """By document."""
    retained: NDArray[np.float64]
    """By document of `evaluate.retained`."""
    answers: NDArray[np.float64]
    """Nats of the right answer, by question."""
    measurements: Measurements
    """All that was measured of it, for a later run."""


def measure(
    candidate: ScoredModel, material: Material, recipe: Recipe, language: Language,
    known: Iterable[Measurements] = (),
) -> ModelScores:  # fmt: skip
    """Score one candidate, let it write, and free its memory; what is `known` of it is not measured again."""
    loaded = open_candidate(candidate, recipe, known)
    nats = loaded.nats(material.heldout.ids[candidate.name])
    retained = loaded.nats(material.retained.ids[candidate.name])
    # The added beginnings serve the loop rate, which counts greedy texts only.
    modes: tuple[tuple[generate.Mode, ...], ...] = (generate.DECODING_MODES, ("greedy",))
    written = [
        generate.generate_texts(
            loaded.decoder(), candidate.tokenizer, prompts, max_new_tokens=recipe.evaluate.max_new_tokens, seed=recipe.seed,
            name=candidate.name, modes=each,
        )
        for each, prompts in zip(modes, _prompts(candidate, recipe, language, material.heldout.documents), strict=True)
    ]  # fmt: skip
    answers = measure_answers(
        loaded, material.questions, material.references.get(candidate.name, ()), recipe.seed
    )
    texts = generate.with_languages([*itertools.chain(*written), *answers.generations], language)
    of_use = [text for text in texts if generate.is_of_use(text.kind, answers=candidate.answers)]
    table = (
        text_figures(material.heldout, candidate.name, nats, recipe, language)
        | domain_figures(material.heldout.documents, material.heldout.num_bytes, nats, recipe.seed)
        | answers.table
        | {
            "parameters": loaded.parameters,
            "context": loaded.context,
            "stride": loaded.stride,
            "window_bos": None if candidate.bos is None else candidate.tokenizer.decode([candidate.bos]),
            "dtype": loaded.dtype,
            "device": loaded.device,
            "retained": bits_by_group(
                material.retained.num_bytes, retained, [each.lang for each in material.retained.documents]
            ),
            "repetition": generate.repetition_of(of_use),
            "output_language": generate.output_language(of_use, language),
            "generations": [asdict(text) for text in texts],
        }
    )
    entries = {name: each.measure(loaded, table) for name, each in material.measures.items()}
    table |= {name: entry for name, entry in entries.items() if entry is not None}
    log.info(
        "%s: %.4f bits per byte, %.3f tokens per word", candidate.name, table["bits_per_byte"], table["fertility"]
    )  # fmt: skip
    if not loaded.is_loaded:
        log.info("%s: an earlier run measured all of it, so its weights were not loaded", candidate.name)
    elif loaded.memory.taken:
        log.info(
            "%s: %d texts and prompts were measured in an earlier run",
            candidate.name,
            loaded.memory.taken,
        )
    loaded.free()
    return ModelScores(
        table=table, nats=nats, retained=retained, answers=answers.nats, measurements=loaded.memory.now
    )


def text_figures(
    encoded: EncodedDocuments, name: str, nats: NDArray[np.float64], recipe: Recipe, language: Language
) -> dict[str, Any]:
    """Bits per byte with its interval, tokens per word, and the counts that they are made of."""
    num_tokens = sum(len(ids) for ids in encoded.ids[name])
    num_words = sum(len(language.words(document.text)) for document in encoded.documents)
    num_bytes = int(encoded.num_bytes.sum())
    alone = paired_difference(nats, np.zeros_like(nats), encoded.num_bytes, recipe.seed)
    tokens_per_word = fertility(num_tokens, num_words)
    return {
        "bits_per_byte": bits_per_byte(float(nats.sum()), num_bytes),
        "fertility": tokens_per_word,
        "bytes_per_token": num_bytes / num_tokens,
        "words_in_context": words_in_context(recipe.context, tokens_per_word),
        "num_documents": len(encoded.documents),
        "num_words": num_words,
        "num_bytes": num_bytes,
        "num_tokens": num_tokens,
        "nats": float(nats.sum()),
        "bits_per_byte_interval": [alone.low, alone.high],
    }


def _prompts(
    candidate: ScoredModel, recipe: Recipe, language: Language, heldout: Sequence[Document]
) -> tuple[list[generate.GenerationPrompt], list[generate.GenerationPrompt]]:
    """Return the prompts of the recipe or the language, and held-out beginnings that make them enough for a verdict."""
    openings = openings_of(heldout)
    beginnings = recipe.evaluate.prompts or language.prompts or openings[:NUM_BEGINNINGS]
    more = [text for text in openings if text not in beginnings][: max(0, NUM_CONTINUED - len(beginnings))]
    tokenizer: Any = candidate.tokenizer
    chat = candidate.answers and tokenizer.chat_template is not None
    if candidate.answers and not chat:
        log.warning("%s: has no chat template; questions are asked as plain text", candidate.path)
    shown = [
        *(generate.GenerationPrompt(text=text, kind="continuation") for text in beginnings),
        *(generate.GenerationPrompt(text=text, kind="answer", chat=chat) for text in language.questions),
    ]
    return shown, [generate.GenerationPrompt(text=text, kind="continuation") for text in more]


def openings_of(documents: Sequence[Document]) -> list[str]:
    """First words of documents, each once, for a model to continue."""
    openings = [beginning_of(document.text) for document in documents[:NUM_CONTINUED]]
    return list(dict.fromkeys(filter(None, openings)))
