"""The recipe: one typed tree, closed and frozen, that says everything a run does.

A default that was published carries its source. "Azercell" is "Azerbaijani Llama on
Amazon SageMaker AI" (AWS Machine Learning Blog, with Azercell Telecom); where nothing is
published the text says where the value comes from. `load.py` reads and checks files.
"""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)

from anadil.core.errors import RecipeError
from anadil.core.log import masked, path_tokens
from anadil.core.stages import ENGINE_IMAGES, IMAGES
from anadil.recipe.clean import Clean
from anadil.recipe.cluster import Cluster
from anadil.recipe.fields import NEUTRAL, UNION_TAG, Model, Place, StrictModel, Text, did_you_mean
from anadil.recipe.filter_rules import NO_RULES
from anadil.recipe.finetune import EmbeddingRows, Finetune
from anadil.recipe.gate import Gate
from anadil.recipe.merge import Merge
from anadil.recipe.pretrain import Distillation, Pretrain, refuse_mix_mistakes
from anadil.recipe.retrain import Retrain, part_name
from anadil.recipe.sources import (
    MAX_EPOCHS,
    Source,
    SourceName,
    clean_of_written,
    is_taught,
    refuse_source_mistakes,
    target_sources,
)
from anadil.recipe.tracking_address import tracker_fault
from anadil.text.language import load_language

Strategy = Literal["base", "extend", "replace", "surgery"]
PREFERENCE: tuple[Strategy, ...] = ("replace", "extend", "surgery", "base")
"""Order in which a plan chooses for `tokenizer.choice: auto`, before anything is measured. Source: Azercell took its own."""
PUBLISHED_VOCABULARY = 100_000
"""The largest of the sizes that Azercell compared, and the one that it took; also the most that `auto` sizes are."""


class Base(StrictModel):
    """The foundation model that is taught."""

    model: Model = "meta-llama/Llama-3.2-1B"
    """Hugging Face directory or hub id; `tiny`: a small English Llama made on the spot; `smollm2`: SmolLM2-135M-Instruct out of a Python package. Source: Azercell."""
    revision: str | None = None
    """Commit of a hub model; pin it, so that the run can be repeated."""


VocabSizes = Annotated[
    Annotated[Literal["auto"], Tag(f"{UNION_TAG}word")]
    | Annotated[tuple[PositiveInt, ...], Field(min_length=1), Tag(f"{UNION_TAG}sizes")],
    Discriminator(lambda value: f"{UNION_TAG}{'word' if isinstance(value, str) else 'sizes'}"),
]

NAMES = Annotated[tuple[Text, ...], Tag(f"{UNION_TAG}names")]
WORD_OR_NAMES = Discriminator(lambda value: f"{UNION_TAG}{'word' if value in ('auto', 'off') else 'names'}")
Tasks = Annotated[Annotated[Literal["auto"], Tag(f"{UNION_TAG}word")] | NAMES, WORD_OR_NAMES]
Requests = Annotated[Annotated[Literal["off"], Tag(f"{UNION_TAG}word")] | NAMES, WORD_OR_NAMES]


class Trial(StrictModel):
    """A short continued pre-training with each strategy's best tokenizer, at equal compute."""

    steps: PositiveInt
    """Optimizer steps with the base's tokenizer; others take as many as cost the same FLOPs."""
    strategies: tuple[Strategy, ...] = ()
    """Those of `tokenizer.strategies` that are tried; left out, all. Pods that try one each set it."""


