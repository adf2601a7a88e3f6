"""Check of the images: pinned by digest, and named so that a cluster can pull them."""

from collections.abc import Iterator

from anadil.core.stages import IMAGES
from anadil.preflight.check import CheckResult, failed, passed
from anadil.recipe.sections import Recipe


def check_images(recipe: Recipe) -> Iterator[CheckResult]:
    """Tell which images are pinned by digest, and refuse names that only this machine knows."""
    images = {name: recipe.image_of(name) for name in sorted(set(IMAGES.values()))}
    if recipe.cluster.hyperpod and (bare := [image for image in images.values() if not _has_registry(image)]):
        remedy = "push them (docs/guides/images.md) and set cluster.image: REGISTRY/anadil/{stage}:{version}"
        detail = f"{bare[0]} names no registry, so nodes would ask docker.io"
        yield failed("images", detail, remedy)
        return
    loose = [name for name, image in images.items() if "@sha256:" not in image]
    if not loose:
        yield passed("images", f"all {len(images)} are pinned by digest")
        return
    # A tag works; it only may be moved under a run.
    detail = (
        f"{images[loose[0]]} and {len(loose) - 1} more go by tag"
        if len(loose) > 1
        else f"{images[loose[0]]} goes by tag"
    )
    remedy = "pin them in cluster.digests, so that every pod of a run holds the same program"
    yield passed("images", detail, remedy)


def _has_registry(image: str) -> bool:
    """Source: distribution/reference: a first part with `.`, `:` or the word localhost is a host."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
