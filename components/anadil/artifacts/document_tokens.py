"""Tokens that begin and end a document, by the names that tokenizers of many families give them."""

from collections.abc import Mapping

from anadil.artifacts.base_vocabulary import USUAL_ENDS

END_OF_TEXT = "<|end_of_text|>"
END_OF_TURN = "<|eot_id|>"
OTHER_ENDS_OF_TURNS = ("<|im_end|>", "<end_of_turn>", "<|end|>", "<|turn_end|>")
"""Ends of turns in bases other than Llama 3: Qwen and others that write ChatML, Gemma, Phi. A base's EOS is the end of a text, and
one that was taught chats would never be stopped by it."""
BEGINNINGS_OF_TURNS = ("<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|start|>", "<|user|>")
"""Beginnings of turns in the same. SmolLM2's Instruct models call theirs BOS; in their pre-training it stood nowhere."""


def ends_of(vocabulary: Mapping[str, int], eos: str | None) -> list[int]:
    """Return the ids that end a generation; the first ends a document."""
    # An Instruct model's EOS ends turns; its pre-training ended documents with another token.
    documents = [vocabulary[token] for token in (END_OF_TEXT, END_OF_TURN) if token in vocabulary]
    if not documents and eos in OTHER_ENDS_OF_TURNS:
        documents = [vocabulary[token] for token in USUAL_ENDS if token in vocabulary][:1]
    ends = documents or ([vocabulary[eos]] if eos is not None and eos in vocabulary else [])
    turns = [vocabulary[token] for token in OTHER_ENDS_OF_TURNS if token in vocabulary]
    return list(dict.fromkeys([*ends, *turns]))


def begins_turns(bos: str | None, template: str) -> bool:
    """Return whether a token that settings call BOS is the beginning of a turn, which begins no document."""
    return bos in BEGINNINGS_OF_TURNS and "bos_token" not in template
