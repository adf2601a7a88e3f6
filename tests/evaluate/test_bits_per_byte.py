import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from anadil.artifacts.scored_text import read_retained
from anadil.core.errors import DataError
from anadil.evaluate import bits_per_byte, shared_context
from anadil.evaluate.bits_per_byte import bits_by_group, domain_figures, score, windows
from anadil.model.load import encode_text
from anadil.text.corpus import Document
from tests.kit.families import make_family

from .conftest import TEXTS, tiny_model

Encoded = list[NDArray[np.int32]]


def encode(tokenizer: PreTrainedTokenizerFast, texts: tuple[str, ...]) -> Encoded:
    return [np.array(encode_text(tokenizer, text), dtype=np.int32) for text in texts]


def nats(
    model: Any, encoded: Encoded, context: int = 128, stride: int | None = None, batch_tokens: int = 256
) -> NDArray[np.float64]:
    return score(
        model, [([0], ids) for ids in encoded], context=context, stride=stride or context, batch_tokens=batch_tokens,
        name="base",
    )  # fmt: skip


def reference(model: Any, ids: NDArray[np.int32]) -> float:
    """The whole document at once, with all its logits."""
    full = torch.tensor([[0, *ids.tolist()]])
    with torch.inference_mode():
        logits = model(input_ids=full, use_cache=False).logits[0, :-1].double()
    return float(functional.cross_entropy(logits, full[0, 1:], reduction="sum"))


def rolling_reference(model: Any, ids: NDArray[np.int32], context: int) -> float:
    """lm-evaluation-harness's rule, written from its words: disjoint windows, the last one filled up."""
    full = [0, *ids.tolist()]
    total, done = 0.0, 0
    while done < len(ids):
        count = min(context, len(ids) - done)
        end = done + count
        begin = max(0, end - context)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([full[begin:end]]), use_cache=False).logits[0].double()
        targets = torch.tensor(full[done + 1 : end + 1])
        total += float(functional.cross_entropy(logits[-count:], targets, reduction="sum"))
        done = end
    return total


@given(n=st.integers(0, 300), context=st.integers(2, 70), bos=st.booleans(), data=st.data())
def test_every_token_is_scored_exactly_once_with_as_much_context_as_fits(
    n: int, context: int, bos: bool, data: st.DataObject
) -> None:
    stride, begin = data.draw(st.integers(1, context)), data.draw(st.integers(1, max(1, n)))

    spans = list(windows(n, context, stride, begin, bos=bos))

    assert [at for _, last, first in spans for at in range(first, last + 1)] == list(range(begin, n + 1))
    for start, last, first in spans:
        assert 0 <= start < first
        # BOS takes a place of each window that does not begin with the text.
        assert last - start + (bos and start > 0) == min(context, last)


def test_stride_equal_to_context_follows_the_harness(model: Any, tokenizer: Any) -> None:
    encoded = encode(tokenizer, (" ".join(TEXTS), TEXTS[0], " ".join(TEXTS[:3])))

    got = nats(model, encoded, context=32)

    assert got == pytest.approx([rolling_reference(model, ids, 32) for ids in encoded], rel=1e-6)
    assert len(encoded[0]) > 3 * 32


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_size_of_a_batch_and_order_of_documents_change_nothing(
    batch_tokens: int, model: Any, tokenizer: Any
) -> None:
    encoded = encode(tokenizer, (*TEXTS, "", " ".join(TEXTS)))

    got = nats(model, encoded[::-1], context=48, batch_tokens=batch_tokens)[::-1]

    assert got == pytest.approx(nats(model, encoded, context=48), rel=1e-6)
    assert (got == 0).tolist() == [not len(ids) for ids in encoded]


def test_the_head_in_small_pieces_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, model: Any, tokenizer: Any
) -> None:
    encoded = encode(tokenizer, TEXTS)
    whole = nats(model, encoded)
    monkeypatch.setattr("anadil.evaluate.bits_per_byte.LOGITS_PER_CHUNK", 1)

    got = nats(model, encoded)

    assert got == pytest.approx(whole, rel=1e-6)


def test_a_token_without_embedding_is_a_data_error(tokenizer: Any) -> None:
    encoded = encode(tokenizer, TEXTS)

    with pytest.raises(DataError, match=r"base: tokenizer gives token \d+, but the model has 300 embeddings"):
        nats(tiny_model(300), encoded)


