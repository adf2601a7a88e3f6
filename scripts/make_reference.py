"""Write docs/reference: recipe.md from the recipe's own field texts, other pages from their tables.

`python scripts/make_reference.py` writes them, `--check` exits 1 where a file differs.
"""

import json
import math
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from anadil.artifacts.text_part import WRAPPERS, text_config
from anadil.clean.filters.judge import limits_of_rules
from anadil.core.errors import PreflightError
from anadil.model.family_table import LAYOUTS, check_family, families
from anadil.recipe.filter_rules import Rules
from anadil.recipe.merge import Merge, TaskVector
from anadil.recipe.retrain import Retrain
from anadil.recipe.sections import Recipe
from anadil.recipe.sources import Source
from anadil.runtime.metric_table import METRICS
from anadil.text.filter_rules import KEYS, RULES
from anadil.text.language import language_codes, load_language
from generate import write_or_check

REFERENCE = Path(__file__).parents[1] / "docs/reference"

HEAD = """# Recipe reference

Every key of a recipe, with its default. Generated from `components/anadil/recipe` by
`scripts/make_reference.py`. A missing key takes its default. An unknown key is an error.
"""
PUBLISHED = Path(__file__).parents[1] / "tests/kit/published_configs.json"
CHECKPOINTS = """
## Published checkpoints

A tiny replica of each is trained by `tests/pretrain/test_published.py`: the keys of its `config.json` with the sizes cut down.
Plain transformers computes the same loss and gradients. The keys were written down by hand, not fetched, and no weights of these
checkpoints were loaded.

| model type | checkpoints | trains |
|---|---|---|
"""
FAMILIES = """# Model families

The table lists the model types (`model_type` of `config.json`) that are trained. It says:

- which layouts of `pretrain.parallelism` are tested for each
- whether `anadil plan` knows its memory
- whether [export](../guides/export.md#gguf) writes it as GGUF

Every type also trains in one process and in copies of it. Any other type is refused by name before anything is loaded. Gemma 2
caps the scores of its attention, which Flash attention does not: its documents are attended to one by one. `anadil plan`
takes each for as long as a sequence. Written models have the tensors of their base's files: an entry for each expert where
those have one, stacks where they are published so, as Qwen 3.5 is. The loss that spreads tokens over experts is added if
`config.json` sets `output_router_logits`. An adapter leaves experts out. Experts of GPT-OSS in MXFP4 are unpacked to BF16
once, into `base` below `storage.root` or `ANADIL_CACHE`: 42 GB for 20B, 234 GB for 120B. Convolutions and states of
{recurrent} start anew at every document. With `context` each process computes them for whole
sequences, and `anadil plan` gives an upper bound of their memory. On a GPU with `flash-linear-attention` and `causal-conv1d`
the kernels are told where documents begin, which was not run yet. The plan counts layers without them. Generated from
`components/anadil/model/families.py` by `scripts/make_reference.py`.

A type without GGUF has one of these reasons:

- llama.cpp computes it otherwise: `gpt_oss`. It rounds the borders of YaRN, and the published settings say not to
  (`truncate: false`). So 9 of 32 frequencies of a head differ, one by 76 %, and logits of a random model by 0.26 within
  400 tokens
- llama.cpp lacks it, or its logits were not compared: all others

Of a model of text and images ({wrappers}) the text model is trained and exported, if its type is in
the table. Tensors of its other parts are counted and not read. What is exported is a text model, which sees no images, or
[with an option](../guides/export.md#a-model-of-text-and-images) the whole model again. A Gemma 4 whose layers have a table of
tokens too (`hidden_size_per_layer_input`, as E2B and E4B have) keeps its own vocabulary: `tokenizer.strategies` other than
`base` are refused.

| model type | layouts | memory is planned | GGUF |
|---|---|---|---|
"""
WITHOUT_DEFAULT: Mapping[str, Mapping[str, type[BaseModel]]] = {
    # `clean` in a source has the keys of the section.
    "sources": {"sources.NAME": Source},
    "merge": {"merge": Merge, "merge.add.NUMBER": TaskVector},
    "retrain": {"retrain": Retrain},
}
"""Key -> path and table of the keys below it."""
RULES_HEAD = """# Rules of the clean stage

Every rule judges every document. A document is dropped for the first enforced rule that it breaks, in this order.
`clean.rules` sets the limits that are named by a key, for every language. `clean.modes` makes a rule drop (`enforce`) or only
count (`report`). Watch a new limit before it drops. `anadil language learn` finds limits from good and bad text of your own.

An empty limit is not judged. `source` names the source of the default. A language's own file in
`components/anadil/text/languages/` names those of its limits. Generated from `components/anadil/text/filter_rules.py` by
`scripts/make_reference.py`.

"""


