"""Byte symbols: the printable characters as which byte-level BPE writes the 256 bytes, and pairs of tokens in them."""

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
SYMBOLS = tuple(chr(byte) if byte in _PRINTABLE else chr(256 + _OTHERS.index(byte)) for byte in range(256))
"""Byte -> its symbol. Source: openai/gpt-2, src/encoder.py, `bytes_to_unicode`."""
ALPHABET = tuple(sorted(SYMBOLS))
"""All of them, as tokenizers and GPT-2 number them."""
_TO_SYMBOLS = dict(enumerate(SYMBOLS))
_TO_BYTES = {ord(symbol): byte for byte, symbol in enumerate(SYMBOLS)}

Merge = tuple[str, str]
"""Two tokens in byte symbols that become one."""


def to_symbols(data: bytes) -> str:
    """Bytes in byte symbols."""
    return data.decode("latin-1").translate(_TO_SYMBOLS)


def to_bytes(symbols: str) -> bytes:
    """The bytes of a token or pretoken in byte symbols."""
    return symbols.translate(_TO_BYTES).encode("latin-1")


def to_text(symbols: str) -> str:
    """The text of a token or pretoken in byte symbols; U+FFFD where it is no UTF-8."""
    return to_bytes(symbols).decode(errors="replace")