class Tokenizer(StrictModel):
    """corpus -> tokenizer."""

    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)] = ("base", "extend", "replace")
    """Candidates: the base's own tokenizer, the base's extended, a new one, and `surgery`: the base's with tokens that nothing needs exchanged for new ones. Source: Azercell."""
    vocab_sizes: VocabSizes = (PUBLISHED_VOCABULARY,)
    """For `replace`: size of the vocabulary; for `extend`: tokens added to the base's; for `surgery`: tokens exchanged; `auto`: as many as the corpus supports, a half and a quarter of it. Source: Azercell."""
    choice: Literal["base", "extend", "replace", "surgery", "auto"] = "auto"
    """Which strategy is used; `auto`: the cheapest by held-out tokens a word and compute a token, of those whose tokens the corpus uses enough."""
    min_frequency: PositiveInt = 2
    """Least count of a pair that is merged. Source: tokenizers, ByteLevelBPETokenizer.train."""
    min_uses: PositiveInt = 100
    """Times that the training text uses a token that can be learnt: 90 % of a candidate's own tokens should be; the least count of a pair where sizes are `auto`. Assumption."""
    keep: tuple[Text, ...] = ("en",)
    """Text that the model must go on reading as cheaply: ids of languages with built-in text (en), or files of text (`.jsonl[.gz|.zst]`, `.txt`)."""
    # A stage of its own, `trial`, names this key among those that decide.
    trial: Annotated[Trial | None, NEUTRAL] = None
    """Choose by bits per byte after a short training with each strategy, as `{steps: 200}`; left out, by `cost` alone."""
    min_word_count: PositiveInt = 1
    """Different words that occur less often are left out of training: less memory and time for another vocabulary. 2 leaves out a half of them and some 7 % of the text."""
    workers: Annotated[PositiveInt | None, NEUTRAL] = None
    """Processes that count words side by side; left out, one for each CPU. The result does not depend on it."""

    pad_to: PositiveInt = 128
    """Embedding rows of `extend` and `replace` are a multiple of it: rows that no token has, for fast matrix products."""
    prune: bool = False
    """Let `extend` leave out the base's tokens that neither the corpus nor `keep` uses; needs files of 1 MiB and more in `keep`."""

    @model_validator(mode="after")
    def _choice_and_trial_fit(self) -> "Tokenizer":
        if self.choice != "auto" and self.choice not in self.strategies:
            raise ValueError(f"choice {self.choice!r} is not one of strategies {list(self.strategies)}")
        if self.trial is None:
            return self
        if len(set(self.strategies)) < 2:
            raise ValueError(
                f"trial compares strategies, and strategies {list(self.strategies)} has one; name another, or leave trial out"
            )
        if self.choice != "auto":
            raise ValueError(f"choice {self.choice!r} leaves trial nothing to choose; set choice to auto")
        if strange := [name for name in self.trial.strategies if name not in self.strategies]:
            raise ValueError(f"trial.strategies {strange} are not among strategies {list(self.strategies)}")
        return self

    @property
    def strategy(self) -> Strategy:
        """The strategy that is used; for `auto` the one that a plan counts with."""
        if self.choice != "auto":
            return self.choice
        return next(name for name in PREFERENCE if name in self.strategies)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the recipe names, each once; none for `auto`, which only the corpus tells."""
        return () if self.vocab_sizes == "auto" else tuple(dict.fromkeys(self.vocab_sizes))

    @property
    def largest_size(self) -> int:
        """The size that a plan counts with: the largest, which takes the most memory."""
        return max(self.sizes, default=PUBLISHED_VOCABULARY)


class Evaluate(StrictModel):
    """model, adapter -> scores."""

    heldout: tuple[str, ...] = ()
    """Text to score: `.jsonl[.gz|.zst]`, `.txt`, `.parquet`; left out, the corpus's held-out part."""
    context: PositiveInt | None = None
    """Tokens that a model sees at a time; left out, `pretrain.sequence_length`."""
    stride: PositiveInt | None = None
    """Tokens scored by each window after the first; left out, `context` (as lm-evaluation-harness)."""
    prompts: tuple[str, ...] = ()
    """Beginnings that each model continues; left out, the language's own, or else those of held-out documents."""
    questions: tuple[str, ...] = ()
    """Files of chats whose questions are asked; `finetune` leaves out chats that hold one. Left out, its held-out chats."""
    max_questions: PositiveInt = 200
    """Questions that each model answers, of those held out and of those seen in training; of 2,000 the likelihood of the right answer is measured."""
    made_items: NonNegativeInt = 500
    """Most items of each kind that are made of the held-out text, such as a word among others. 0 makes none. They cost less than twice what scoring their text once does."""
    max_new_tokens: PositiveInt = 64
    """Longest continuation."""
    retained: tuple[str, ...] = ()
    """Text of languages that the base knows, to see how much is lost: files as of `evaluate.heldout`; left out, built-in English."""
    refusals: Requests = ()
    """Files of harmful and harmless requests, which models that answer should refuse and answer: lines of `id`, `text`, `kind`, `lang`; left out, built-in ones in English, Azerbaijani and Japanese; or `off`."""
    votes: tuple[str, ...] = ()
    """Files that `anadil judge votes --out` wrote: votes of people who compared two candidates blind."""
    # The stage `tasks` names these two among the keys that decide.
    tasks: Annotated[Tasks, NEUTRAL] = ()
    """Tasks of lm-evaluation-harness by name, `auto` for all of the language, task files (`.yaml`, or a directory of them), or `.jsonl` of questions with choices."""
    task_items: Annotated[tuple[str, ...], NEUTRAL] = ()
    """Texts of tasks that `anadil tasks fetch --items` wrote, for `clean.decontaminate`."""
    task_shots: Annotated[NonNegativeInt | None, NEUTRAL] = None
    """Examples before each question of a task; left out, as many as the task says."""
    # Its content decides, which is an input of the stage; its place does not.
    champion: Annotated[Place | None, NEUTRAL] = None
    """Released model that is scored beside the candidates: `NAME@ALIAS` of MLflow's registry, a model's or adapter's URI, or `none`; left out, what `anadil promote` made the champion, where `tracking.uri` or MLFLOW_TRACKING_URI names a registry."""
    gate: Gate = Gate()

    @property
    def asks_refusals(self) -> bool:
        """False where `refusals` is off."""
        return self.refusals != "off"

    @property
    def listed_tasks(self) -> tuple[str, ...]:
        """Entries of `tasks`, `auto` as one of them."""
        return (self.tasks,) if isinstance(self.tasks, str) else self.tasks


