"""Time and cost by stage, licences, and the cards that lie beside the artifacts."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import BUILT_IN, TINY
from anadil.core.candidates import CANDIDATES
from anadil.core.format import DASH, human_bytes, human_dollars, human_seconds, number
from anadil.core.stages import FLOW
from anadil.core.table import Table
from anadil.estimate.instances import machines, plain_name
from anadil.page.format import clip
from anadil.page.licence import licence_of
from anadil.page.values import Json, field
from anadil.report.read import Facts
from anadil.runtime.flow import Step
from anadil.runtime.job import by_source, word_of

CARDS = {
    **{each.kind: f"the {each.name} model's own card" for each in CANDIDATES},
    "corpus": "the corpus's own card",
}
CARD_FILES = ("README.md", "card.md", "merged/README.md")
"""Places of a card in an artifact, in the order of the search."""
OWN = "Apache-2.0, a part of anadil"
NOT_STATED = "not stated; name it in report.licences"
MODEL_CARD, DATA_CARD = "model_card.md", "data_card.md"
"""Files beside the page, which the report stage writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Time and cost of one stage."""

    name: str
    seconds: float
    machine: str
    per_hour: float | None
    """USD, all nodes together."""
    origin: str
    """Date and source of the price."""
    memory: float | None

    @property
    def dollars(self) -> float | None:
        """Cost of the time."""
        return None if self.per_hour is None else self.seconds / 3600 * self.per_hour


def cost_view(facts: Facts) -> dict[str, Any]:
    """Build the section by the manifests of the artifacts, by the names of the template.

    `dollars` is the cost of the stages with a known price, None without any.
    """
    summaries = {"model": facts.training_summary, "adapter": facts.finetuning_summary}
    rows = stage_costs(facts.manifests, summaries)
    seconds = sum(row.seconds for row in rows)
    priced = [row.dollars for row in rows if row.dollars is not None]
    dollars = sum(priced) if priced else None
    lead = f"{human_seconds(seconds)} of computing" if rows else "No stage recorded its time"
    if dollars is not None:
        lead += f", {human_dollars(dollars)} at on-demand prices"
    cards = [("Model card", MODEL_CARD), ("Data card", DATA_CARD)]
    # Beside the page, and those of artifacts that are in one storage with it.
    for word, label in CARDS.items():
        for source, manifest in by_source(word, facts.manifests).items():
            place = facts.places.get(word_of(word, source))
            name = next((file for file in CARD_FILES if file in manifest.files), None)
            if name and place:
                cards.append((f"{label}: {source}" if source else label, posixpath.join(place, name)))
    return {
        "lead": f"{lead}.",
        "table": _table(rows, seconds, dollars),
        "seconds": seconds,
        "dollars": dollars,
        "licences": _licences(facts),
        "cards": cards,
    }


def stage_costs(manifests: Mapping[str, Manifest], summaries: Mapping[str, Json]) -> list[StageCost]:
    """Time and cost of each stage whose artifact exists and names its time, in the order of the flow."""
    rows = []
    for stage in FLOW:
        summary = summaries.get(stage.writes, {})
        for source, manifest in by_source(stage.writes, manifests).items():
            if (seconds := number(manifest.figures.get("seconds"))) is None:
                continue
            name, num_nodes = (field(manifest.recipe, f"cluster.{key}") for key in ("instance", "nodes"))
            machine, nodes = None, int(number(num_nodes) or 1) if stage.training else 1
            if stage.pod.uses_model and isinstance(name, str):
                machine = next((each for each in machines() if each.name == plain_name(name)), None)
            price = machine.on_demand if machine else None
            memory = number(summary.get("peak_memory_bytes"))
            device = clip(summary.get("device") or DASH, 60)
            row = StageCost(
                name=Step(stage=stage, source=source).name,
                # A manifest tells of the last start; training counts all of them.
                seconds=max(float(seconds), float(number(summary.get("seconds")) or 0.0)),
                machine=f"{nodes} \N{MULTIPLICATION SIGN} {machine.name}" if machine else device,
                per_hour=None if price is None else price * nodes,
                origin=machine.checked if machine and price is not None else "",
                memory=None if memory is None else float(memory),
            )
            rows.append(row)
    return rows


def _table(rows: list[StageCost], seconds: float, dollars: float | None) -> Table:
    """A row for each stage; unknown columns are skipped."""
    priced = any(row.per_hour is not None for row in rows)
    memory = any(row.memory is not None for row in rows)

    def cells(name: str, time: str, machine: str, peak: str, *costs: str) -> tuple[str, ...]:
        return (name, time, machine, *([peak] if memory else []), *(costs if priced else []))

    table = [
        cells(
            row.name, human_seconds(row.seconds), row.machine, human_bytes(row.memory),
            human_dollars(row.per_hour), human_dollars(row.dollars),
        )
        for row in rows
    ]  # fmt: skip
    total = cells("together", human_seconds(seconds), "", "", "", human_dollars(dollars))
    note = "No price: cluster.instance is not a machine type of the price table." if rows else ""
    if origins := sorted({row.origin for row in rows if row.origin}):
        note = f"On-demand prices of the instance table ({'; '.join(origins)})."
    columns = cells("stage", "time", "machine", "peak memory", "USD an hour", "cost")
    return Table("Time and cost by stage", columns, [*table, total] if rows else [], words=(2,), note=note)


def _licences(facts: Facts) -> Table:
    recipe = facts.recipe
    texts = {name: source.inputs for name, source in recipe.sources.items()} or {"text": recipe.clean.inputs}
    inputs = texts | {"chats": recipe.finetune.inputs}
    built_in = {
        name: OWN
        for name, places in inputs.items()
        if places and all(place.startswith(storage.BUILT_IN) for place in places)
    }
    licence = licence_of(recipe.base.model)
    base = (
        {"base": OWN if recipe.base.model == TINY else licence.name} if recipe.base.model in BUILT_IN else {}
    )
    of_all = recipe.report.licences.get("text")
    texts_stated = dict.fromkeys(recipe.sources, clip(of_all, 200)) if of_all else {}
    given = {name: clip(text, 200) for name, text in recipe.report.licences.items()}
    stated = built_in | base | texts_stated | given
    needed = ["base", *texts, *(["chats"] if facts.mask_audit else [])]
    rows = [(clip(name, 60), stated.get(name, NOT_STATED)) for name in dict.fromkeys([*needed, *stated])]
    return Table("Licences, as the recipe states them", ("of", "licence"), rows, words=(1,))
