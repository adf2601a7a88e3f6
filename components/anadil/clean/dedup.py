"""Equal documents: what makes texts equal."""

import xxhash

from anadil.text.language import Language


def exact_key(text: str, language: Language) -> int:
    """Hash that is equal for texts that differ in case and white space only."""
    return xxhash.xxh3_128_intdigest(" ".join(language.fold(text).split()).encode())
