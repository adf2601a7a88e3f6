"""Facts for a model card: the inputs of an artifact that lie beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, find_artifact, read_table, root_of
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import DataError
from anadil.report.read import CorpusFacts, Json, field, sum_stats, table_of
from anadil.runtime.job import by_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts for a card; tables are the artifacts' JSON, empty if an artifact is missing."""

    word: str
    manifest: Manifest
    recipe: Json
    """The resolved recipe, whose licences may be newer than the artifact's own."""
    corpora: tuple[CorpusFacts, ...]
    """Those that it was trained on; none where they are gone."""
    training: Json
    merge: Json
    """`merge.json`, of the model itself or of the one that it was finetuned from."""
    finetuning: Json
    chats: Json
    """Counts of chats: `mask_audit.json`."""
    scores: Json

    @property
    def base(self) -> str:
        """`base.model` of the recipe."""
        return str(field(self.recipe, "base.model") or "")

    @property
    def stats(self) -> Json:
        """Counts of all corpora together."""
        return sum_stats([each.stats for each in self.corpora])

    @property
    def candidate(self) -> str:
        """Its name in the scores."""
        return BY_KIND[self.word].name

    @property
    def answers(self) -> bool:
        """True if it is asked through its chat template."""
        return answers(self.word, self.manifest.figures)


def facts_of_model(uri: str, manifest: Manifest, scores: str | None) -> ModelFacts:
    """Collect the inputs of an artifact that lie beside it."""
    root = field(manifest.recipe, "storage.root")
    roots = [root_of(uri), *([root] if isinstance(root, str) else [])]
    is_adapter = manifest.kind == "adapter"
    chain = {manifest.kind: (uri, manifest)}
    # The adapter was made of a merged model or of a trained one, and a merged model of a trained one.
    for kind, made_of in (("adapter", "merged"), ("merged", "model"), ("adapter", "model")):
        digest = chain[kind][1].origin.get(f"input {made_of}") if kind in chain else None
        if digest and (each := find_artifact(roots, made_of, digest)):
            chain[made_of] = each
    trained, merged = chain.get("model"), chain.get("merged")
    if scores is None:
        scored = newest_scores(roots, manifest)
    else:
        scored = scores, artifact.finished_manifest(scores, "scores")
        if scored[1].origin.get(f"input {manifest.kind}") != manifest.digest:
            raise DataError(f"{scores}: the scores are not of this {manifest.kind}; give those that are")
    # Licences decide no artifact, so a later recipe may have added some.
    report = table_of(manifest.recipe.get("report"))
    later = table_of(field(scored[1].recipe, "report.licences")) if scored else {}
    licences = table_of(report.get("licences")) | later
    return ModelFacts(
        word=manifest.kind,
        manifest=manifest,
        recipe=manifest.recipe | {"report": report | {"licences": licences}},
        corpora=_corpora(roots, trained[1], licences) if trained else (),
        training=read_table(*trained, "training.json") if trained else {},
        merge=read_table(*merged, "merge.json") if merged else {},
        finetuning=read_table(uri, manifest, "training.json") if is_adapter else {},
        chats=read_table(uri, manifest, "mask_audit.json") if is_adapter else {},
        scores=read_table(*scored, "scores.json") if scored else {},
    )


def _corpora(roots: Sequence[str], trained: Manifest, licences: Json) -> tuple[CorpusFacts, ...]:
    """The corpora of a model that are found, in the recipe's order."""
    digests = by_source(
        "corpus", {name.removeprefix("input "): each for name, each in trained.origin.items()}
    )
    order = [*table_of(trained.recipe.get("sources"))]
    facts = []
    for source in sorted(digests, key=lambda name: order.index(name) if name in order else len(order)):
        if corpus := find_artifact(roots, "corpus", digests[source]):
            recipe = corpus[1].recipe
            recipe = recipe | {"report": table_of(recipe.get("report")) | {"licences": licences}}
            if source:  # another run may have made it, by another name
                recipe["sources"] = {source: {}}
            facts.append(
                CorpusFacts(
                    source=source, manifest=corpus[1], stats=read_table(*corpus, "stats.json"), recipe=recipe
                )
            )
    return tuple(facts)


def newest_scores(roots: Sequence[str], model: Manifest) -> tuple[str, Manifest] | None:
    """Find the newest scores of a model, merged model or adapter below some storage roots."""
    scores = artifacts_below(roots, "scores")
    return next((pair for pair in scores if pair[1].origin.get(f"input {model.kind}") == model.digest), None)
