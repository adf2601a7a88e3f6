"""Equal documents: what makes texts equal, and how far near duplicates are looked for."""

import xxhash

from anadil.text.language import Language

MAX_UNVERIFIED = 50
"""Members up to which a cluster is taken as found. In larger ones chains join what is not alike."""
MAX_KEPT_IN_BUCKET = 8
"""Kept documents of a bucket that a further one is compared with: keeps the time linear."""


def exact_key(text: str, language: Language) -> int:
    """Hash that is equal for texts that differ in case and white space only."""
    return xxhash.xxh3_128_intdigest(" ".join(language.fold(text).split()).encode())
