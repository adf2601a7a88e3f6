"""A base that writes short documents."""

from pathlib import Path

import pytest

from anadil.replay import write_documents
from tests.kit.writing_base import writing_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writing_base(tmp_path_factory.mktemp("base") / "talks")


@pytest.fixture(autouse=True)
def short_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_documents, "MAX_TOKENS", 64)
    monkeypatch.setattr(write_documents, "QUESTION_TOKENS", 32)
    monkeypatch.setattr(write_documents, "ANSWER_TOKENS", 32)
