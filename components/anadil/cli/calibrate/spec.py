"""What is to be measured, as a value and as a command line: the one becomes the other."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from anadil.cli.calibrate.results import device_of
from anadil.core.errors import RecipeError
from anadil.core.reasons import reason_of
from anadil.core.stages import BUILT_IN
from anadil.plan.instances import this_machine
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Shape, Trains, trained_shape
from anadil.recipe.load import load_recipe
from anadil.recipe.pretrain import Parallelism, Pretrain
from anadil.recipe.sections import Recipe

TIMED_STEPS = 5
"""Steps that are timed; their median counts."""
NEEDED_SECTIONS = {"language", "seed", "base", "tokenizer", "pretrain"}
"""Sections of a recipe that a measurement needs; the rest may name places that are nobody's business."""

Sizes = TypeVar("Sizes", Layout, Work, Shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run of some steps."""

    recipe: Recipe
    shape: Shape
    layout: Layout
    work: Work | None
    """None: what training does on the device that the run finds, with documents as long as a sequence."""
    trains: tuple[Trains, ...]
    """Phase kinds, measured one after another."""
    steps: int
    device: str
    """See `Measurement.device`."""

    @classmethod
    def of(
        cls,
        layout: Layout,
        recipe: Recipe,
        shape: Shape,
        work: Work | None,
        device: str,
        *,
        steps: int = TIMED_STEPS,
    ) -> "RunSpec":
        """One for all phase kinds of a recipe."""
        kinds: list[Trains] = [phase.trains for phase in recipe.pretrain.phases]
        once = tuple(dict.fromkeys(kinds))
        return cls(
            recipe=recipe, shape=shape, layout=layout, work=work, trains=once, steps=steps, device=device
        )

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "RunSpec":
        """From a command line.

        Raises:
            RecipeError: A value cannot be used.
        """
        options = _parser().parse_args(arguments)
        recipe = load_recipe(options.recipe)
        shape = _typed(Shape, options.shape, "--shape") if options.shape else trained_shape(recipe)
        spec = cls.of(
            _typed(Layout, options.layout, "--layout"),
            recipe,
            shape,
            _typed(Work, options.work, "--work") if options.work else None,
            options.device or device_of(this_machine()),
            steps=options.steps,
        )
        if spec.steps < 1:
            raise RecipeError(f"--steps {spec.steps}: time at least one step")
        kinds: list[Trains] = options.trains
        return replace(spec, trains=tuple(dict.fromkeys(kinds)) or spec.trains)

    def arguments(self) -> list[str]:
        """The command line that gives the same."""
        recipe = self.recipe.model_dump(mode="json", include=NEEDED_SECTIONS)
        kinds = [word for kind in self.trains for word in ("--trains", kind)]
        work = ["--work", as_json(self.work)] if self.work else []
        return [
            *("--layout", as_json(self.layout), "--shape", as_json(self.shape), *work, *kinds),
            *("--steps", str(self.steps), "--device", self.device),
            *("--recipe", json.dumps(recipe, ensure_ascii=False, separators=(",", ":"))),
        ]


def with_layout(settings: Pretrain, layout: Layout, work: Work) -> Pretrain:
    """Section `pretrain` with a layout and a step's work in place of its own."""
    changed = {
        "batch_size": layout.batch_size,
        "micro_batch_size": layout.micro_batch_size,
        "sequence_length": work.sequence_length,
        "precision": work.compute,
        "state": work.state,
        "kernels": work.kernels,
        "activation_checkpointing": layout.recompute,
        "parallelism": Parallelism(
            shard=layout.shard,
            tensor=layout.tensor,
            context=layout.context,
            pipeline=layout.pipeline,
            prefetch=layout.prefetch,
            reshard=layout.reshard,
        ),
    }
    return settings.model_copy(update=changed)


def as_json(value: Layout | Work | Shape) -> str:
    """A value of the plan as JSON."""
    return TypeAdapter[Any](type(value)).dump_json(value).decode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m anadil.cli.calibrate",
        description="Train a random model for some steps, and print speed and memory as one line of JSON.",
    )
    text = "name, file or JSON text of a recipe (default: %(default)s)"
    parser.add_argument("--recipe", default=BUILT_IN, metavar="RECIPE", help=text)
    text = 'layout, such as {"data": 8, "micro_batch_size": 4, "recompute": "full"}'
    parser.add_argument("--layout", required=True, metavar="JSON", help=text)
    text = "what a step computes; left out, what pretrain does on this device"
    parser.add_argument("--work", metavar="JSON", help=text)
    parser.add_argument("--shape", metavar="JSON", help="sizes of the model; left out, the recipe's")
    text = "phase kind to measure; left out, all of the recipe"
    parser.add_argument("--trains", action="append", default=[], choices=get_args(Trains), help=text)
    parser.add_argument(
        "--steps", type=int, default=TIMED_STEPS, metavar="N", help="steps to time (default: %(default)s)"
    )
    parser.add_argument("--device", metavar="NAME", help="what the plan calls the device")
    return parser


def _typed(kind: type[Sizes], text: str, flag: str) -> Sizes:
    """A value of a JSON table; a key that it does not have is a mistake."""
    try:
        value: Sizes = TypeAdapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, mistake['loc'])) or 'all of it'}: {reason_of(mistake)}"
            for mistake in error.errors(include_url=False, include_input=False)
        )
        known = ", ".join(field.name for field in fields(kind))
        raise RecipeError(f"{flag} {text[:100]}: {mistakes}; keys are {known}") from None
    return value
