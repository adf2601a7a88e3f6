"""The licence of a model: that of its base, whoever has trained it further.

Sources in this order: the base's own directory (`README.md`, a licence file), the maker's name in a hub id, the recipe.
If none of them names a licence, it is `unknown`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts.base_kind import card_fields
from anadil.artifacts.base_model import TINY
from anadil.artifacts.packaged_base import PACKAGED
from anadil.core.format import one_line
from anadil.page.values import last_part

UNKNOWN = "unknown"
HUB_LICENCE_NAMES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0
cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl
gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr
mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr
deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4
grok2-community gemma
"""
HUB_LICENCES = frozenset(HUB_LICENCE_NAMES.split())
"""Source: Hugging Face documentation, "Licenses", beside `unknown` and `other`."""
LLAMA = re.compile(r"llama[-_ ]?(?P<version>[234](\.[123])?)(?![\d.]*[bB])", re.IGNORECASE)
LLAMA_AGREEMENT = re.compile(r"LLAMA\s+(?P<version>[234](\.[123])?)\s+COMMUNITY\s+LICENSE", re.IGNORECASE)
META_NAME = re.compile(r"(?:Meta-)?Llama-(?P<version>[234](?:\.[123])?)-", re.IGNORECASE)
"""Names of Meta's models, such as `Llama-3.2-1B` and `Meta-Llama-3-8B-Instruct`."""
BEGINNINGS = {
    "apache-2.0": re.compile(r"Apache License\s+Version 2\.0", re.IGNORECASE),
    "mit": re.compile(r"\bMIT License\b|Permission is hereby granted, free of charge", re.IGNORECASE),
    "gemma": re.compile(r"Gemma Terms of Use", re.IGNORECASE),
}
"""Licence -> words among the first `HEAD_BYTES` of its text."""
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "LICENCE.txt", "COPYING")
POLICY_FILES = ("USE_POLICY.md", "NOTICE", "NOTICE.txt", "Notice")
HEAD_BYTES = 4_096
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """A licence, as far as it is known."""

    id: str = UNKNOWN
    """Name on the hub; `other` without one."""
    name: str = ""
    link: str = ""
    told_by: str = ""
    """Source, such as `says the base's README.md`; empty: none."""
    built_with: str = ""
    prefix: str = ""
    notice: str = ""
    """Required content of a file `NOTICE` beside the weights."""

    @property
    def address(self) -> str:
        """The link if it is a plain address, which Markdown holds without escapes."""
        return self.link if re.fullmatch(r"https://[\w.-]+(/[\w.-]*)*", self.link) else ""

    @property
    def is_known(self) -> bool:
        """True if a source names it."""
        return self.id != UNKNOWN


UNKNOWN_LICENCE: Licence = Licence()


def licence_of(model: str, stated: str = "") -> Licence:
    """The licence of everything made from `base.model`, with `report.licences.base` as the last source."""
    if model == TINY:
        return Licence(id="apache-2.0", name="Apache License 2.0", told_by="the base is made by anadil")
    if base := PACKAGED.get(model):
        told_by = f"by the Python package {base.package}"
        return Licence(id=base.licence, name=base.licence_name, told_by=told_by)
    folder = Path(model).expanduser()
    licence = next(_of_directory(folder), None) if folder.is_dir() else None
    if licence is None and (match := META_NAME.match(last_part(model))):
        licence = _llama(match["version"], f"by the name of the base, {last_part(model)}")
    if licence is None and stated:
        licence = named_licence(stated, "says the recipe in report.licences; nobody has checked it")
    return licence or UNKNOWN_LICENCE


def named_licence(name: str, told_by: str) -> Licence:
    """A licence by a name that a person gave it."""
    if match := LLAMA.search(name):
        return _llama(match["version"], told_by)
    known = hub_licence(name)
    return Licence(id=known or "other", name=name if known is None else known, told_by=told_by)


def hub_licence(name: str) -> str | None:
    """The hub's name of a licence, such as `cc-by-4.0` of `CC BY 4.0`; None where it has none of its own."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower()).removesuffix("-license").removesuffix("-licence")
    return plain if plain in HUB_LICENCES else None


def licence_files(model: str, stated: str = "") -> dict[str, bytes]:
    """Files that belong beside the weights: the base's licence and policy, and the notice that the licence asks for."""
    folder = Path(model).expanduser()
    names = (*LICENCE_FILES, *POLICY_FILES) if folder.is_dir() else ()
    files = {
        name: (folder / name).read_bytes()
        for name in names
        if (folder / name).is_file() and (folder / name).stat().st_size <= MAX_FILE_BYTES
    }
    notice = licence_of(model, stated).notice
    return files if not notice or "NOTICE" in files else {**files, "NOTICE": f"{notice}\n".encode()}


def _of_directory(folder: Path) -> Iterator[Licence]:
    """Licences by the files of a base, most reliable first."""
    said = card_fields(folder)
    stated = said.get("license")
    if isinstance(stated, str) and stated not in ("other", UNKNOWN):
        yield named_licence(one_line(stated, 200), "says the base's README.md")
    for file in (folder / each for each in LICENCE_FILES):
        text = _head(file)
        if match := LLAMA_AGREEMENT.search(text):
            yield _llama(match["version"], f"says the base's {file.name}")
        for known, beginning in BEGINNINGS.items():
            if beginning.search(text):
                yield Licence(id=known, name=known, told_by=f"says the base's {file.name}")
    if said.get("license_name"):
        name, link = (one_line(str(said.get(key) or ""), 200) for key in ("license_name", "license_link"))
        yield Licence(id="other", name=name, link=link, told_by="says the base's README.md")
    for each in LICENCE_FILES:
        if (folder / each).is_file():
            yield Licence(
                id="other", name=f"see {each} of the base", link=each, told_by="by the base's files"
            )


def _llama(version: str, told_by: str) -> Licence:
    """A community licence of Meta, with what it asks for. Source: its section 1.b of each version."""
    maker = "Meta Llama 3" if version == "3" else f"Llama {version}"
    asks = version != "2"
    return Licence(
        id=f"llama{version}",
        name=f"{maker} Community License",
        link=f"https://www.llama.com/llama{version.replace('.', '_')}/license/",
        told_by=told_by,
        built_with=("Built with Meta Llama 3" if version == "3" else "Built with Llama") if asks else "",
        prefix="Llama" if asks else "",
        notice=f"{maker} is licensed under the {maker} Community License, Copyright \N{COPYRIGHT SIGN} Meta Platforms, "
        "Inc. All Rights Reserved.",
    )


def _head(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        return stream.read(HEAD_BYTES).decode(errors="replace")
