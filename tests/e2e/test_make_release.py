"""`make release` in a copy of the project that has a history of its own."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import helm_python
import pytest
import yaml

import release
from anadil import __version__
from anadil.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
PARTS = ("components", "pipelines", "recipes", "charts", "manifests", "images", "scripts", "CHANGELOG.md",
         "constraints.txt", "pyproject.toml", "README.md", "LICENSE", ".gitignore")  # fmt: skip
DIGEST = f"sha256:{'a' * 64}"
GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_COMMITTER_DATE": "2026-11-30T12:00:00Z",
       "GIT_AUTHOR_DATE": "2026-11-30T12:00:00Z"}  # fmt: skip
WHO = ("-c", "user.name=Leyla", "-c", "user.email=leyla@example.org")


def run(place: Path, *command: str | Path, mask: int = 0o022, code: int = 0) -> str:
    done = subprocess.run(command, cwd=place, env=os.environ | GIT, umask=mask, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def project(place: Path) -> Path:
    names = run(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PARTS)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    run(place, "git", "init", "--quiet")
    commit(place)
    return place


def commit(place: Path) -> None:
    run(place, "git", "add", "--all")
    run(place, "git", *WHO, "commit", "--quiet", "--message", "all")


def make(place: Path, *options: str, mask: int = 0o022, code: int = 0) -> str:
    return run(
        place, sys.executable, "scripts/release.py", "--images", "none", *options, mask=mask, code=code
    )


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def checkout(history: Path, tmp_path: Path) -> Path:
    run(tmp_path, "git", "clone", "--quiet", history, "checkout")
    return tmp_path / "checkout"


@pytest.mark.slow
def test_equal_commits_give_equal_bytes_that_anybody_verifies(checkout: Path, tmp_path: Path) -> None:
    run(tmp_path, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key")
    other = tmp_path / "a longer" / "place"
    run(tmp_path, "git", "clone", "--quiet", checkout, other, mask=0o077)

    made = make(checkout, "--key", str(tmp_path / "key"))
    make(other, "--key", str(tmp_path / "key"), mask=0o077)

    first, second = (
        {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (checkout / "dist", other / "dist")
    )
    assert first == second
    version = f"{__version__}+g{run(checkout, 'git', 'rev-parse', '--short=12', 'HEAD').strip()}"
    assert f"anadil {version} is in " in made
    assert {f"anadil-{version}-py3-none-any.whl", f"anadil-{version}.tar.gz", f"anadil-{version}.tgz", "manifests.tar.gz",
            "constraints.txt", "provenance.json", "RELEASE_NOTES.md", "SHA256SUMS.sig"} <= set(first)  # fmt: skip
    notes = first["RELEASE_NOTES.md"].decode()
    [verify] = re.findall(r"^ssh-keygen .*$", notes, re.MULTILINE)
    assert "Not built: " in notes
    assert 'Good "anadil" signature' in run(checkout / "dist", "sh", "-c", verify)
    with helm_python.Chart.load(checkout / "dist" / f"anadil-{version}.tgz") as chart:
        assert f"anadil/mlflow:{__version__}" in str(
            dict(chart.render({}, name="anadil", namespace="training"))
        )

    make(checkout)  # once more, of the same commit: no file of the signed one stays

    assert not (checkout / "dist/SHA256SUMS.sig").exists()
    assert "not signed" in (checkout / "dist/RELEASE_NOTES.md").read_text(encoding="utf-8")
    assert "OK" in run(other / "dist", "sh", "-c", verify.replace(" --quiet", ""))
    (other / "dist/constraints.txt").write_text("torch==1.0\n", encoding="utf-8")
    assert "constraints.txt: FAILED" in run(other / "dist", "sh", "-c", verify, code=1)
    with (other / "dist/SHA256SUMS").open("a", encoding="utf-8") as sums:
        sums.write("\n")
    assert "Signature verification failed" in run(other / "dist", "sh", "-c", verify, code=255)


@pytest.mark.slow
def test_a_tagged_commit_has_its_version_and_a_committed_signer(checkout: Path, tmp_path: Path) -> None:
    run(tmp_path, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key")
    run(tmp_path, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "other")
    release.replace(checkout / "CHANGELOG.md", rf"## {__version__}.*", f"## {__version__} (2026-12-01)")
    key = (tmp_path / "key.pub").read_text(encoding="utf-8")
    (checkout / "allowed_signers").write_text(f"anadil {key}", encoding="utf-8")
    commit(checkout)
    run(checkout, "git", "tag", f"v{__version__}")

    refused = make(checkout, "--key", str(tmp_path / "other"), code=1)
    assert not (checkout / "dist").exists()
    make(checkout, "--key", str(tmp_path / "key"))

    assert "ssh-keygen -Y verify" in refused
    assert (checkout / f"dist/anadil-{__version__}-py3-none-any.whl").is_file()
    assert (checkout / "dist/allowed_signers").read_text(encoding="utf-8") == f"anadil {key}"


def test_a_killed_build_leaves_nothing_in_the_checkout(checkout: Path) -> None:
    killed = (
        "import os, sys; sys.path.insert(0, 'scripts'); import release; "
        "sys.argv[1:] = ['--images', 'none']; release.stamp = lambda *_: os._exit(9); release.main()"
    )

    run(checkout, sys.executable, "-c", killed, code=9)

    assert len(run(checkout, "git", "worktree", "list").splitlines()) == 1
    assert run(checkout, "git", "status", "--porcelain") == ""


def write(place: Path, name: str, text: str) -> None:
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text(text, encoding="utf-8")


Case = tuple[Callable[[Path], object], tuple[str, ...], str]
CASES: dict[str, Case] = {
    "a change": (lambda place: write(place, "new.py", ""), (), "1 file(s) differ from HEAD, first `?? new.py`. Commit"),
    "another tag": (lambda place: run(place, "git", "tag", "v9.9"), (), "has the tag v9.9"),
    "no date": (lambda place: run(place, "git", "tag", f"v{__version__}"), (), "(unreleased)` has the tag v"),
    "another chart": (
        lambda place: release.replace(place / "charts/anadil/Chart.yaml", "version: .*", "version: 9.9"),
        (), "version is 9.9, and components/anadil/__init__.py says",
    ),
    "no section": (lambda place: write(place, "CHANGELOG.md", "# None\n"), (), "has no section `## "),
    "another dist": (
        lambda place: write(place, "dist/provenance.json", '{"predicate": {"buildDefinition": {"resolvedDependencies": '
                                                           '[{"digest": {"gitCommit": "12ab"}}]}}}'),
        (), "of 12ab, and HEAD is ",
    ),
    "a dist of others": (lambda place: write(place, "dist/x.whl", ""), (), "of no release: provenance.json is not in it, and HEAD is "),
    "no image": (lambda _: None, ("--images", "cleen"), "IMAGES: cleen is not an image. Take all, none or some of"),
    "no builder": (lambda _: None, ("--images", "tools"), "needs podman or buildah, and BUILDER is `docker`"),
    "no key": (lambda _: None, ("--key", "/absent/key"), "there is no file /absent/key. Make a key: ssh-keygen"),
    "a registry": (lambda _: None, ("--registry", "ghcr.io/leyla"), "Take ghcr.io/leyla/anadil"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_no_commit_or_no_version_names_is_refused(
    case: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, options, error = CASES[case]
    monkeypatch.setenv("BUILDER", "docker")
    change(checkout)
    if case in ("another chart", "no section"):
        commit(checkout)

    assert error in make(checkout, *options, code=1)


def test_chart_and_manifests_name_the_digests_of_their_release(history: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for part in ("charts", "manifests"):
        shutil.copytree(history / part, source / part)
    subject = release.Release(
        commit="12ab",
        epoch="0",
        version=__version__,
        build_version=f"{__version__}+g12ab",
        summary="",
        registry="ghcr.io/leyla/anadil",
    )

    release.pin_images(source, subject, {"pretrain": DIGEST, "tools": DIGEST})
    release.pack(source / "charts/anadil", "anadil", tmp_path / "chart.tgz", "0")

    with helm_python.Chart.load(tmp_path / "chart.tgz") as chart:
        rendered = str(
            dict(chart.render({"recipe": {"language": "az"}}, name="anadil", namespace="training"))
        )
    assert f"ghcr.io/leyla/anadil/tools@{DIGEST}" in rendered
    assert f"ghcr.io/leyla/anadil/mlflow:{__version__}" in rendered
    job = yaml.safe_load((source / "manifests/base/pretrain.yaml").read_text(encoding="utf-8"))
    [container] = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["image"] == f"ghcr.io/leyla/anadil/pretrain@{DIGEST}"
    assert {"name": "ANADIL_IMAGE", "value": container["image"]} in container["env"]
    for file in (source / "manifests").rglob("recipe.yaml"):
        assert load_recipe(str(file)).cluster.image_named("pretrain").endswith(f"anadil/pretrain@{DIGEST}")
    overlay = yaml.safe_load(
        (source / "manifests/overlays/hyperpod/kustomization.yaml").read_text(encoding="utf-8")
    )
    assert overlay["images"][0]["name"] == "ghcr.io/leyla/anadil/pretrain"


def test_a_pack_holds_plain_files_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "folder/a").write_text("b", encoding="utf-8")

    release.pack(tmp_path / "folder", "anadil", tmp_path / "a.tgz", "5")

    with tarfile.open(tmp_path / "a.tgz") as archive:
        [entry] = archive.getmembers()
    assert (entry.name, entry.mode, entry.uid, entry.uname, entry.mtime) == ("anadil/a", 0o644, 0, "", 5)
