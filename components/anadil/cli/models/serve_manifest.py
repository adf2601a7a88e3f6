"""`anadil serve-manifest`: the Kubernetes objects that serve a finished model, filled in."""

import argparse
import math
import re
from pathlib import Path
from typing import Any

import yaml

from anadil.core.errors import RecipeError
from anadil.core.format import GIB, counted, human_bytes
from anadil.release.serving.manifests import VLLM_IMAGE, Claim, Serving, objects
from anadil.release.serving.served_model import MEMORY_SHARE, ServedModel, describe_model

GPU_GIB = 80.0
"""Memory of an A100 or H100."""
# Tokens, where the model takes more: what a chat needs. Longer ones cost memory for keys and values.
CONTEXT = 8192


def add_serve_manifest(name: str, commands: Any, text: str) -> None:
    """Put the command among those of `anadil`."""
    help_text = f"{text}. Nothing is sent: pipe it into `kubectl apply -f -`. See docs/guides/cluster-look-after.md."
    command = commands.add_parser(name, help=text, description=help_text)
    help_text = (
        "model, merged or adapter artifact (its merged model is served), a directory, or models:/NAME@ALIAS"
    )
    command.add_argument("uri", metavar="URI", help=help_text)
    help_text = "a Deployment of vLLM, or an InferenceService of KServe 0.16 or newer (default: %(default)s)"
    command.add_argument("--kind", choices=["vllm", "kserve"], default="vllm", help=help_text)
    help_text = "of the objects, and of the model in requests (default: anadil- and the language)"
    command.add_argument("--name", metavar="NAME", help=help_text)
    help_text = f"tokens of question and answer together (default: the model's, at most {CONTEXT:,})"
    command.add_argument("--context", type=int, metavar="N", help=help_text)
    help_text = "GPUs of a machine that share the model (default: the fewest that hold it)"
    command.add_argument("--gpus", type=int, metavar="N", help=help_text)
    help_text = "of each GPU (default: %(default)g)"
    command.add_argument("--gpu-memory", type=_gib, default=GPU_GIB, metavar="GIB", help=help_text)
    help_text = "the claim that a path lies on and where it is mounted, such as fsx=/fsx"
    command.add_argument("--claim", type=_claim, metavar="NAME=PATH", help=help_text)
    help_text = "one that is there and reads the model (default: one is made)"
    command.add_argument("--service-account", default="", metavar="NAME", help=help_text)
    command.add_argument("--namespace", default="", metavar="NAME", help="default: that of kubectl")
    help_text = "of vLLM (default: %(default)s)"
    command.add_argument("--image", type=_image, default=VLLM_IMAGE, metavar="IMAGE", help=help_text)
    help_text = "of anadil's tools, which bring a model from S3 for vLLM"
    command.add_argument("--tools-image", type=_image, metavar="IMAGE", help=help_text)
    command.set_defaults(command=serve_manifest)


def _claim(text: str) -> Claim:
    name, _, path = text.partition("=")
    if not name or not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=PATH, such as fsx=/fsx")
    return Claim(name=name, path=path)


def _gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _image(text: str) -> str:
    if not text or any(sign.isspace() for sign in text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of an image")
    return text


def serve_manifest(options: argparse.Namespace) -> int:
    """Print the objects under comments about their sizes."""
    model = describe_model(options.uri)
    context = _context(options.context, model)
    gpu_bytes = int(options.gpu_memory * GIB)
    serving = Serving(
        name=_name(model) if options.name is None else options.name, uri=model.uri, context=context,
        gpus=_gpus(options.gpus, model, context, gpu_bytes), weight_bytes=model.weight_bytes,
        file_bytes=model.file_bytes, dtype=model.dtype, digest=model.digest, has_template=model.has_template,
        claim=options.claim, service_account=options.service_account, namespace=options.namespace, image=options.image,
        **({"tools_image": options.tools_image} if options.tools_image else {}),
    )  # fmt: skip
    text = yaml.dump_all(
        objects(serving, options.kind), Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True
    )
    print(_about(serving, model, gpu_bytes) + text, end="")
    return 0


class Dumper(yaml.SafeDumper):
    """Lists indented under their key, as people write them, and nothing by reference."""

    def increase_indent(self, flow: bool = False, *_: bool, **__: bool) -> None:
        """Indent lists too."""
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # the base class names it
        """Write equal parts out each time."""
        return True


def _context(asked: int | None, model: ServedModel) -> int:
    if asked is None:
        return min(CONTEXT, model.max_context)
    if not 0 < asked <= model.max_context:
        raise RecipeError(
            f"--context {asked}: the model takes 1 to {model.max_context:,} tokens (max_position_embeddings in its "
            "config.json)"
        )
    return asked


def _gpus(asked: int | None, model: ServedModel, context: int, gpu_bytes: int) -> int:
    if asked is None:
        return model.gpus(context, gpu_bytes)
    heads, _ = model.heads
    if asked < 1 or heads % asked:
        fitting = ", ".join(str(each) for each in range(1, 17) if heads % each == 0)
        raise RecipeError(f"--gpus {asked}: does not divide the model's {heads} heads; give one of {fitting}")
    return asked


def _name(model: ServedModel) -> str:
    """`anadil-az` of a model that we made, else the directory's name."""
    stem = f"anadil-{model.language}" if model.language else Path(model.uri).name
    plain = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].rstrip("-")
    return plain if plain[:1].isalpha() else f"model-{plain}"[:40].rstrip("-")


def _about(serving: Serving, model: ServedModel, gpu_bytes: int) -> str:
    cache = human_bytes(model.cache_bytes(serving.context))
    sizes = (
        f"{human_bytes(model.weight_bytes)} of weights and {cache} for one text of {serving.context:,} tokens: "
        f"{counted(serving.gpus, 'GPU')}, of which vLLM takes {MEMORY_SHARE:.0%} of {human_bytes(gpu_bytes)}; what is left "
        "holds more texts at once."
    )
    lines = [serving.uri, sizes]
    if not serving.has_template:
        lines.append("No chat template lies beside it: only /v1/completions answers.")
    return "".join(f"# {line}\n" for line in lines)
