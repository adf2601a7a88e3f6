"""The corpora of a model, one or one of each source: facts, sums over them, a row for each."""

from collections.abc import Mapping, Sequence

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.storage import BUILT_IN
from anadil.core.format import DASH, human_bytes, human_count, human_figure, human_percent, number
from anadil.core.table import Table
from anadil.recipe.filter_rules import NO_RULES
from anadil.report.format import ratio
from anadil.report.licence import licence_of
from anadil.report.read import CorpusFacts, Json, field, list_of, table_of
from anadil.runtime.job import by_source

NOT_STATED = "not stated"
REASONS = {"heldout": "held-out text", "duplicate": "duplicates", "near_duplicate": "near duplicates"}
"""Figure of the stage `overlap` -> its name on the page."""
HELD_IN = "in_"
AS_IS = "The corpus was clean already (clean.as_is): texts are as they came. Empty documents and copies were dropped."
NO_RULE_JUDGED = "No rule judged the documents (clean.rules: none). Empty ones and duplicates were dropped."

PAIRS_JUDGED = (
    "Pairs were judged by their two sides: missing, equal, of very different length, swapped, in another language. {} sides were "
    "too short to tell their language, and stayed."
)


def directions_of(stats: Json) -> int:
    """Documents that each record of a corpus became: two of parallel text."""
    return int(number(field(stats, "pairs.directions")) or 1)


def stated_licence(recipe: Json, of: str) -> str:
    """Licence of `base`, `text` or `chats`: from the recipe, or of data that comes with the program.

    That of the text of a source has the source's name, else it is that of all text. What the base wrote has the base's.
    """
    licences = table_of(field(recipe, "report.licences"))
    sources = table_of(recipe.get("sources")) if of == "text" else {}
    of = "base" if any(table_of(each).get("written_by") for each in sources.values()) else of
    names = [*(sources if len(sources) == 1 else []), of]
    if stated := next((licences[name] for name in names if licences.get(name)), ""):
        return str(stated)
    if of == "base":
        return licence_of(str(field(recipe, "base.model"))).name
    places = list_of(field(recipe, {"text": "clean.inputs", "chats": "finetune.inputs"}.get(of, of)))
    built_in = bool(places) and all(str(place).startswith(BUILT_IN) for place in places)
    return "Apache-2.0" if built_in else ""


def rules_note(stats: Json) -> str:
    """Return a sentence where a corpus was made without rules, else nothing."""
    if pairs := table_of(stats.get("pairs")):
        unjudged = sum(
            int(number(table_of(side).get("unjudged")) or 0) for side in table_of(pairs.get("sides")).values()
        )
        return PAIRS_JUDGED.format(human_figure(unjudged))
    if stats.get("as_is"):
        return AS_IS
    return NO_RULE_JUDGED if stats.get("limits") == NO_RULES else ""


def corpora_table(corpora: Sequence[CorpusFacts], training: Json) -> Table:
    """A row for each source, with its share of the tokens that were trained on; none without sources."""
    named = [each for each in corpora if each.source]
    tokens = {each.source: number(field(training, f"sources.{each.source}.tokens")) for each in named}
    total = sum(count or 0 for count in tokens.values())
    rows = [
        (
            each.source, each.language, *(human_count(number(each.stats.get(key))) for key in ("in", "kept", "words_out")),
            human_bytes(number(each.stats.get("bytes_out"))), human_percent(ratio(total, tokens[each.source])),
            stated_licence(each.recipe, "text") or _licences(each.stats),
        )
        for each in named
    ]  # fmt: skip
    columns = (
        "source", "language", "documents read", "documents kept", "words", "text", "share of training", "licence",
    )  # fmt: skip
    note = "Share of training: of all tokens that the model was trained on." if total else ""
    return Table("Sources of the mixture", columns, rows, words=(1, 7), note=note)


def overlap_table(manifests: Mapping[str, Manifest]) -> Table:
    """A row for each source that was compared with the others, with what training leaves out of it and why."""
    rows = []
    for source, manifest in by_source("overlap", manifests).items():
        counts = {key: number(manifest.figures.get(key)) for key in ("documents", *REASONS, "remaining")}
        # The figures name each source that holds some of its documents.
        holders = [
            f"{key.removeprefix(HELD_IN)}: {human_figure(count)}"
            for key, count in manifest.figures.items()
            if key.startswith(HELD_IN)
        ]
        share = ratio(counts["documents"], sum(counts[reason] or 0 for reason in REASONS))
        rows.append(
            (source, *map(human_figure, counts.values()), human_percent(share), ", ".join(holders) or DASH)
        )
    columns = (
        "source",
        "documents to train on",
        *REASONS.values(),
        "remaining",
        "left out",
        "which stand in",
    )
    note = (
        "Held-out text: 13 words in a row of a held-out document of another source, which few documents hold. "
        "Of documents that are alike in two sources, that of the earlier one stays."
    )
    return Table(
        "Documents that training leaves out for another source", columns, rows, words=(7,), note=note
    )


def _licences(stats: Json) -> str:
    names = [name or NOT_STATED for name in table_of(stats.get("by_licence"))]
    return ", ".join([*names[:3], *(["others"] if len(names) > 3 else [])]) or NOT_STATED
