"""Recipes as files: find, read, override, check; every mistake at once, with line and remedy."""

import difflib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError
from anadil.core.format import counted
from anadil.core.log import masked
from anadil.core.reasons import reason_of
from anadil.recipe.clean import OF_DOCUMENTS, OF_RULES
from anadil.recipe.fields import NEAR, UNION_TAG, did_you_mean
from anadil.recipe.filter_rules import NO_RULES
from anadil.recipe.other_names import name_here, near_name
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

OF_ONE_SOURCE = ("inputs", "since")
"""Keys of `clean` that a source does not take from the recipe."""
SHARES = ("mix", "anneal")
"""Keys of a phase that name sources."""
MAX_HINTS = 5
"""Most keys that are offered for one; more would be a list to read."""


def recipes_dir() -> Path:
    """Directory of the shipped recipes: in the wheel beside this file, in a checkout at its top."""
    installed = Path(__file__).parents[1] / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def shipped() -> list[Path]:
    """The shipped recipe files, by name."""
    return sorted(recipes_dir().glob("*.yaml"))


def find_recipe(name_or_path: str) -> Path:
    """The file of a recipe given by path or by the name of a shipped one."""
    path = Path(name_or_path)
    try:
        is_file = path.is_file()
    except OSError as error:  # such as a name that is too long
        raise RecipeError(f"recipe {name_or_path[:100]}: {error.strerror}") from None
    if path.suffix in (".yaml", ".yml", ".json") or is_file:
        if not is_file:
            raise RecipeError(f"recipe {name_or_path}: no such file")
        return path
    names = [recipe.stem for recipe in shipped()]
    if name_or_path in names:
        return recipes_dir() / f"{name_or_path}.yaml"
    guess = did_you_mean(name_or_path, names)
    raise RecipeError(
        f"recipe {name_or_path}: neither a file nor a shipped recipe ({', '.join(names)}){guess}"
    )


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read, override and check a recipe: a file, the name of a shipped one, or JSON text.

    `overrides` are `key.path=value` texts, each value in YAML. An error names every mistake, a line each.
    """
    if name_or_path.lstrip().startswith("{"):
        return parse_recipe(name_or_path, "recipe", overrides)
    path = find_recipe(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: cannot be read: {error}") from None
    return parse_recipe(text, str(path), overrides)


def parse_recipe(text: str, name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Check the text of a recipe; `name` is what error messages call it."""
    data, lines = strict_yaml.parse_yaml(text, name)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(f"{name}: a recipe is a table of keys, not {type(data).__name__}")
    keys = {override.partition("=")[0] for override in overrides}
    phases = _phases(data)
    if "clean.inputs" in keys and not any(key.partition(".")[0] == "sources" for key in keys):
        _set_sources_aside(data, phases, name)
    chats = _names_of_chats(data)
    given = [_apply(data, override) for override in overrides]
    if "finetune.inputs" in keys and "finetune.mix" not in keys:
        _set_weights_aside(data, chats - _names_of_chats(data), name)
    if "pretrain.phases" in keys and data.get("sources"):
        _keep_shares(phases, _phases(data))
    try:
        # JSON mode, because strict checking takes a list for a tuple only there.
        return Recipe.model_validate_json(json.dumps(_inherited(data)), strict=True)
    except ValidationError as error:
        raise RecipeError(mistakes(error, data, lines, name, Recipe, given)) from None


def _inherited(data: dict[str, Any]) -> dict[str, Any]:
    """Give each source the keys of `clean` that it leaves out."""
    sources, clean = data.get("sources"), data.get("clean")
    if not isinstance(sources, dict) or not isinstance(clean, dict):
        return data
    shared = {key: value for key, value in clean.items() if key not in OF_ONE_SOURCE}

    def of_source(source: Any) -> Any:
        special = source.get("clean", {}) if isinstance(source, dict) else None
        if not isinstance(special, dict):
            return source
        # Keys that decide nothing of pairs would be mistakes of a source that does not write them.
        idle = OF_DOCUMENTS if source.get("pairs") else ()
        inherited = {key: value for key, value in shared.items() if key not in idle}
        return source | {"clean": _merged(inherited, special)}

    return data | {"sources": {name: of_source(source) for name, source in sources.items()}}


