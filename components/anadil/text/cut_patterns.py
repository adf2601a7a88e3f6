"""Where byte-level tokenizers cut a text before they merge: the patterns whose cuts we know."""

LLAMA_3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Source: meta-llama/llama-models, models/llama3/tokenizer.py."""
QWEN_REGEX = LLAMA_3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
"""Source: Qwen/Qwen2.5-0.5B, tokenizer.json."""
GPT_2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` of the tokenizers library cuts by. Source: openai/gpt-2, src/encoder.py."""
KNOWN_PATTERNS = (LLAMA_3_REGEX, QWEN_REGEX, GPT_2_REGEX)
"""Those by which tiktoken and tokenizers cut alike round every code point, although their regular
expressions come from different libraries; `tests/text/test_encoder.py` tries them."""