def _rules() -> str:
    languages = [load_language(code) for code in language_codes()]
    head = [
        "rule",
        "mode",
        "dropped if",
        "key",
        *(language.code for language in languages),
        "meaning of the limit",
        "source",
    ]
    rows = [head, ["---"] * len(head)]
    limits = [limits_of_rules(language, Rules()).tolist() for language in languages]
    for rule, *of_rule in zip(RULES, *limits, strict=True):
        sign = "<" if rule.is_least else ">"
        key, meaning = (f"`{rule.limit}`", KEYS[rule.limit].doc) if rule.limit in KEYS else ("", "")
        shown = ["" if math.isnan(limit) else f"{limit:g}" for limit in of_rule]
        rows.append(
            [f"`{rule.name}`", rule.mode, f"`{rule.measure}` {sign}", key, *shown, meaning, rule.source]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _metrics() -> str:
    """The page of metrics with its table of training written anew."""
    head, begin, rest = (REFERENCE / "metrics.md").read_text(encoding="utf-8").partition("\n## Training\n")
    end = rest[rest.index("\nThe table is generated") :]
    rows = ["\n| metric | in `training.jsonl` | meaning | stages |\n|---|---|---|---|\n"]
    for each in METRICS:
        name = f"`{each.name}`" if "jsonl" in each.sinks else ""
        rows.append(f"| `{each.gauge}` | {name} | {each.doc} | {each.stages or 'all'} |\n")
    return f"{head}{begin}{''.join(rows)}{end}"


def _families() -> str:
    rows = []
    for kind, family in sorted(families().items()):
        layouts = ", ".join(f"`{layout}`" for layout in LAYOUTS if layout in family.layouts)
        rows.append(f"| {kind} | {layouts} | {_yes(family.architecture)} | {_yes(family.gguf)} |\n")
    return "".join(rows)


def _names(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _checkpoints() -> str:
    by_type: dict[tuple[str, str], list[str]] = {}
    for name, config in json.loads(PUBLISHED.read_text(encoding="utf-8")).items():
        text = text_config(config, PUBLISHED)
        trains = "yes" if text is config else f"the text model is, as {text['model_type']}"
        try:
            check_family(text, {})
        except PreflightError:
            trains = "no, refused by name"
        by_type.setdefault((config["model_type"], trains), []).append(name)
    return CHECKPOINTS + "".join(
        f"| {kind} | {', '.join(names)} | {trains} |\n" for (kind, trains), names in sorted(by_type.items())
    )


def _yes(known: object) -> str:
    return "yes" if known else ""


def _section(name: str, model: type[BaseModel]) -> list[str]:
    parts = [f"\n## {name}\n\n{(model.__doc__ or '').strip()}\n"] if name else []
    rows, inner = [], []
    for key, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        path = f"{name}.{key}" if name else key
        if isinstance(default, BaseModel) and model is not Source:
            inner += _section(path, type(default))
        else:
            shown = "needed" if field.is_required() else f"`{_shown(default)}`"
            rows.append(f"| `{path}` | {shown} | {field.description} |")
        # These have no default of which the keys could be read.
        inner += [
            part for below, table in WITHOUT_DEFAULT.get(path, {}).items() for part in _section(below, table)
        ]
    if rows:
        parts += ["\n| key | default | meaning |\n|---|---|---|\n", "\n".join(rows), "\n"]
    return parts + inner


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, tuple):
        value = [item.model_dump() if isinstance(item, BaseModel) else item for item in value]
    return json.dumps(value, ensure_ascii=False).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(
        write_or_check(
            {
                REFERENCE / "recipe.md": lambda: HEAD + "".join(_section("", Recipe)),
                REFERENCE / "model-families.md": lambda: (
                    FAMILIES.format(
                        wrappers=_names(WRAPPERS),
                        recurrent=_names([kind for kind, each in families().items() if each.recurrent]),
                    )
                    + _families()
                    + _checkpoints()
                ),
                REFERENCE / "metrics.md": _metrics,
                REFERENCE / "rules.md": lambda: RULES_HEAD + _rules(),
            }
        )
    )
