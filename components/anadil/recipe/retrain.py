"""The section `retrain`: how a released model learns the text and chats that came since."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from anadil.recipe.fields import NEUTRAL, Fraction, Place, StrictModel, Text

NEW, EARLIER = "new", "earlier"
"""Names of the two parts of a training's text without sources; with them, `new_` before a source's name is its new part."""


def part_name(source: str, *, is_new: bool) -> str:
    """Return the name of a part of a source's text, which has an empty name where the recipe has no sources."""
    if not source:
        return NEW if is_new else EARLIER
    return f"{NEW}_{source}" if is_new else source


class RetrainMix(StrictModel):
    """Shares of the training tokens."""

    new: Annotated[Fraction, Field(gt=0)] = 0.5
    """Share of text that came since the champion. The rest repeats earlier text: sources without new text keep their share of the phase's mix, and the others have what is left. Assumption."""


class RetrainLimits(StrictModel):
    """Most that new text may differ from the earlier text of its source; null: not looked at. `benchmarks/retrain` measures them."""

    language: Fraction | None = 0.1
    """Share of documents in another language, above the usual share."""
    duplicates: Fraction | None = 0.1
    """Share of documents that are alike to held ones or to each other, above the usual share."""
    contaminated: Fraction | None = 0.02
    """Share of documents that hold text of held-out parts, tasks, questions or chats, above the usual share; and of held-out documents of which new text holds much."""
    unusable: Fraction | None = 0.1
    """Share of records that are empty, too short or cannot be read, above the usual share."""
    personal_data: Fraction | None = 0.05
    """Share of documents with personal data, above the usual share."""
    growth: Annotated[float, Field(gt=1)] | None = 4.0
    """Times that a source, a host or a family of files may be larger than usual, against the rest of the text."""
    mix: PositiveFloat | None = 0.25
    """Population stability index of the documents by host or origin, above what chance gives. Source: Siddiqi, Credit Risk Scorecards (2006), where 0.25 is a large shift."""
    quality: PositiveFloat | None = 0.5
    """The same of each statistic of `clean`, by tenths of the earlier documents. Measured: clean weeks reach 0.43, half-poisoned ones 0.8."""


class Champion(StrictModel):
    """The released model that a retraining begins with, and the artifacts behind it. `anadil retrain` fills it in."""

    name: Text
    """Registered model."""
    version: Text
    """Its version that had the alias `champion`."""
    uri: Place
    """Artifact of that version: a model, a merged model or an adapter."""
    digest: Text
    """Digest of that artifact."""
    artifacts: dict[Text, Place]
    """Artifacts that it was made of, by word, such as `{model: URI, tokenizer: URI, corpus.web: URI, tokens.web: URI}`."""


class Retrain(StrictModel):
    """champion, new text -> challenger."""

    mix: RetrainMix = RetrainMix()
    epochs: PositiveFloat = 1.0
    """Passes over the new text, from which the number of steps follows in place of `pretrain.phases` and its `max_epochs`. Assumption."""
    start: Literal["auto", "plateau", "weights"] = "auto"
    """`plateau`: the last checkpoint before the champion's decay, with moments (schedule wsd); `weights`: its weights, with new moments; `auto`: the plateau where it was kept."""
    chats: Literal["all", "new"] = "all"
    """Chats that finetuning learns. `all`: old and new, in an adapter of its own. `new`: where no text is new, it goes on with the champion's adapter, on new and changed files alone; new text is always followed by all chats."""
    limits: RetrainLimits = RetrainLimits()
    """Limits of the stage `admit`, which refuses a poisoned week."""
    # They refuse text, and never change it.
    max_usd: Annotated[PositiveFloat | None, NEUTRAL] = None
    """Most dollars that a retraining may cost by its plan; a dearer one is refused before a GPU is asked for."""
    # Artifacts behind it decide by their digests, which are inputs of the stages.
    champion: Annotated[Champion | None, NEUTRAL] = None
    """The model to begin with; `anadil retrain` asks the registry and writes it here."""
    keeps: Annotated[tuple[Text, ...], NEUTRAL] = ()
    """Words of `champion.artifacts` that this run takes as they are, such as `tokenizer`; `anadil retrain` writes them."""
    new_chats: Annotated[tuple[Text, ...], NEUTRAL] = ()
    """Files of chats that came or changed since the champion; `anadil retrain` writes them, for people."""

    @model_validator(mode="after")
    def _keeps_what_is_there(self) -> "Retrain":
        known = self.champion.artifacts if self.champion else {}
        if strange := [word for word in self.keeps if word not in known]:
            raise ValueError(
                f"keeps {', '.join(strange)}, and champion.artifacts has none; leave both to `anadil retrain`"
            )
        return self

    @property
    def keeps_model(self) -> bool:
        """True where no text is new: the run takes the trained model as it is, and begins with finetuning."""
        return "model" in self.keeps

    def kept(self, word: str) -> str:
        """Return the URI of an artifact that this run takes as it is; empty for one that it makes."""
        return self.champion.artifacts[word] if self.champion and word in self.keeps else ""