class Report(StrictModel):
    """scores of all stages -> one page."""

    title: str | None = None
    """Heading of the page; left out, it names the language and the base model."""
    reader: Literal["en", "az", "ja"] = "en"
    """Language of the page and of the cards beside it. No native speaker has read the Azerbaijani and Japanese words."""
    licences: dict[Text, Text] = Field(default={})
    """Licences that page and cards state, such as `{base: Llama 3.2 Community License, text: CC BY 4.0, chats: own}`; nobody checks them. A key such as `wikimedia/wikipedia` is listed in the model card as a data set of the hub."""


class Storage(StrictModel):
    """Where artifacts live."""

    root: Place | None = None
    """Directory or `s3://` URI under which every artifact is written; `anadil run` takes its `--work`."""


class Tracking(StrictModel):
    """Where curves and figures go: MLflow, W&B or TensorBoard."""

    uri: str | None = None
    """MLflow's server (`http://`, `https://`, ARN) or database such as `sqlite:///file`; `wandb://ENTITY/PROJECT`; `tensorboard:DIR`; or `off`; left out, MLFLOW_TRACKING_URI, else (in `anadil run`) SQLite."""
    experiment: str = "anadil"
    """MLflow experiment that holds the runs."""

    @field_validator("uri")
    @classmethod
    def _is_an_address_without_a_password(cls, uri: str | None) -> str | None:
        # The recipe goes into manifests and pipelines, where others read it.
        if uri is not None and (masked(uri) != uri or path_tokens(uri)):
            raise ValueError(
                "holds a password, a token or a user, which may be one; leave it out and set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or the whole URI as MLFLOW_TRACKING_URI"
            )
        if uri is not None and (fault := tracker_fault(uri)):
            raise ValueError(fault)
        return uri


