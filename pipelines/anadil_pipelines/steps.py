"""One container step for each stage: what it takes, what it gives, how its image is started.

Artifacts travel between steps as URIs, because Kubeflow Pipelines would copy an artifact
whole through each pod's scratch disk, model weights too. Everything else travels in one
JSON document, the executor input, so that a step has the same command in every runner.
"""

# kfp reads its annotations as values: dsl.OutputPath(str) is no type.
# pyright: reportInvalidTypeForm=false

from typing import Any

from kfp import dsl

RUN = dsl.PIPELINE_JOB_ID_PLACEHOLDER
"""Id of the run, which the backend fills in: what a step leaves is found by it."""
EXECUTOR_INPUT = dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER


def container(stage: str, *command: str) -> dsl.ContainerSpec:
    """The command of a stage's image; `resources` sets the image itself from the recipe."""
    return dsl.ContainerSpec(
        image=f"anadil/{stage}",
        command=["python", "-m", *(command or [f"anadil.{stage}"])],
        args=["--executor-input", EXECUTOR_INPUT],
    )


@dsl.container_component
def clean(recipe: str, run: str, corpus: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]):
    """Raw text, HTML and WARC to a clean corpus."""
    return container("clean")


@dsl.container_component
def candidate(
    recipe: str, corpus: str, size: str, tokenizer: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]
):
    """Train the tokenizers of one vocabulary size.

    It takes no `run`: how it ended is for the step `tokenizer` to tell, which uses what it made.
    """
    return container("tokenizer")


@dsl.container_component
def tokenizer(
    recipe: str,
    run: str,
    corpus: str,
    candidates: list[str],
    tokenizer: dsl.OutputPath(str),
    metrics: dsl.Output[dsl.Metrics],
):
    """Train, extend and compare tokenizers.

    `candidates` makes the step wait for the pods of a parallel sweep; what they made is found by
    its content, as everything is.
    """
    return container("tokenizer")


@dsl.container_component
def pretrain(
    recipe: str,
    run: str,
    corpus: str,
    tokenizer: str,
    model: dsl.OutputPath(str),
    metrics: dsl.Output[dsl.Metrics],
):
    """Continue pre-training on the corpus."""
    return container("pretrain")


@dsl.container_component
def finetune(
    recipe: str, run: str, model: str, adapter: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]
):
    """Teach the model to answer."""
    return container("finetune")


@dsl.container_component
def evaluate(
    recipe: str,
    run: str,
    corpus: str,
    model: str,
    adapter: str,
    scores: dsl.OutputPath(str),
    metrics: dsl.Output[dsl.Metrics],
):
    """Score the base, the adapted and the finetuned model."""
    return container("evaluate")


@dsl.container_component
def report(
    recipe: str,
    run: str,
    corpus: str,
    tokenizer: str,
    model: str,
    adapter: str,
    scores: str,
    report: dsl.OutputPath(str),
    metrics: dsl.Output[dsl.Metrics],
    html: dsl.Output[dsl.HTML],
    markdown: dsl.Output[dsl.Markdown],
):
    """One page about the whole run."""
    return container("report")


@dsl.container_component
def finish(recipe: str, run: str):
    """Stop what a run has left behind and tell how it ended."""
    return container("tools", "anadil.launch", "finish")


def _launchers() -> dict[str, Any]:
    """Steps that start a stage as a job of its own and follow it; they have the names of the stages."""

    @dsl.container_component
    def pretrain(
        recipe: str,
        run: str,
        corpus: str,
        tokenizer: str,
        model: dsl.OutputPath(str),
        metrics: dsl.Output[dsl.Metrics],
    ) -> dsl.ContainerSpec:
        """Continue pre-training on the corpus, as a job of its own."""
        return container("tools", "anadil.launch", "pretrain")

    @dsl.container_component
    def finetune(
        recipe: str, run: str, model: str, adapter: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]
    ) -> dsl.ContainerSpec:
        """Teach the model to answer, as a job of its own."""
        return container("tools", "anadil.launch", "finetune")

    return {"pretrain": pretrain, "finetune": finetune}


LAUNCHERS = _launchers()
STEPS = {
    "clean": clean,
    "tokenizer": tokenizer,
    "pretrain": pretrain,
    "finetune": finetune,
    "evaluate": evaluate,
    "report": report,
}
