"""Write components/anadil/tasks/shipped/native.tsv from the task files of lm-evaluation-harness, and from those shipped here.

`python scripts/make_native_tasks.py` writes it, `--check` exits 1 where the file differs. Ids of languages that no list of
ours knows are said on stderr.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from anadil.tasks.native import TABLE, benchmarks
from anadil.text.language import find_language, known_languages
from generate import write_or_check

NAMES = {"Bengali": "bn", "North Macedonian": "mk", "Tagalog": "fil"}
"""INCLUDE's names for languages that CLDR calls otherwise."""
TUMLU = {"crimean-tatar": "crh", "karakalpak": "kaa"}
"""TUMLU's names likewise."""


def page() -> str:
    """The text of the table."""
    by_name = {row.name.lower(): row.code for row in known_languages().values() if "-" not in row.code}
    rows, unknown = set(), []
    for benchmark, language, task in harness_tasks():
        named = NAMES.get(language) or TUMLU.get(language) or by_name.get(language.lower())
        row = find_language(language) if named is None else None
        # An id with a region, such as `fra_latn_cana`.
        row = row or find_language("_".join(language.split("_")[:2]))
        code = named or (row.code if row else "")
        if code:
            rows.add((code, benchmark, task))
        else:
            unknown.append(f"{benchmark} {language}")
    if unknown and "--check" not in sys.argv:
        print(f"{len(unknown)} of no known language: {', '.join(sorted(unknown))}", file=sys.stderr)
    order = list(benchmarks())
    lines = sorted(rows, key=lambda row: (row[0], order.index(row[1]), row[2]))
    return "".join("\t".join(line) + "\n" for line in [("language", "benchmark", "task"), *lines])


def harness_tasks() -> Iterator[tuple[str, str, str]]:
    """Yield benchmark, language as it is called there, and task."""
    spec = importlib.util.find_spec("lm_eval")
    harness = Path(spec.submodule_search_locations[0]) / "tasks"  # type: ignore[union-attr,index]
    for name, pattern, language, task in (
        ("belebele", "belebele/belebele_*.yaml", r"belebele_(.+)", "{stem}"),
        ("multiblimp", "multiblimp/multiblimp_*.yaml", r"multiblimp_(.+)", "{stem}"),
        ("global_piqa_nonparallel", "global_piqa/nonparallel_cloze/*.yaml", r"([^_].*)", "global_piqa_nonparallel_cloze_{stem}"),
        ("global_piqa_parallel", "global_piqa/parallel_cloze/*.yaml", r"([^_].*)", "global_piqa_parallel_cloze_{stem}"),
        ("xcopa", "xcopa/default_*.yaml", r"default_(.+)", "xcopa_{language}"),
        ("xstorycloze", "xstorycloze/default_*.yaml", r"default_(.+)", "xstorycloze_{language}"),
        ("flores", "afrobench/flores/prompt_1/*/flores_eng_Latn-*.yaml", r".*-(.+?)(?:_prompt.*)?", "{stem}_prompt_1"),
        ("flores", "afrobench/flores/prompt_1/*/flores_*-eng_Latn.yaml", r"flores_(.+)-eng_Latn", "{stem}_prompt_1"),
        ("flores", "*/flores_*/flores_en-*.yaml", r"flores_en-(.+)", "{folder}_{stem}"),
        ("flores", "*/flores_*/flores_*-en.yaml", r"flores_(.+)-en", "{folder}_{stem}"),
    ):  # fmt: skip
        for file in harness.glob(pattern):
            if match := re.fullmatch(language, file.stem):
                code = match.group(1)
                folder = file.parent.parent.name
                yield name, code, task.format(stem=file.stem, language=code, folder=folder)
    for exams in (harness / "include/default").iterdir():
        if exams.is_dir() and exams.name[0].isalpha():
            yield "include", exams.name, f"include_base_44_{exams.name.lower().replace(' ', '_')}"
    yield "turblimp", "tr", "turblimp_core"
    for file in TABLE.parent.glob("tumlu_*.yaml"):
        yield "tumlu", file.stem.removeprefix("tumlu_").replace("_", "-"), file.stem
    yield "az_eval", "az", "az_eval"


if __name__ == "__main__":
    sys.exit(write_or_check({TABLE: page}))
