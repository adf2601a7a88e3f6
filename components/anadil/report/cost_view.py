"""Time and cost by stage, licences, and the cards that lie beside the artifacts."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY
from anadil.core.format import DASH, human_bytes, human_dollars, human_seconds, number
from anadil.core.stages import FLOW, Stage
from anadil.plan.instances import Machine, machines, plain_name
from anadil.report.elements import TextTable
from anadil.report.format import clip
from anadil.report.read import Facts, Json, field

CARDS = {
    "model": "the adapted model's own card",
    "adapter": "the finetuned model's own card",
    "corpus": "the corpus's own card",
}
CARD_FILES = ("README.md", "card.md", "merged/README.md")
"""Where a card lies in an artifact, in the order in which it is looked for."""
OWN = "Apache-2.0, a part of anadil"
NOT_STATED = "not stated; name it in report.licences"
MODEL_CARD, DATA_CARD = "model_card.md", "data_card.md"
"""Files beside the page, which the report stage writes."""
OWN_CARDS = {"Model card": MODEL_CARD, "Data card": DATA_CARD}
SUBJECTS = ("base", "text", "chats")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A link from the page to a file of another artifact, beside which it lies."""

    label: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """Time and cost of the run."""

    lead: str
    table: TextTable
    seconds: float
    dollars: float | None
    """Cost of the stages with a known price; None if there are none."""
    licences: TextTable
    cards: tuple[Card, ...]


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


def cost_view(facts: Facts) -> CostView:
    """By the manifests of the artifacts that the page was made from."""
    summaries = {"model": facts.training_summary, "adapter": facts.finetuning_summary}
    rows = stage_costs(facts.manifests, summaries)
    seconds = sum(row.seconds for row in rows)
    priced = [row.dollars for row in rows if row.dollars is not None]
    dollars = sum(priced) if priced else None
    lead = f"{human_seconds(seconds)} of computing" if rows else "No stage recorded its time"
    if dollars is not None:
        lead += f", {human_dollars(dollars)} at on-demand prices"
    return CostView(
        lead=f"{lead}.",
        table=_table(rows, seconds, dollars),
        seconds=seconds,
        dollars=dollars,
        licences=_licences(facts),
        cards=_cards(facts),
    )


def stage_costs(manifests: Mapping[str, Manifest], summaries: Mapping[str, Json]) -> list[StageCost]:
    """Time and cost of each stage whose artifact exists, in the order of the flow."""
    rows = (
        _stage_cost(stage, manifests[stage.writes], summaries.get(stage.writes, {}))
        for stage in FLOW
        if stage.writes in manifests
    )
    return [row for row in rows if row]


def _stage_cost(stage: Stage, manifest: Manifest, summary: Json) -> StageCost | None:
    seconds = number(manifest.figures.get("seconds"))
    if seconds is None:
        return None
    # A manifest tells of the last start; training counts all of them.
    seconds = max(float(seconds), float(number(summary.get("seconds")) or 0.0))
    type_, nodes = _machine(stage, manifest.recipe)
    price = type_.on_demand if type_ else None
    name = (
        f"{nodes} \N{MULTIPLICATION SIGN} {type_.name}" if type_ else clip(summary.get("device") or DASH, 60)
    )
    memory = number(summary.get("peak_memory_bytes"))
    return StageCost(
        name=stage.name,
        seconds=seconds,
        machine=name,
        per_hour=None if price is None else price * nodes,
        origin=type_.checked if type_ and price is not None else "",
        memory=None if memory is None else float(memory),
    )


def _machine(stage: Stage, recipe: Json) -> tuple[Machine | None, int]:
    """Type and number of the machines that the recipe of an artifact named for stages with a model."""
    name, nodes = field(recipe, "cluster.instance"), field(recipe, "cluster.nodes")
    if not stage.uses_model or not isinstance(name, str):
        return None, 1
    known = {each.name: each for each in machines()}
    return known.get(plain_name(name)), int(number(nodes) or 1) if stage.distributed else 1


def _table(rows: list[StageCost], seconds: float, dollars: float | None) -> TextTable:
    """A row for each stage; columns of which nothing is known are left out."""
    priced = any(row.per_hour is not None for row in rows)
    memory = any(row.memory is not None for row in rows)
    columns = [
        "stage",
        "time",
        "machine",
        *(["peak memory"] if memory else []),
        *(["USD an hour", "cost"] if priced else []),
    ]
    cells = [
        (
            row.name, human_seconds(row.seconds), row.machine, *([human_bytes(row.memory)] if memory else []),
            *([human_dollars(row.per_hour), human_dollars(row.dollars)] if priced else []),
        )
        for row in rows
    ]  # fmt: skip
    total = (
        "together",
        human_seconds(seconds),
        "",
        *([""] if memory else []),
        *(["", human_dollars(dollars)] if priced else []),
    )
    origins = sorted({row.origin for row in rows if row.origin})
    note = (
        f"On-demand prices of the instance table ({'; '.join(origins)})."
        if origins
        else ("No price: cluster.instance is not a machine type of the price table." if rows else "")
    )
    return TextTable(
        caption="Time and cost by stage", columns=tuple(columns), rows=tuple([*cells, total] if rows else []), words=(2,), note=note
    )  # fmt: skip


def _licences(facts: Facts) -> TextTable:
    """Licences that the recipe states, and those that it does not state."""
    stated = _own_licences(facts) | {
        name: clip(text, 200) for name, text in facts.recipe.report.licences.items()
    }
    needed = [name for name in SUBJECTS if name != "chats" or facts.mask_audit]
    names = [*needed, *(name for name in stated if name not in needed)]
    rows = tuple((clip(name, 60), stated.get(name, NOT_STATED)) for name in names)
    return TextTable(
        caption="Licences, as the recipe states them", columns=("of", "licence"), rows=rows, words=(1,)
    )


def _own_licences(facts: Facts) -> dict[str, str]:
    """Licences of data and models that come with this program."""
    recipe = facts.recipe
    inputs = {"text": recipe.clean.inputs, "chats": recipe.finetune.inputs}
    licences = {
        name: OWN
        for name, places in inputs.items()
        if places and all(place.startswith(storage.BUILT_IN) for place in places)
    }
    return licences | ({"base": OWN} if recipe.base.model == TINY else {})


def _cards(facts: Facts) -> tuple[Card, ...]:
    """Links to the cards beside the page, and to those of artifacts that are in one storage with it."""
    cards = [Card(label=label, link=link) for label, link in OWN_CARDS.items()]
    for word, label in CARDS.items():
        manifest = facts.manifests.get(word)
        name = next((file for file in CARD_FILES if manifest and file in manifest.files), None)
        place = facts.places.get(word)
        if name and place:
            cards.append(Card(label=label, link=posixpath.join(place, name)))
    return tuple(cards)
