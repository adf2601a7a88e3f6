import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.core.stages import STAGES
from anadil.recipe.sections import Base, Recipe
from anadil.runtime.job import Job, external_side_files
from anadil.text.corpus import Document, write_documents

SENTENCES = (
    "Azərbaycan Respublikasının paytaxtı Bakı şəhəridir.",
    "Kitablardan öyrəndiklərini dostlarına danışmağı çox sevirdi.",
    "Məktəbin kitabxanasında minlərlə kitab var, uşaqlar hər gün oraya gedirlər.",
    "Yağış yağanda küçələr bomboş olur, amma balacalar gölməçələrdə oynayırlar.",
    "Nənəm hər səhər tezdən durub təndirdə çörək bişirir.",
    "Qatar saat 8:45-də yola düşəcək, biletlərin qiyməti 12 manatdır.",
    "Şəhərin mərkəzində yeni park salınıb, axşamlar orada gəzmək xoşdur.",
    "Həkim xəstəyə hər gün iki dəfə dərman içməyi tövsiyə etdi.",
    "Dağların zirvəsində qar yayda da ərimir.",
    "Kənddə yaşayan qohumlarımız üzüm və nar yetişdirirlər.",
    "Müəllim dedi: “Kitabları oxuyun, sonra suallara cavab verin!”",
    "Xəzər dənizinin sahilində külək demək olar ki, heç vaxt dayanmır.",
    "İclasda büdcə məsələləri müzakirə olundu və qərar qəbul edildi.",
    "Bu kitabların hamısını yaxşı oxumuşam, kitablarda çox maraqlı fikirlər var.",
    "Telefonun ekranı sındığı üçün onu təmirə verməli oldum.",
    "Qonşumuz hər il bağından bizə alma və armud gətirir.",
)


def documents(texts: list[str]) -> list[Document]:
    return [
        Document(
            id=hashlib.sha256(text.encode()).hexdigest(), text=text, source=f"memory {n}", url="", lang="az"
        )
        for n, text in enumerate(texts)
    ]


def written(job: Job, name: str) -> Any:
    """A JSON file that the stage wrote."""
    return json.loads((job.out / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def base_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("base")


@pytest.fixture(scope="session")
def tiny_folder(base_cache: Path) -> Path:
    return base_tokenizer(Base(model="tiny"), base_cache)


@pytest.fixture
def tiny(tiny_folder: Path) -> Tokenizer:
    return read_tokenizer(tiny_folder)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_documents(
        folder, "train", documents([f"{one}\n{two}" for one in SENTENCES for two in SENTENCES[:13]])
    )
    write_documents(folder, "heldout", documents(list(SENTENCES[13:])))
    return folder


@pytest.fixture
def make_job(tmp_path: Path, corpus: Path, base_cache: Path) -> Callable[..., Job]:
    def make(base: str = "tiny", corpus: Path = corpus, **tokenizer: Any) -> Job:
        recipe = Recipe.model_validate({"base": {"model": base}, "tokenizer": tokenizer})
        out = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}"
        out.mkdir()
        side_files = external_side_files(STAGES["tokenizer"], recipe)
        return Job(
            recipe=recipe, inputs={"corpus": corpus}, side_files=side_files, out=out, work=tmp_path / "work",
            base_cache=base_cache,
        )  # fmt: skip

    return make
