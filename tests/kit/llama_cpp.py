"""llama.cpp itself, by the C functions that the package xllamacpp carries: token ids and logits of a GGUF file.

The package's own classes are a server, which gives no logits. The functions are those of llama.cpp's include/llama.h.
Two of its structs are passed by value and change from version to version; here they are opaque, larger than any
version's, and the caller's bytes behind the true end are not read (System V ABI, x86-64: structs beyond 16 bytes lie in
memory). Fields that are set are looked up by their defaults.
"""

import ctypes
import importlib.util
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Opaque(ctypes.Structure):
    """Parameters of a model or a context."""

    _fields_ = (("raw", ctypes.c_uint8 * 512),)


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


@cache
def library() -> Any:
    """llama.cpp, which says nothing while it loads a model."""
    found = importlib.util.find_spec("xllamacpp")
    assert found, "pip install xllamacpp"
    (file,) = Path((found.submodule_search_locations or [""])[0]).glob("*.so")
    loaded: Any = ctypes.CDLL(str(file))
    results = {
        "llama_model_default_params": Opaque,
        "llama_context_default_params": Opaque,
        "llama_model_load_from_file": ctypes.c_void_p,
        "llama_init_from_model": ctypes.c_void_p,
        "llama_model_get_vocab": ctypes.c_void_p,
        "llama_get_logits": ctypes.POINTER(ctypes.c_float),
        "llama_vocab_n_tokens": ctypes.c_int32,
        "llama_model_chat_template": ctypes.c_char_p,
    }
    for name, kind in results.items():
        getattr(loaded, name).restype = kind
    loaded.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    loaded.llama_log_set(loaded.silence, None)
    loaded.llama_backend_init()
    return loaded


class LlamaCpp:
    """A GGUF file, loaded."""

    def __init__(self, model: int) -> None:
        self._model = ctypes.c_void_p(model)
        self._vocabulary = ctypes.c_void_p(library().llama_model_get_vocab(self._model))

    @property
    def num_tokens(self) -> int:
        """Of the vocabulary."""
        return int(library().llama_vocab_n_tokens(self._vocabulary))

    @property
    def special(self) -> dict[str, int]:
        """Ids by role; -1 where there is none."""
        return {
            role: getattr(library(), f"llama_vocab_{role}")(self._vocabulary)
            for role in ("bos", "eos", "eot", "pad")
        }

    def ends(self, token: int) -> bool:
        """Whether it ends a generation."""
        ask = library().llama_vocab_is_eog
        ask.restype = ctypes.c_bool
        return bool(ask(self._vocabulary, ctypes.c_int32(token)))

    def template(self) -> str:
        """The chat template of the file."""
        return bytes(library().llama_model_chat_template(self._model, None) or b"").decode()

    def encode(self, text: str, *, special: bool = False, parse: bool = False) -> list[int]:
        """Token ids; with BOS where the file says so if `special`, control tokens read as such if `parse`."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        number = library().llama_tokenize(
            self._vocabulary, data, len(data), ids, len(ids), ctypes.c_bool(special), ctypes.c_bool(parse)
        )
        assert number >= 0, "more tokens than bytes"
        return list(ids[:number])

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """(tokens, vocabulary), computed in FP32 as far as the file holds FP32."""
        parameters = library().llama_context_default_params()
        _compute_in_fp32(parameters.raw)
        context = ctypes.c_void_p(library().llama_init_from_model(self._model, parameters))
        assert context.value, "llama.cpp made no context"
        try:
            tokens = (ctypes.c_int32 * len(ids))(*ids)
            wanted = (ctypes.c_int8 * len(ids))(*[1] * len(ids))
            batch = Batch(n_tokens=len(ids), token=tokens, logits=wanted)
            assert library().llama_decode(context, batch) == 0
            found = library().llama_get_logits(context)
            return np.ctypeslib.as_array(found, (len(ids), self.num_tokens)).copy()
        finally:
            library().llama_free(context)


def _compute_in_fp32(raw: Any) -> None:
    """Set parameters of a context, found by their defaults: the cache's types, and no flash attention.

    As they come, keys and values are kept in FP16, and flash attention multiplies in FP16.
    """
    types = struct.pack("<2i", 1, 1)  # GGML_TYPE_F16, behind and before two null pointers
    # rope_scaling_type, pooling_type, attention_type, flash_attn_type, then rope_freq_base and others
    kinds = struct.pack("<4i3f", -1, -1, -1, -1, 0, 0, -1)
    for pattern, skipped, value in ((bytes(16) + types + bytes(16), 16, (0, 0)), (kinds, 12, (0,))):
        at = bytes(raw).index(pattern)
        assert bytes(raw).find(pattern, at + 1) < 0
        struct.pack_into(f"<{len(value)}i", raw, at + skipped, *value)


@contextmanager
def opened(file: Path) -> Iterator[LlamaCpp]:
    """Load a GGUF file."""
    model = library().llama_model_load_from_file(str(file).encode(), library().llama_model_default_params())
    assert model, f"llama.cpp does not load {file}"
    try:
        yield LlamaCpp(model)
    finally:
        library().llama_model_free(ctypes.c_void_p(model))