def _merged(shared: dict[str, Any], special: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of both; those of `special` win, also those of a table such as `rules`."""
    # Inherited, they would be mistakes of a source that does not write them.
    if special.get("rules") == NO_RULES:
        shared = {key: value for key, value in shared.items() if key not in OF_RULES}
    both = {
        key: shared[key] | value
        for key, value in special.items()
        if isinstance(value, dict) and isinstance(shared.get(key), dict)
    }
    return shared | special | both


def _is_inherited(mistake: Mapping[str, Any], errors: Sequence[Mapping[str, Any]], data: Any) -> bool:
    """Return True for a mistake of a source that it has from the section `clean`, where it is told."""
    path = _path(mistake["loc"])
    if path[:1] != ("sources",) or path[2:3] != ("clean",):
        return False
    special: Any = data["sources"][path[1]].get("clean", {})
    for key in path[3:]:
        special = special.get(key) if isinstance(special, dict) else None
    alike = ((_path(other["loc"]), other["msg"]) for other in errors)
    return (path[2:], mistake["msg"]) in alike and special in (None, {})


def _phases(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the phases as they are written; none where they are no list of tables, which is told by the checks."""
    pretrain = data.get("pretrain")
    phases = pretrain.get("phases") if isinstance(pretrain, dict) else None
    return [phase for phase in phases if isinstance(phase, dict)] if isinstance(phases, list) else []


# `--set clean.inputs=[mine.txt]` means this text alone in every recipe. Beside sources it would be a mistake of
# somebody who does not know how the recipe names its text.
def _set_sources_aside(data: dict[str, Any], phases: Sequence[dict[str, Any]], name: str) -> None:
    """Take away the sources, and the shares of the phases, of which none is left."""
    if isinstance(data.get("sources"), dict) and (sources := data.pop("sources")):
        names = ", ".join(map(str, sources))
        log.warning(
            "%s: clean.inputs, as given here, is the only text; set aside: sources %s; sources.NAME.inputs changes one alone",
            name,
            names,
        )
        for phase in phases:
            for key in SHARES:
                phase.pop(key, None)


def _names_of_chats(data: Mapping[str, Any]) -> set[str]:
    """Return the names by which `finetune.mix` weighs the files of a recipe."""
    finetune = data.get("finetune")
    inputs = finetune.get("inputs") if isinstance(finetune, dict) else None
    return (
        {PurePosixPath(str(uri)).name.partition(".")[0] for uri in inputs if uri}
        if isinstance(inputs, list)
        else set()
    )


def _set_weights_aside(data: dict[str, Any], gone: set[str], name: str) -> None:
    """Take away the weights of files of chats that those of the command line have replaced."""
    mix = data["finetune"].get("mix")
    if isinstance(mix, dict) and (names := sorted(gone & mix.keys())):
        log.warning(
            "%s: finetune.inputs, as given here, are the only chats; set aside: finetune.mix of %s",
            name,
            ", ".join(names),
        )
        data["finetune"]["mix"] = {key: weight for key, weight in mix.items() if key not in gone}


def _keep_shares(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> None:
    """Give phases of the command line, which often are others in steps and rates alone, the shares of the recipe's."""
    for phase in after:
        alike = [one for one in before if one.get("trains") == phase.get("trains")] or before
        if alike and phase.get("mix") is None:
            phase.update({key: alike[-1][key] for key in SHARES if alike[-1].get(key) is not None})


# Overrides come before checks, so that their mistakes are listed with the others.
def _apply(data: dict[str, object], override: str) -> strict_yaml.Path:
    """Put an override into the data; the path that it has there."""
    key, equals, text = override.partition("=")
    if not equals or not key or not all(key.split(".")):
        raise RecipeError(f"--set {override!r}: write key.path=value, such as pretrain.batch_size=8")
    value, _ = strict_yaml.parse_yaml(text, f"--set {key}")
    *parents, last = key.split(".")
    node: Any = data
    path: strict_yaml.Path = ()
    for depth, part in enumerate(parents):
        path = (*path, _place(node, part, override))
        inner = node.get(part) if isinstance(node, dict) else node[path[-1]]
        if not isinstance(inner, dict | list):
            if isinstance(node, list):
                raise RecipeError(f"--set {override!r}: item {part} of the list is not a table")
            inner = node[part] = _default_at(parents[: depth + 1])
        node = inner
    path = (*path, _place(node, last, override))
    node[path[-1]] = value
    return path


def _place(node: object, part: str, override: str) -> str | int:
    """The key of a table or the index of a list that a part of a path names."""
    if not isinstance(node, list):
        return part
    places = {str(index): index for index in range(len(node))}
    if part not in places:
        raise RecipeError(f"--set {override!r}: {part!r} is not a place in a list of {len(node)}")
    return places[part]


def _default_at(keys: list[str]) -> dict[str, object] | list[object]:
    """The default of a list (so that one of its items can be set); an empty table elsewhere."""
    node: object = Recipe()
    for key in keys:
        node = getattr(node, key, None) if isinstance(node, BaseModel) else None
    if isinstance(node, tuple):
        return [i.model_dump(mode="json") if isinstance(i, BaseModel) else i for i in node]
    return {}


def mistakes(
    error: ValidationError, data: object, lines: Mapping[strict_yaml.Path, int], name: str,
    model: type[BaseModel], given: Sequence[strict_yaml.Path] = (),
) -> str:  # fmt: skip
    """Every mistake of a file, a line each: line, key, reason, value, nearest key.

    `given` are paths of the keys that the command line has set, which stand on no line of the file.
    """
    texts = []
    errors = error.errors(include_url=False)
    errors = [each for each in errors if not _is_inherited(each, errors, data)]
    for mistake in sorted(errors, key=lambda each: _order(_path(each["loc"]), lines, given)):
        path = _path(mistake["loc"])
        inside = (each for each in map(_path, (other["loc"] for other in errors)) if len(each) > len(path))
        if mistake["type"] == "too_short" and any(loc[: len(path)] == path for loc in inside):
            continue  # the list is short only because its wrong items do not count
        reason = reason_of(mistake)
        if mistake["type"] == "extra_forbidden":
            reason = f"unknown key{_key_hint(path, model)}"
        where = _where(path, lines, given)
        got = (
            ""
            if mistake["type"] == "missing" or not path or "password" in reason
            else f" (got {display_value(data, path)})"
        )
        texts.append(f"  {where}{'.'.join(map(str, path)) or 'recipe'}: {reason}{got}")
    return "\n".join([f"{name}: {counted(len(texts), 'mistake')}", *texts])


def _order(
    path: strict_yaml.Path, lines: Mapping[strict_yaml.Path, int], given: Sequence[strict_yaml.Path]
) -> tuple[bool, int]:
    """Where a mistake stands among the others: as in the file, then those of the command line."""
    on_command_line = any(path[: len(other)] == other for other in given)
    around = (path[:size] for size in range(len(path), 0, -1))
    return on_command_line, next((lines[part] for part in around if part in lines), 0)


def _path(loc: strict_yaml.Path) -> strict_yaml.Path:
    """The path of a mistake, without the names of kinds of value (`fields.UNION_TAG`) and pydantic's mark of a name."""
    return tuple(part for part in loc if not str(part).startswith(UNION_TAG) and part != "[key]")


def _where(
    path: strict_yaml.Path, lines: Mapping[strict_yaml.Path, int], given: Sequence[strict_yaml.Path]
) -> str:
    """Where a mistake was made: on a line of the file, on the command line, or where both meet."""
    if any(path[: len(other)] == other for other in given):
        return "command line: "
    line = lines.get(path) or (lines.get(path[:-1]) if len(path) > 1 else None)  # of the table that lacks it
    in_file = [f"line {line}"] if line else []
    below = ["command line"] if any(other[: len(path)] == path for other in given) else []
    places = " or ".join(in_file + below)
    return f"{places}: " if places else ""


def display_value(data: Any, path: Sequence[int | str]) -> str:
    """The value at a path, as a message shows it: short, and without passwords."""
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            break
    text = masked(json.dumps(data, ensure_ascii=False))
    return text if len(text) <= 60 else text[:57] + "..."


def _key_hint(path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """The key that was meant: one of the same table, else one of the tables below it."""
    top = model
    for key in path[:-1]:
        field = model.model_fields.get(str(key)) if isinstance(key, str) else None
        model = (_model_in(field.annotation) if field else None) or model
    word = str(path[-1])
    if here := _other_trainers(word, path, top):
        return here
    if hint := did_you_mean(word, list(model.model_fields)):
        return hint
    if here := _other_trainers(near_name(word), path, top):
        return here
    paths = paths_in(model)
    near = difflib.get_close_matches(word, set(paths.values()), n=1, cutoff=NEAR)
    begin = f"{word.partition('_')[0]}_"
    matches = (
        [path for path, key in paths.items() if key in near]
        or [path for path, key in paths_in(top).items() if key == word]
        or [path for path, key in paths.items() if key.startswith(begin)]
    )
    return f"; did you mean {' or '.join(map(repr, matches))}?" if 0 < len(matches) <= MAX_HINTS else ""


def _other_trainers(word: str, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Where a recipe has a setting that other trainers call so."""
    here = name_here(word, str(path[0]) if len(path) > 1 else "") if model is Recipe else ""
    return "" if not here else f"; {here}" if here.startswith("nowhere") else f"; here it is {here}"


def paths_in(model: type[BaseModel]) -> dict[str, str]:
    """Path of each key of a table and of the tables in it -> the key."""
    paths = {name: name for name in model.model_fields}
    for name, field in model.model_fields.items():
        # A section's default is one, also where a word may stand in its place.
        if isinstance(field.default, BaseModel):
            paths |= {f"{name}.{path}": key for path, key in paths_in(type(field.default)).items()}
    return paths


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation such as `tuple[Phase, ...]` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in models if model), None)
