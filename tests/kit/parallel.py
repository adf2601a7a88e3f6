"""Sentences in English with their translations into Azerbaijani, and a recipe with a source of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, external_side_files
from tests.kit.clean_stage import InThisProcess, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

PAIRS = [
    ("The museum in the old town opens at nine every morning.", "Köhnə şəhərdəki muzey hər səhər saat doqquzda açılır."),
    ("She wrote her first novel while working at the hospital.", "O, ilk romanını xəstəxanada işləyərkən yazmışdır."),
    ("The river froze so hard that people could walk across it.", "Çay elə möhkəm donmuşdu ki, insanlar üstündən keçə bilirdi."),
    ("Our teacher asked us to bring a map of the whole country.", "Müəllimimiz bizdən bütün ölkənin xəritəsini gətirməyi xahiş etdi."),
    ("Scientists found a new kind of butterfly in the mountains.", "Alimlər dağlarda kəpənəyin yeni bir növünü aşkar etdilər."),
    ("The price of bread has doubled since the last winter ended.", "Keçən qış bitəndən bəri çörəyin qiyməti iki dəfə artıb."),
    ("My grandfather keeps bees behind the house near the forest.", "Babam meşənin yaxınlığındakı evin arxasında arı saxlayır."),
    ("They rebuilt the bridge that the flood had washed away.", "Onlar daşqının apardığı körpünü yenidən tikdilər."),
    ("Children learn languages faster than most adults expect.", "Uşaqlar dilləri böyüklərin gözlədiyindən daha tez öyrənir."),
    ("The orchestra played a piece that nobody had heard before.", "Orkestr əvvəllər heç kimin eşitmədiyi bir əsəri ifa etdi."),
    ("Hello!", "Salam!"),
    ("Where are you?", "Haradasan?"),
]  # fmt: skip
TURKISH = [
    "Eski şehirdeki müze her sabah saat dokuzda kapılarını açıyor.",
    "İlk romanını hastanede çalışırken geceleri yazmıştı.",
    "Nehir o kadar donmuştu ki insanlar üzerinden yürüyerek geçiyordu.",
    "Öğretmenimiz bizden bütün ülkenin haritasını getirmemizi istedi.",
]


def write_pairs(path: Path, pairs: Sequence[Sequence[str]]) -> Path:
    """Write rows of a table as its name says: tabs, or JSON lines with `en` and `az`."""
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(("en", "az"), pair, strict=True)), ensure_ascii=False) for pair in pairs]
    else:
        lines = ["\t".join(pair) for pair in pairs]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def recipe_of_pairs(folder: Path, *files: Path, pairs: Sequence[str] = ("en", "az"), **more: Any) -> Recipe:
    """A recipe with a source `pairs` beside one in the language that is taught."""
    web = write_jsonl(folder / "web.jsonl", [AZERBAIJANI, ANOTHER, f"{ANOTHER} {AZERBAIJANI}"])
    data: dict[str, Any] = {
        "language": "az",
        "storage": {"root": str(folder / "artifacts")},
        "clean": {"workers": 1},
        "sources": {
            "web": {"inputs": [str(web)]},
            "pairs": {"inputs": [str(file) for file in files], "pairs": list(pairs)},
        },
        "pretrain": {
            "phases": [{"trains": "all", "steps": 1, "lr": 0.001, "mix": {"web": 0.5, "pairs": 0.5}}]
        },
        **more,
    }
    return parse_recipe(json.dumps(data), "recipe")


def clean_pairs(folder: Path, *files: Path, pairs: Sequence[str] = ("en", "az"), **more: Any) -> Path:
    """The corpus of a source of pairs."""
    from anadil.clean.run import run

    recipe = recipe_of_pairs(folder, *files, pairs=pairs, **more).of_source("pairs")
    out = folder / "corpus"
    out.mkdir()
    job = Job(
        recipe=recipe, inputs={}, files=tuple(map(str, files)), out=out, work=folder, base_cache=folder,
        side_files=external_side_files(STAGES["clean"], recipe),
    )  # fmt: skip
    run(job, InThisProcess())
    return out
