"""The part of pages on a merge: what was merged, and how its values were chosen."""

from collections.abc import Iterator, Mapping, Sequence

from anadil.artifacts.artifact import Manifest
from anadil.core.format import DASH, number
from anadil.core.table import Table
from anadil.page.charts import Bar, Chart, Line, Point, scatter_chart
from anadil.page.format import clip, figure, setting
from anadil.page.licence import UNKNOWN, licence_of
from anadil.page.part import Part
from anadil.page.values import Json, base_name, field, list_of, named_tables, table_of

FILE = "merge.json"
MAX_TOKENS = 12
"""Most control tokens that are named."""
MAX_TEXTS = 4
"""Most retained texts that are drawn; the table has them all."""


def part(made: Json, recipe: Json, manifests: Mapping[str, Manifest]) -> Part | None:  # noqa: ARG001  all views have these
    """The part; None where nothing was merged."""
    if not made:
        return None
    share, parts = number(made.get("base_share")) or 0.0, ["the trained model"]
    parts += [f"{figure(share)} of the base"] if share else []
    parts += [
        f"{figure(each.get('weight'))} of what {base_name(str(each.get('model')))} learnt beyond {base_name(str(each.get('minus')))}"
        for each in map(table_of, list_of(made.get("add")))
    ]
    points = _points_table(made)
    texts = _text_names(made)[:MAX_TEXTS]
    return Part(
        section="training",
        title="Merge",
        words=f"Merged: {', '.join(parts)}.",
        tables=[_table(made, table_of(field(recipe, "report.licences"))), points],
        reasons=tuple(dict.fromkeys([*_texts(made, "reasons"), *_texts(made, "warnings")])),
        charts=tuple(each for text in texts if (each := _chart(made, text, points))),
        notes=tuple(f"Rule of {rule}." for rule in _texts(made, "rules")),
        licence_note="The licences of the models that were merged into it hold as well: see Merge."
        if made.get("add")
        else "",
    )


def _table(merge: Json, licences: Mapping[str, object]) -> Table:
    """A row for each model of the merge; `licences` are those that the recipe states."""
    tokens = [
        str(token) for each in list_of(merge.get("add")) for token in list_of(field(each, "control_tokens"))
    ]
    note = ""
    if tokens:
        more = f" and {len(tokens) - MAX_TOKENS} more" if len(tokens) > MAX_TOKENS else ""
        note = f"Rows of control tokens are those of the model that was added: {', '.join(tokens[:MAX_TOKENS])}{more}."
    rows = [*_rows(merge, licences)]
    columns = ("model", "weight", "difference, of the weights", "licence")
    return Table("What was merged", columns, rows, words=(3,), note=clip(note, 400))


def _rows(merge: Json, licences: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    share, base = number(merge.get("base_share")) or 0.0, str(merge.get("base") or "")
    licence = _licence(base, licences.get("base"))
    yield "trained model", figure(1 - share), DASH, licence
    if share:
        yield f"{base_name(base)} (base)", figure(share), DASH, licence
    for each in map(table_of, list_of(merge.get("add"))):
        model = str(each.get("model") or "")
        yield (
            f"{base_name(model)} less {base_name(str(each.get('minus')))}",
            figure(each.get("weight")),
            figure(each.get("relative_difference"), 2),
            _licence(model, licences.get(model)),
        )


def _licence(model: str, stated: object) -> str:
    licence = licence_of(model, str(stated or ""))
    return "not known" if licence.id == UNKNOWN else licence.name or licence.id


def _texts(merge: Json, key: str) -> tuple[str, ...]:
    return tuple(clip(each, 600) for each in list_of(merge.get(key)))


def _points(merge: Json) -> list[Json]:
    return [table_of(each) for each in list_of(merge.get("points"))]


def _text_names(merge: Json) -> list[str]:
    return list(dict.fromkeys(name for each in _points(merge) for name in table_of(each.get("retained"))))


def _points_table(merge: Json) -> Table:
    names, points = _text_names(merge), _points(merge)
    with_weights = any(list_of(each.get("weights")) for each in points)
    columns = (
        "base_share", *(["weights"] if with_weights else []), "target, bits per byte",
        *(f"{clip(name, 40)}, over the base's" for name in names), "within the limit",
    )  # fmt: skip
    rows = []
    for each in points:
        retained = dict(named_tables(each.get("retained")))
        within = each.get("within")
        rows.append(
            (
                setting(each.get("base_share")),
                *([_weights(each)] if with_weights else []),
                figure(each.get("target")),
                *(_ratio(retained.get(name, {})) for name in names),
                ("yes" if within else "no") if isinstance(within, bool) else DASH,
            )
        )
    chosen = next((place for place, each in enumerate(points) if _is_chosen(merge, each)), None)
    counts = ", ".join(
        f"{clip(name, 40)} {figure(count)}" for name, count in table_of(merge.get("texts")).items()
    )
    note = (
        f"In brackets, the upper end of the 95 % interval. Documents, which no score uses: {counts}."
        if counts
        else ""
    )
    return Table(
        "Merges that were measured", columns, rows, words=(len(columns) - 1,), marked=chosen, note=note
    )


def _ratio(text: Json) -> str:
    return f"{figure(text.get('ratio'))} (to {figure(text.get('high'))})"


def _weights(point: Json) -> str:
    return " ".join(setting(weight) for weight in list_of(point.get("weights")))


def _is_chosen(merge: Json, point: Json) -> bool:
    return all(field(merge, f"chosen.{key}") == point.get(key) for key in ("base_share", "weights"))


def _chart(merge: Json, text: str, table: Table) -> Chart | None:
    """The taught language against one retained text, each measured merge a dot."""
    limit, points = number(field(merge, "limits.retained")), _points(merge)
    drawn = [
        (each, Point(label, float(x), float(y), colour))
        for each, (label, colour) in zip(points, _labels(points), strict=True)
        if (x := number(field(each, f"retained.{text}.high"))) is not None
        and (y := number(each.get("target"))) is not None
    ]
    if limit is None:
        return None
    dots = [dot for each, dot in drawn if not _is_chosen(merge, each)]
    ring = next((dot for each, dot in drawn if _is_chosen(merge, each)), None)
    # The points come in the order of what was varied.
    path = tuple((dot.x, dot.y) for _, dot in drawn if dot.colour == drawn[0][1].colour)
    title = f"Target language against {clip(text, 40)}"
    svg = scatter_chart(
        dots, Line("merges", path), limit=Bar(f"limit {setting(limit)}", limit), title=title, chosen=ring,
        units=("over the base's, to the end of the interval", "bits per byte of the target"),
    )  # fmt: skip
    return Chart(title, svg, table) if svg else None


def _labels(points: Sequence[Json]) -> list[tuple[str, int]]:
    """Label and colour of each point: the shares, then what was measured for weights."""
    first = next((list_of(each.get("weights")) for each in points), [])
    return [
        (setting(each.get("base_share")), 1)
        if list_of(each.get("weights")) == first
        else (f"weight {_weights(each)}", 2)
        for each in points
    ]
