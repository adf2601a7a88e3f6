"""What a tokenizer costs on held-out text, and whether it gives the text back."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


from tokenizers import Tokenizer

from anadil import metrics
from anadil.errors import DataError
from anadil.languages.language import Language
from anadil.progress import progress

BATCH = 64
NUM_SAMPLES = 8
MIN_SAMPLE_CHARS = 8
KNOWN_WORDS = {"az": ("kitablardan",)}
"""Words that the report cuts up. Source: "Azerbaijani Llama on Amazon SageMaker AI", AWS, for az."""
