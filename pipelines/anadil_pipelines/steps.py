"""One container step for each stage: what it takes, what it gives, how its image is started.

Artifacts travel between steps as URIs, because Kubeflow Pipelines would copy an artifact
whole through each pod's scratch disk, model weights too. Everything else travels in one
JSON document, the executor input, so that a step has the same command in every runner.
"""

# kfp reads its annotations as values: dsl.OutputPath(str) is no type.
# pyright: reportInvalidTypeForm=false

from kfp import dsl

EXECUTOR_INPUT = dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER


def container(stage: str) -> dsl.ContainerSpec:
    """The command of a stage's image; `adapt` sets the image itself from the recipe."""
    return dsl.ContainerSpec(
        image=f"anadil/{stage}",
        command=["python", "-m", f"anadil.{stage}"],
        args=["--executor-input", EXECUTOR_INPUT],
    )


@dsl.container_component
def clean(recipe: str, corpus: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]):
    """Raw text, HTML and WARC to a clean corpus."""
    return container("clean")


@dsl.container_component
def tokenizer(recipe: str, corpus: str, tokenizer: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]):
    """Train, extend and compare tokenizers."""
    return container("tokenizer")


@dsl.container_component
def pretrain(
    recipe: str,
    corpus: str,
    tokenizer: str,
    model: dsl.OutputPath(str),
    metrics: dsl.Output[dsl.Metrics],
):
    """Continue pre-training on the corpus."""
    return container("pretrain")


@dsl.container_component
def finetune(recipe: str, model: str, adapter: dsl.OutputPath(str), metrics: dsl.Output[dsl.Metrics]):
    """Teach the model to answer."""
    return container("finetune")


@dsl.container_component
def evaluate(
    recipe: str,
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


STEPS = {
    "clean": clean,
    "tokenizer": tokenizer,
    "pretrain": pretrain,
    "finetune": finetune,
    "evaluate": evaluate,
    "report": report,
}
