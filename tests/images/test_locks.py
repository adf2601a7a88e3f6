from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from anadil.core.stages import LAPTOP
from tests.images.files import NAMES, PIN, PROJECT, ROOT, TORCH, locks, pins

LINUX = {"platform_machine": "x86_64", "sys_platform": "linux", "python_version": "3.11"}
ON_GPUS_ONLY = {"liger-kernel"}


def wanted(*extras: str) -> Iterator[Requirement]:
    """What the project asks for with some extras."""
    options = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in options[extra])]:
        requirement = Requirement(line)
        if requirement.name == "anadil":
            yield from wanted(*requirement.extras)
        elif requirement.marker is None or requirement.marker.evaluate(LINUX):
            yield requirement


EXTRAS: dict[str, tuple[str, ...]] = {
    name: (name, "s3", "tracking", "metrics", "wandb") for name in NAMES if name != "mlflow"
}
EXTRAS["clean-ray"] = (*EXTRAS["clean"], "ray", "launch")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", EXTRAS)
def test_an_image_holds_what_its_extra_asks_for(name: str, kind: str) -> None:
    held = {package.replace("_", "-"): version for package, version in pins(name, kind).items()}

    wrong = [
        f"{requirement} (locked: {held.get(requirement.name.lower())})"
        for requirement in wanted(*EXTRAS[name])
        if requirement.name not in (ON_GPUS_ONLY if kind == "cpu" else ())
        and not requirement.specifier.contains(held.get(requirement.name.lower(), "0"))
    ]

    assert wrong == [], "run python scripts/make_image_locks.py"


def test_ray_is_in_the_image_of_its_engine_alone() -> None:
    assert {name for name in NAMES if "ray" in pins(name)} == {"clean-ray"}
    assert pins("clean").items() < pins("clean-ray").items(), "one is the other with a layer more"


def test_numba_is_where_kernels_are_compiled_alone() -> None:
    assert {name for name in NAMES if "numba" in pins(name)} == {"clean", "clean-ray", "tokenizer", LAPTOP}


def test_the_server_has_the_version_of_a_laptop_and_a_database_driver() -> None:
    laptop = next(
        Requirement(line) for line in PROJECT["optional-dependencies"]["laptop"] if "mlflow" in line
    )

    server = pins("mlflow")

    assert laptop.specifier.contains(server["mlflow"])
    assert {"psycopg2-binary", "boto3", "flask-wtf", "prometheus-flask-exporter"} <= set(server)


def test_a_package_has_one_version_in_all_images() -> None:
    versions: dict[str, set[str]] = {}
    for name in NAMES:
        for kind in ("cpu", "cuda"):
            for package, version in pins(name, kind).items():
                versions.setdefault(package, set()).add(version.removesuffix("+cpu"))

    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_package_stands_in_one_of_the_locks_of_an_image(name: str) -> None:
    """A package in two locks would be in two layers of an image."""
    for kind in ("cpu", "cuda"):
        listed = [package for lock in locks(name, kind) for package, _, _ in PIN.findall(lock.read_text())]

        assert len(listed) == len(set(listed))


def test_the_variant_for_cpus_holds_nothing_for_gpus() -> None:
    for name in TORCH:
        held = pins(name, "cpu")

        assert held["torch"].endswith("+cpu")
        assert [package for package in held if package.startswith(("nvidia-", "triton", "liger"))] == []


def test_people_and_tests_have_the_versions_of_the_images() -> None:
    constraints = {
        package: version for package, version, _ in PIN.findall((ROOT / "constraints.txt").read_text())
    }
    locked = {
        package: version for name in NAMES if name != "clean-ray" for package, version in pins(name).items()
    }

    assert locked.keys() - constraints.keys() == set()
    assert {
        name: version for name, version in locked.items() if constraints[name] != version.removesuffix("+cpu")
    } == {}
    assert [
        each for each in wanted("dev") if not each.specifier.contains(constraints[each.name.lower()])
    ] == []
