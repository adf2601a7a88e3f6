"""The section `merge`: how the weights of several models become one."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from anadil.recipe.fields import UNION_TAG, Fraction, Model, StrictModel

AUTO = "auto"
"""Value of a share or weight that is chosen by measuring."""


def _kind_of_number(value: object) -> str:
    # A number in quotation marks and `.nan` are text of YAML; that they are not `auto` is not what is wrong with them.
    return f"{UNION_TAG}{'word' if isinstance(value, str) and value.isalpha() else 'number'}"


_Auto = Annotated[Literal["auto"], Tag(f"{UNION_TAG}word")]
Share = Annotated[_Auto | Annotated[Fraction, Tag(f"{UNION_TAG}number")], Discriminator(_kind_of_number)]
# A weight of 0 adds nothing. Above 2 is chosen by us: published weights end at 1 (arXiv:2310.04799).
Weight = Annotated[
    _Auto | Annotated[float, Field(gt=0, le=2), Tag(f"{UNION_TAG}number")], Discriminator(_kind_of_number)
]


class TaskVector(StrictModel):
    """A difference of two models with the tokenizer of the base, such as an instruct model less its own base."""

    model: Model
    """Hugging Face directory or hub id of a model that was trained further from `minus`, such as `meta-llama/Llama-3.2-1B-Instruct`."""
    revision: str | None = None
    """Commit of a hub model; pin it, so that the run can be repeated."""
    minus: Model
    """Hugging Face directory or hub id of the model that it was trained from, such as `meta-llama/Llama-3.2-1B`."""
    minus_revision: str | None = None
    """The same of `minus`."""
    weight: Weight = 1.0
    """Factor of the difference, up to 2; `auto`: the largest that costs running text no more than the gate allows. Source: arXiv:2310.04799, which adds the whole difference."""

    @model_validator(mode="after")
    def _is_a_difference(self) -> "TaskVector":
        if (self.model, self.revision) == (self.minus, self.minus_revision):
            raise ValueError(
                f"model and minus are both {self.model}; name the model that was trained from minus"
            )
        return self


class Merge(StrictModel):
    """model, base, other models -> merged."""

    base_share: Share = 0.0
    """Share of the base's weights, from 0 to 1; `auto`: the best for the target language that keeps the others within the gate's limit. Source: arXiv:2109.01903."""
    add: tuple[TaskVector, ...] = ()
    """Differences of other models that are added, such as what an instruct model learnt beyond its base. Source: arXiv:2212.04089."""

    @field_validator("add")
    @classmethod
    def _names_each_difference_once(cls, add: tuple[TaskVector, ...]) -> tuple[TaskVector, ...]:
        named = [each.model_copy(update={"weight": 1.0}) for each in add]
        for place, each in enumerate(named):
            if each in named[:place]:
                raise ValueError(
                    f"the difference of {each.model} and {each.minus} is named twice; give it one weight"
                )
        return add

    @model_validator(mode="after")
    def _does_something(self) -> "Merge":
        if self.base_share == 0 and not self.add:
            raise ValueError("merges nothing; set a base_share above 0 or add, or leave the section out")
        return self

    @property
    def is_auto(self) -> bool:
        """True if a share or a weight is chosen by measuring, which needs held-out text."""
        return AUTO in (self.base_share, *(each.weight for each in self.add))

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are read beside the base and the trained model."""
        return tuple(dict.fromkeys(name for each in self.add for name in (each.model, each.minus)))
