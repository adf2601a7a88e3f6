"""Key of a blind comparison: it says which candidate wrote which text, and judges do not get it."""

import hashlib
import json
from dataclasses import asdict, dataclass

from anadil.core.json_text import json_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An entry of the key."""

    id: str
    left: int
    """Place among the candidates of the one whose text stands first."""
    prompt: str
    texts: tuple[str, str]
    """Digests, in the order of the candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The file that says who wrote what."""

    between: tuple[str, str]
    """Candidates."""
    scores: str
    """URI of the scores with the texts."""
    seed: int
    salt: str
    """Keeps a judge from finding the key by trying places until the digest on the page fits."""
    pairs: tuple[KeyPair, ...]

    @property
    def list(self) -> str:
        """Digest of the whole key, which page and votes name."""
        return json_sha256(asdict(self))


def text_digest(text: str) -> str:
    """Return the digest by which a later evaluation knows that a candidate still writes a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def key_json(key: Key) -> str:
    """Return the file of a key, with its digest."""
    return json.dumps(asdict(key) | {"list": key.list}, ensure_ascii=False, indent=1) + "\n"
