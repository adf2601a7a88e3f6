"""Estimate of a retraining's cost, and of a run from the base, by the champion's own rates.

Documents and tokens follow from the bytes of the new files as they did for the champion, and the time of each stage from
the time that it took then. So a machine, a tokenizer and a kind of text count as they are, and nothing is assumed of them.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, read_table, root_of
from anadil.core.errors import BudgetReached, RecipeError
from anadil.core.format import DASH, human_dollars, human_hours, number, short_count
from anadil.plan.text_use import TextSize, plan_text
from anadil.preflight.text_size import text_bytes
from anadil.recipe.retrain import part_name
from anadil.recipe.sections import Recipe
from anadil.report.cost_view import stage_costs
from anadil.report.read import table_of
from anadil.retrain.derive import KEPT, OF_TEXT
from anadil.retrain.lineage import Lineage, Made, chats_of
from anadil.retrain.new_files import Inputs
from anadil.runtime.cache_key import INPUT
from anadil.runtime.flow import Step
from anadil.runtime.job import word_of

KEY = "retrain.max_usd"
MODELS = ("model", "merged", "adapter")
BEHIND = ("merged", "adapter", "tasks", "scores")
"""Artifacts of the champion's run that are made of its model, in the order of the flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Estimate of a run."""

    documents: int
    """New ones that stay after cleaning; from the base, all."""
    tokens: int
    """Tokens of the documents."""
    steps: int
    """Optimizer steps of pre-training."""
    hours: float
    """Time of all stages, one after another."""
    usd: float | None
    """On-demand price of the stages whose machine has one; None without any."""
    chat_files: int = 0
    """Files of chats and pairs that finetuning learns."""

    @property
    def is_uncounted(self) -> bool:
        """True where there is text, and none of the champion's tokens to count it by."""
        return self.documents > 0 and not self.tokens

    def cells(self) -> tuple[str, ...]:
        """The figures as people read them."""
        return (
            f"{self.documents:,}", DASH if self.is_uncounted else short_count(self.tokens), f"{self.steps:,}",
            f"{self.chat_files:,}", human_hours(self.hours), human_dollars(self.usd),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekCost:
    """Estimate of a retraining beside a run from the base."""

    week: RunCost
    from_base: RunCost

    def lines(self) -> Iterator[str]:
        """A table of both."""
        names = ("documents", "tokens", "steps", "chat files", "time", "cost")
        rows = [("", "this retraining", "from the base")]
        rows += zip(names, self.week.cells(), self.from_base.cells(), strict=True)
        if not self.from_base.chat_files:
            rows = [row for row in rows if row[0] != "chat files"]
        widths = [max(len(row[place]) for row in rows) for place in range(3)]
        for name, *cells in rows:
            right = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            yield f"{name:<{widths[0]}}  {right}"
        if self.from_base.is_uncounted:
            yield f"tokens {DASH}: the champion's token shards are gone, so steps are those of pretrain.phases"
        if self.from_base.usd is None:
            yield f"cost {DASH}: cluster.instance of the champion's run is not a machine type of the price table"


def refuse_dear(recipe: Recipe, cost: RunCost) -> None:
    """Refuse a run that costs more than the recipe allows."""
    most = recipe.retrain.max_usd if recipe.retrain else None
    if most is None:
        return
    if cost.usd is None:
        # Without an instance nothing is rented.
        if recipe.cluster.instance:
            raise RecipeError(
                f"{KEY}: {most:g}, and the price of the champion's run is not known; name a machine of the price table as "
                "cluster.instance and run it once from the base, or leave the key out"
            )
        return
    if cost.usd > most:
        raise BudgetReached(
            f"{KEY}: the retraining is estimated at {human_dollars(cost.usd)}, above {human_dollars(most)}; raise the key, "
            "name fewer files, or lower retrain.epochs"
        )


def week_cost(
    recipe: Recipe, derived: Recipe, lineage: Lineage, inputs: Mapping[str, Inputs], chats: Inputs
) -> WeekCost:
    """Estimate a retraining by its new files, and a run from the base on all text.

    Args:
        recipe: The user's.
        derived: That of the retraining; the user's where nothing is new.
        lineage: Of the champion.
        inputs: Source -> its files.
        chats: Files of chats.
    """
    # A source that the recipe leaves out is not repeated.
    sources = lineage.earlier.keys() & set(recipe.sources or ("",))
    earlier = {source: _earlier_text(lineage, source) for source in sorted(sources)}
    usual = sum(earlier.values(), NO_TEXT)
    # A new source is taken to be like the others together.
    new = {source: earlier.get(source, usual).of_bytes(_new_bytes(each)) for source, each in inputs.items()}
    both = {source: new.get(source, NO_TEXT) + earlier.get(source, NO_TEXT) for source in {**earlier, **new}}
    run = _ChampionRun(lineage, chats)
    plain = recipe.model_copy(update={"retrain": None})
    from_base = run.cost(recipe, both, _steps(plain, both), is_week=False)
    # Where nothing is new no run begins.
    usd = None if from_base.usd is None else 0.0
    week = RunCost(documents=0, tokens=0, steps=0, hours=0.0, usd=usd)
    if derived.continues_champion:
        parts = {part_name(source, is_new=False): each for source, each in earlier.items()}
        parts |= {part_name(source, is_new=True): each for source, each in new.items()}
        week = run.cost(recipe, new, _steps(derived, parts), is_week=True)
    elif derived.retrain and derived.retrain.keeps_model:
        week = run.cost(derived, {}, 0, is_week=True)
    return WeekCost(week=week, from_base=from_base)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """Text of one source."""

    documents: float = 0.0
    tokens: float = 0.0
    sequences: float = 0.0
    bytes_in: float = 0.0
    """Before cleaning."""

    def __add__(self, other: "_Text") -> "_Text":
        return _Text(
            documents=self.documents + other.documents, tokens=self.tokens + other.tokens,
            sequences=self.sequences + other.sequences, bytes_in=self.bytes_in + other.bytes_in,
        )  # fmt: skip

    def of_bytes(self, bytes_in: float) -> "_Text":
        """So many bytes of text of the same kind."""
        factor = bytes_in / self.bytes_in if self.bytes_in else 0.0
        return _Text(
            documents=factor * self.documents, tokens=factor * self.tokens, sequences=factor * self.sequences, bytes_in=bytes_in,
        )  # fmt: skip


NO_TEXT = _Text()


class _ChampionRun:
    """Times of the champion's run, and what they were for."""

    def __init__(self, lineage: Lineage, chats: Inputs) -> None:
        self._chats, self._adapters = chats, lineage.adapters
        self._manifests = {word: manifest for word, (_, manifest) in _whole_run(lineage).items()}
        self._training = read_table(*lineage.made["model"], "training.json")
        self._run_text = {source: _text_of_run(lineage, source) for source in lineage.earlier}

    def cost(self, recipe: Recipe, text: Mapping[str, _Text], steps: int, *, is_week: bool) -> RunCost:
        """Estimate a run on some text by source."""
        hours, usd = 0.0, None
        for stage in stage_costs(self._manifests, {"model": self._training}):
            step = Step.named(stage.name)
            part = stage.seconds / 3600 * self._factor(recipe, step, text, is_week=is_week)
            if step.stage.name == "pretrain":
                part = self._training_hours(recipe, steps)
            hours += part
            if stage.per_hour is not None:
                usd = (usd or 0.0) + part * stage.per_hour
        total, learnt = sum(text.values(), NO_TEXT), self._learnt_chats(recipe)
        return RunCost(
            documents=round(total.documents), tokens=round(total.tokens), steps=steps, hours=hours, usd=usd,
            chat_files=len(learnt),
        )  # fmt: skip

    def _factor(self, recipe: Recipe, step: Step, text: Mapping[str, _Text], *, is_week: bool) -> float:
        """Time of a stage over what it was for the champion."""
        # Without new text a week takes all that is made of text.
        if step.stage.writes in (KEPT if text else OF_TEXT):
            return 0.0 if is_week else 1.0
        if step.stage.name == "finetune":
            return self._chats_factor(recipe)
        measure = {"clean": "bytes_in", "encode": "tokens"}.get(step.stage.name)
        if measure is None:
            return 1.0
        known = getattr(self._run_text.get(step.source, NO_TEXT), measure)
        return getattr(text.get(step.source, NO_TEXT), measure) / known if known else 0.0

    def _learnt_chats(self, recipe: Recipe) -> Collection[str]:
        """Files of chats that a run learns: all, or the new ones where it goes on with the champion's adapter."""
        return self._chats.unlearnt if recipe.finetune.start_from else self._chats.sizes

    def _chats_factor(self, recipe: Recipe) -> float:
        """Bytes of chats over those that the champion's run learnt and that are there as they were; 1 where none are."""
        sizes, held = self._chats.sizes, self._chats.num_bytes_held
        if len(self._adapters) > 1:
            # One that went on with another has learnt the files of its own week alone.
            names = chats_of(self._adapters[0][1]).keys() - set(self._chats.unlearnt)
            held = sum(sizes[uri] for uri in names & sizes.keys())
        return sum(sizes[uri] for uri in self._learnt_chats(recipe)) / held if held else 1.0

    def _training_hours(self, recipe: Recipe, steps: int) -> float:
        rate = number(self._training.get("tokens_per_s"))
        tokens = steps * recipe.pretrain.batch_size * recipe.pretrain.sequence_length
        return tokens / rate / 3600 if rate else 0.0


def _new_bytes(inputs: Inputs) -> float:
    return sum(text_bytes(uri, inputs.sizes[uri]) for uri in inputs.new)


def _steps(recipe: Recipe, text: Mapping[str, _Text]) -> int:
    """Return the steps that a recipe makes of its text, by source or part."""
    sizes = {
        name: TextSize(basis="files", tokens=ceil(each.tokens), sequences=ceil(each.sequences))
        for name, each in text.items()
        if each.tokens
    }
    try:
        return plan_text(recipe, sizes)[0].pretrain.steps
    except RecipeError:  # its phases are too long for the text, which whoever starts that run is told
        return recipe.pretrain.steps


def _earlier_text(lineage: Lineage, source: str) -> _Text:
    """Return all text of a source that the champion has learnt."""
    tokens, _ = _counts(lineage, source)
    _, corpus = lineage.earlier[source][0]
    return _Text(
        documents=corpus.records.get("train", 0), tokens=tokens.get("tokens", 0), sequences=tokens.get("sequences", 0),
        bytes_in=sum(_bytes_in(*each) for each in lineage.earlier[source]),
    )  # fmt: skip


def _text_of_run(lineage: Lineage, source: str) -> _Text:
    """Return the text that the champion's own run has cleaned and encoded."""
    tokens, before = _counts(lineage, source)
    return _Text(
        tokens=tokens.get("tokens", 0) - before.get("tokens", 0),
        bytes_in=_bytes_in(*lineage.earlier[source][0]),
    )


def _counts(lineage: Lineage, source: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counts of a source's tokens, and those of earlier text among them; none where its tokens are gone."""
    made = lineage.made.get(word_of("tokens", source))
    # Not by the reader of tokens, which needs NumPy.
    table = read_table(*made, "tokens.json") if made else {}
    both = table, table_of(table.get("earlier"))
    whole, before = (
        {key: int(number(each.get(key)) or 0) for key in ("tokens", "sequences")} for each in both
    )
    return whole, before


def _bytes_in(uri: str, corpus: Manifest) -> int:
    return int(number(read_table(uri, corpus, "stats.json").get("bytes_in")) or 0)


def _whole_run(lineage: Lineage) -> dict[str, Made]:
    """Return the artifacts of the champion's run, those behind its model too."""
    made = dict(lineage.made)
    for word in BEHIND:
        models = {made[kind][1].digest for kind in MODELS if kind in made}
        for each in () if word in made else artifacts_below([root_of(lineage.places["model"])], word):
            inputs = {digest for name, digest in each[1].origin.items() if name.startswith(INPUT)}
            if models & inputs:
                made[word] = each
                break
    return made
