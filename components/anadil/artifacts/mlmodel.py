"""The file MLmodel beside a model's weights, by which MLflow loads and serves them where they lie.

`mlflow.transformers.load_model("models:/name@champion")` and `mlflow models serve` read it. Weights are not copied. The
tokenizer is, because MLflow looks for it in `components/tokenizer` and nowhere else. Written without MLflow, which
takes seconds to import and is in no image of a stage. Source: mlflow 3.17, transformers/model_io.py.
"""

import json
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

MLMODEL = "MLmodel"
META = "registered_model_meta"
"""File that MLflow's client leaves beside MLmodel when it loads a registered model from a local path.
Source: mlflow 3.17, store/artifact/models_artifact_repo.py."""
COMPONENTS = "components"
ENVIRONMENT = ("python_env.yaml", "requirements.txt")
"""Packages that `mlflow models serve` installs."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
PACKAGES = ("torch", "transformers", "accelerate", "Jinja2")
"""Packages that loading needs, in the versions that wrote the model where they are installed."""


def write_mlmodel(directory: Path, *, chats: bool, out: Path | None = None) -> list[str]:
    """Write what MLflow needs beside a Hugging Face model; its weights stay where they are.

    Args:
        directory: Holds config.json, weights and the tokenizer.
        chats: The model was trained on chats: a server takes `messages`, else a `prompt`.
        out: Another place to write to, from which the model is found by its absolute path.

    Returns:
        The files that were written. None is part of the content: weights are the same without.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    chats = chats and (directory / "chat_template.jinja").is_file()
    place = out or directory
    tokenizer = place / COMPONENTS / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    names = [name for name in TOKENIZER_FILES if (directory / name).is_file()]
    for name in names:
        shutil.copyfile(directory / name, tokenizer / name)
    weights = "." if out is None else str(directory.absolute())
    _write_yaml(place / MLMODEL, _mlmodel(config, weights, chats=chats))
    environment = {
        "python": platform.python_version(),
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": [f"-r {ENVIRONMENT[1]}"],
    }
    _write_yaml(place / ENVIRONMENT[0], environment)
    (place / ENVIRONMENT[1]).write_text("\n".join(_requirements()) + "\n", encoding="utf-8")
    return [MLMODEL, *ENVIRONMENT, *(f"{COMPONENTS}/tokenizer/{name}" for name in names)]


def _mlmodel(config: dict[str, Any], weights: str, *, chats: bool) -> dict[str, Any]:
    task = "llm/v1/chat" if chats else "llm/v1/completions"
    served: dict[str, Any] = {
        "loader_module": "mlflow.transformers",
        "python_version": platform.python_version(),
        "env": {"virtualenv": ENVIRONMENT[0]},
    }
    if chats:
        served["config"] = {"add_special_tokens": False}  # the template has written the first token
    dtype = config.get("dtype") or config.get("torch_dtype")
    loaded = {
        "task": "text-generation", "instance_type": "TextGenerationPipeline", "inference_task": task,
        "model_binary": weights,
        "pipeline_model_type": (config.get("architectures") or ["AutoModelForCausalLM"])[0],
        "components": ["tokenizer"], "tokenizer_type": "PreTrainedTokenizerFast",
        **({"torch_dtype": f"torch.{dtype}"} if dtype else {}),
        "transformers_version": config.get("transformers_version", ""),
    }  # fmt: skip
    return {"flavors": {"python_function": served, "transformers": loaded}, "metadata": {"task": task}}


def _requirements() -> list[str]:
    """Return packages with their versions, without the local build tag of torch."""
    requirements = ["mlflow>=3.11,<4"]
    for name in PACKAGES:
        try:
            requirements.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            requirements.append(name)
    return requirements


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