class Recipe(StrictModel):
    """Everything that a run does."""

    language: Annotated[Text, AfterValidator(is_taught)] = "az"
    """Language that is taught: an id such as `az`, `kaz_Cyrl` or `azj_Latn`, or the path of a pack, which `anadil language learn` writes."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of every random choice; NumPy takes 32 bits."""
    base: Base = Base()
    storage: Storage = Storage()
    tracking: Tracking = Tracking()
    cluster: Cluster = Cluster()
    clean: Clean = Clean()
    sources: dict[SourceName, Source] = Field(default={})
    """Named bodies of text, which phases of `pretrain` mix; left out, `clean.inputs` are the only one."""
    tokenizer: Tokenizer = Tokenizer()
    pretrain: Pretrain = Pretrain()
    merge: Merge | None = None
    """Make the weights of several models one before finetuning; left out, the trained model goes on."""
    finetune: Finetune = Finetune()
    evaluate: Evaluate = Evaluate()
    report: Report = Report()
    _text_field: str = ""
    retrain: Retrain | None = None
    """Teach a released model the text and chats that came since; left out, a run begins with the base."""

    @model_validator(mode="after")
    def _sources_fit(self) -> "Recipe":
        if self.sources:
            refuse_source_mistakes(self.language, self.clean, self.sources)
        return self

    @model_validator(mode="after")
    def _parts_have_names(self) -> "Recipe":
        for name in self.sources if self.retrain else ():
            if (part := part_name(name, is_new=True)) in self.sources:
                raise ValueError(
                    f"sources.{part}: is the name that retrain gives to the new text of {name}; give the source another one"
                )
        return self

    @model_validator(mode="after")
    def _new_chats_have_no_pairs(self) -> "Recipe":
        if self.retrain and self.retrain.chats == "new" and self.finetune.preference:
            raise ValueError(
                "retrain.chats 'new' goes on with the champion's adapter on new chats alone, and finetune.preference repeats "
                "all pairs behind them; set retrain.chats to all, or leave finetune.preference out"
            )
        return self

    @model_validator(mode="after")
    def _mixes_fit_sources(self) -> "Recipe":
        refuse_mix_mistakes(self.pretrain, self.sources)
        return self

    @model_validator(mode="after")
    def _new_rows_are_not_all(self) -> "Recipe":
        if self.keeps_tokens and {phase.trains for phase in self.pretrain.phases} == {"new_rows"}:
            raise ValueError(
                "pretrain.phases: trains new_rows alone, and the tokenizer is the base's, which has no new token. Add a phase "
                "that trains embeddings or all, or set tokenizer.choice to extend"
            )
        return self

    @model_validator(mode="after")
    def _teacher_fits(self) -> "Recipe":
        taught = [name for name, each in self.sources.items() if each.teacher]
        key, distillation = "pretrain.distillation", self.pretrain.distillation
        if not taught:
            if distillation != Distillation():
                raise ValueError(
                    f"{key} is set, and no source has `teacher: base`; give it to a source, or leave it out"
                )
            return self
        if not self.finds_teacher_weight:
            return self
        if set(taught) <= {*self.target_sources}:
            raise ValueError(
                f"{key}.weight is auto, and no source with `teacher: base` ({', '.join(taught)}) is in another language than "
                f"{self.language}, whose loss could be limited; set a number"
            )
        if not self.pretrain.validate_every:
            raise ValueError(
                f"{key}.weight is auto, and pretrain.validate_every is 0: nothing is measured; set a number, or validate"
            )
        return self

    @model_validator(mode="after")
    def _stride_fits_context(self) -> "Recipe":
        stride = self.evaluate.stride
        if stride is not None and stride > self.context:
            raise ValueError(f"evaluate.stride {stride} is larger than the context {self.context}")
        return self

    @model_validator(mode="after")
    def _adds_to_the_base(self) -> "Recipe":
        for place, each in enumerate(self.merge.add if self.merge else ()):
            if (each.model, each.revision) == (self.base.model, self.base.revision):
                raise ValueError(
                    f"merge.add.{place}.model is base.model ({each.model}), so the difference takes away what "
                    f"{each.minus} learnt; swap model and minus"
                )
        return self

    @model_validator(mode="after")
    def _writes_the_checkpoints_that_are_averaged(self) -> "Recipe":
        if not self.continues_champion:  # its steps follow from text that is not counted yet
            self.refuse_few_checkpoints()
        return self

    def refuse_few_checkpoints(self) -> None:
        """Check that training writes as many checkpoints as are averaged; `max_epochs` may shorten it later.

        A retraining averages those that it has: a schedule must not end because a week was short.
        """
        steps, number = self.averaged_steps, self.pretrain.average_last
        if number is not None and len(steps) < number and not (steps and self.continues_champion):
            written = f" (steps {', '.join(map(str, steps))})" if steps else ""
            raise ValueError(
                f"pretrain.average_last is {number}, and the phases that train the same weights as the last one write "
                f"{len(steps)} checkpoints{written}: one every {self.pretrain.checkpoint_every} "
                f"steps and one at each phase's end; lower pretrain.checkpoint_every or pretrain.average_last"
            )

    @property
    def continues_champion(self) -> bool:
        """True if training begins with the champion, and learns the text that came since."""
        champion = self.retrain.champion if self.retrain else None
        # A run from the base keeps no artifact of it, and is only compared with it.
        return bool(champion and champion.artifacts and self.pretrain.start_from)

    @property
    def finds_teacher_weight(self) -> bool:
        """True if training finds the weight of the divergence from the base, by what the model retains."""
        return self.pretrain.distillation.weight == "auto" and any(
            each.teacher for each in self.sources.values()
        )

    @property
    def averaged_steps(self) -> tuple[int, ...]:
        """Steps of the checkpoints of `pretrain` that are averaged; none where none are."""
        number = self.pretrain.average_last
        return self.pretrain.last_checkpoints(number) if number else ()

    @property
    def as_planned(self) -> "Recipe":
        """The same without phases of new_rows where no tokenizer but the base's own can be chosen."""
        if not self.keeps_tokens:
            return self
        return self.model_copy(update={"pretrain": self.pretrain.without_new_rows})

    @property
    def language_code(self) -> str:
        """Id of the language, also where the recipe names a pack."""
        return load_language(self.language).code

    @property
    def target_sources(self) -> tuple[str, ...]:
        """Sources in the language that is taught: text for the tokenizer and the held-out score."""
        return target_sources(self.language, self.sources)

    def of_source(self, name: str) -> "Recipe":
        """Return the recipe that cleans one source: its language, rules and inputs, and no other source."""
        if name not in self.sources:
            guess = did_you_mean(name, list(self.sources))
            raise RecipeError(
                f"sources: none is called {name!r} ({', '.join(self.sources) or 'none is named'}){guess}"
            )
        source = self.sources[name]
        language = source.language_in(self.language)
        clean = source.clean.model_copy(update={"inputs": source.inputs})
        if source.written_by:
            clean = clean_of_written(clean)
        if source.pairs:  # judged by their sides
            clean = clean.model_copy(update={"rules": NO_RULES})
        # The cards say what was done by this key, and no line is in another language than none.
        if load_language(language).is_none:
            clean = clean.model_copy(update={"line_language": False})
        # How often it is trained on changes neither its corpus nor its tokens.
        source = source.model_copy(update={"max_epochs": MAX_EPOCHS})
        recipe = self.model_copy(update={"language": language, "clean": clean, "sources": {name: source}})
        recipe._text_field = self.retained_text_field  # noqa: SLF001  of this class
        return recipe

    @property
    def retained_text_field(self) -> str:
        """Key of the text in files of `evaluate.retained`, also in the recipe of a source that has another one."""
        return self._text_field or self.clean.text_field

    @property
    def keeps_tokens(self) -> bool:
        """True if no tokenizer but the base's own can be chosen."""
        return self.tokenizer.choice == "base" or set(self.tokenizer.strategies) == {"base"}

    @property
    def trained_embeddings(self) -> EmbeddingRows:
        """Embedding rows that learn beside an adapter; see `finetune.trains_embeddings`."""
        return self.finetune.trains_embeddings or ("none" if self.keeps_tokens else "control")

    def image_of(self, stage: str) -> str:
        """Image of a stage, or of what the light tools run (`launch`); that of `clean` goes by its engine."""
        name = IMAGES.get(stage, stage)
        return self.cluster.image_named(
            ENGINE_IMAGES.get(self.clean.engine, name) if stage == "clean" else name
        )

    @property
    def context(self) -> int:
        """Tokens that a model sees at a time when it is scored."""
        return self.evaluate.context or self.pretrain.sequence_length