def test_a_diverged_model_is_a_data_error(tokenizer: Any) -> None:
    model = tiny_model(len(tokenizer))
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))

    with pytest.raises(DataError, match="base: the model gives logits that are not finite"):
        nats(model, encode(tokenizer, TEXTS))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {}),
        ("gemma2", {"final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8, "head_dim": 8}),
        # So small that the first tokens' logits differ by less than the tolerance.
        ("gemma2", {"final_logit_softcapping": 30.0, "query_pre_attn_scalar": 8, "head_dim": 8}),
        ("cohere", {"logit_scale": 4.0}),
        ("granite", {"logits_scaling": 5.0}),
    ],
)
def test_other_families_also_those_that_cap_or_scale_their_logits_are_scored_by_their_own_forward_pass(
    tokenizer: Any, kind: str, settings: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3, pad_token_id=None, **settings,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    encoded = encode(tokenizer, TEXTS[:3])

    got = nats(model, encoded)

    assert got == pytest.approx([reference(model, ids) for ids in encoded], rel=1e-6)
    assert "forward" not in vars(model.base_model) or model.base_model.forward.__self__ is model.base_model


def test_logits_that_come_from_elsewhere_are_refused(tokenizer: Any) -> None:
    model: Any = tiny_model(len(tokenizer))
    own = model.forward

    def by_chance(**given: Any) -> Any:
        out = own(**given)
        out.logits = out.logits + torch.rand_like(out.logits)
        return out

    model.forward = by_chance

    with pytest.raises(DataError, match="model type 'llama' makes its logits of more than its last hidden"):
        nats(model, encode(tokenizer, TEXTS[:2]))


@pytest.mark.parametrize("stride", [24, 7])
def test_later_windows_begin_with_bos_where_the_tokenizer_sets_it(
    model: Any, tokenizer: PreTrainedTokenizerFast, stride: int
) -> None:
    (ids,) = encode(tokenizer, (" ".join(TEXTS),))
    full = [0, *ids.tolist()]
    expected = 0.0
    for start, last, first in windows(len(ids), 24, stride, bos=True):
        given_ids = [*([0] if start else []), *full[start:last]]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([given_ids]), use_cache=False).logits[0].double()
        targets = torch.tensor(full[first : last + 1])
        expected += float(functional.cross_entropy(logits[-len(targets) :], targets, reduction="sum"))

    got = score(model, [([0], ids)], bos=0, context=24, stride=stride, batch_tokens=64, name="base")
    bare = nats(model, [ids], 24, stride, 64)

    assert len(ids) > 48
    assert got[0] == pytest.approx(expected, rel=1e-6)
    assert got[0] != pytest.approx(bare[0], rel=1e-6)


def text_of(source: str, url: str = "", text: str = "Salam") -> Document:
    return Document(id=source, text=text, source=source, url=url, lang="az")


DOCUMENTS = [
    text_of("/data/news.jsonl:1", "https://azertag.az/1", "Bu gün yağış yağdı."),
    text_of("/data/news.jsonl:2", "https://report.az/2"),
    text_of("/data/law.jsonl:1"),
    text_of("/data/law.jsonl:2"),
]
SIZES = np.array([len(each.text.encode()) for each in DOCUMENTS])
NATS = np.array([40.0, 10.0, 5.0, 7.0])


def test_bits_per_byte_are_told_by_domain_and_by_source() -> None:
    figures = domain_figures(DOCUMENTS, SIZES, NATS, seed=0)

    sizes = SIZES.tolist()
    assert figures["domains"] == pytest.approx(
        {
            "azertag.az": 40 / math.log(2) / sizes[0],
            "report.az": 10 / math.log(2) / sizes[1],
            "law": 12 / math.log(2) / (sizes[2] + sizes[3]),
        }
    )
    assert figures["sources"] == pytest.approx(
        {"news": 50 / math.log(2) / (sizes[0] + sizes[1]), "law": 12 / math.log(2) / (sizes[2] + sizes[3])}
    )
    law = figures["domain_figures"]["law"]
    assert (law["num_documents"], law["num_bytes"], law["unsure"]) == (2, sizes[2] + sizes[3], True)
    assert law["interval"][0] <= figures["domains"]["law"] <= law["interval"][1]


def test_retained_text_is_told_by_the_language_that_its_rows_or_its_file_name(tmp_path: Path) -> None:
    (tmp_path / "news.jsonl").write_text(
        '{"text": "Привет", "lang": "ru"}\n{"text": "Да"}\n', encoding="utf-8"
    )
    (tmp_path / "tr.txt").write_text("Merhaba", encoding="utf-8")

    documents = read_retained(
        ["builtin:en/retained.jsonl", str(tmp_path / "news.jsonl"), str(tmp_path / "tr.txt")]
    )

    sizes = np.array([len(each.text.encode()) for each in documents])
    figures = bits_by_group(sizes, np.ones(len(documents)), [each.lang for each in documents])
    assert set(figures) == {"en", "ru", "news", "tr"}
    assert figures["tr"] == pytest.approx(1 / math.log(2) / len("Merhaba"))


def test_a_retained_file_without_text_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "ru.jsonl").write_text('{"text": ""}\n', encoding="utf-8")

    with pytest.raises(DataError, match=r"evaluate\.retained: .*ru\.jsonl holds no text; name another file"):
        read_retained([str(tmp_path / "ru.jsonl")])


SHARING = ("llama", "gemma2", "gemma3_text", "gpt_neox", "mistral", "qwen3", "mixtral")
ALONE = ("qwen3_5_text", "lfm2", "granitemoehybrid", "gpt_oss")
"""Layers that read in order, and a window that is shorter than the texts."""


@pytest.mark.parametrize("kind", [*SHARING, *ALONE])
def test_choices_that_share_a_context_have_the_nats_of_each_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_family(tmp_path / kind, kind), dtype=torch.float32)
    draw = np.random.default_rng(0)
    contexts = [draw.integers(3, 60, size).tolist() for size in (9, 12, 2)]
    pairs = [
        (contexts[place % 3], draw.integers(3, 60, size).tolist())
        for place, size in enumerate((3, 5, 1, 4, 6, 2, 3, 0))
    ]
    shared: list[int] = []
    hidden = shared_context.shared_hidden

    def counted(model: Any, rows: Any) -> Any:
        shared.extend(len(row.members) for row in rows)
        return hidden(model, rows)

    def scored() -> NDArray[np.float64]:
        return score(model, pairs, context=32, stride=32, batch_tokens=64, name="base")

    monkeypatch.setattr(bits_per_byte, "shared_hidden", counted)
    together = scored()
    monkeypatch.setattr(bits_per_byte, "shared_rows", lambda *_: [])

    assert together == pytest.approx(scored(), rel=1e-4)
    assert sum(shared) == (0 if kind in ALONE else 5)
