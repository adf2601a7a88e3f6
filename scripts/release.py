"""Build what a release publishes into dist/, of a clean checkout of HEAD.

    make release                       # wheel, sdist, chart, manifests and all images
    make release IMAGES=none           # without images, or IMAGES='clean tools'
    make release KEY=~/.ssh/anadil     # signed
    make release REGISTRY=ghcr.io/leyla/anadil

HEAD has the tag of its version (v0.1.0), or the build is one for development, whose version names the commit
(0.1.0+g1234567890ab). Equal commits give equal bytes, and images of equal layers. images/build.sh takes its variables (BUILDER, BASE,
TORCH, BUILD_OPTIONS, ...) from the environment.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from anadil.core.stages import ALL_IMAGES

SHOWN = 12
"""Digits of the commit in a version for development."""
IDENTITY = "anadil"
"""Who signs, and for what, in terms of `ssh-keygen -Y`."""
SIGNERS, SUMS, PROVENANCE, LAYOUT = "allowed_signers", "SHA256SUMS", "provenance.json", "images"
CHART, MODULE = "charts/anadil", "components/anadil/__init__.py"
BUILDERS = ("podman", "buildah")
"""Programs that write OCI layouts."""
VERIFY = (f"ssh-keygen -Y verify -f {SIGNERS} -I {IDENTITY} -n {IDENTITY} -s {SUMS}.sig < {SUMS} && "
          f"sha256sum --check --quiet --ignore-missing {SUMS}")  # fmt: skip
UNSIGNED = "**This release is not signed.** Sums show damage on the way, and not who built it."
SIGNED = f"`{SUMS}.sig` is the signature. Without that file, the release is not signed. Compare the key with what the maintainers publish: `{{signers}}`."
MISSING = "\n\nNot built: {missing}. Chart and manifests name them by the tag `{tag}`, and `images/build.sh` builds them."
PUSH = f"""\
Chart and manifests name these digests. `sbom/` has a bill of materials of each.

```bash
skopeo copy --preserve-digests oci:{LAYOUT}:{{name}} docker://{{release.registry}}/{{name}}:{{release.version}}
```

| image | digest |
|---|---|"""
NOTES = f"""\
# anadil {{release.build_version}}

Built of commit `{{release.commit}}`{{state}}.

{{release.summary}}

## Verify

{{signature}} `{PROVENANCE}` says what was built of which commit.

```bash
{{verify}}
```

## Install

Python 3.11 to 3.13 on Linux:

```bash
python3 -m venv venv
venv/bin/pip install --no-compile -c constraints.txt './anadil-{{release.build_version}}-py3-none-any.whl[laptop]'
venv/bin/anadil run smoke
```

On a cluster: `helm install anadil anadil-{{release.build_version}}.tgz`, or what `manifests.tar.gz` holds.

## Images

{{images}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One commit and its version."""

    commit: str
    epoch: str
    """Time of the commit, in seconds."""
    version: str
    """`__version__`, which tags of images have."""
    build_version: str
    """Version of wheel, sdist and chart: of a commit without a tag, it names the commit."""
    summary: str
    """Beginning of the version's section in CHANGELOG.md."""
    registry: str
    """Begins the names of images."""


def refuse(text: str) -> NoReturn:
    """End with what is wrong, where, and the remedy."""
    sys.exit(f"release: {text}")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return its stdout. Its stderr passes through."""
    try:
        done = subprocess.run(command, cwd=cwd, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    except subprocess.CalledProcessError as error:
        refuse(f"`{' '.join(map(str, command))}` in {cwd} ended with {error.returncode}. Its reason is above")
    return done.stdout.strip()


def identify(root: Path, registry: str) -> Release:
    """The release that a checkout holds. What no commit or no version names is refused."""
    if changed := run("git", "status", "--porcelain", cwd=root).splitlines():
        refuse(f"{root}: {len(changed)} file(s) differ from HEAD, first `{changed[0]}`. Commit or remove it")
    commit, epoch = run("git", "log", "-1", "--format=%H %ct", cwd=root).split()
    [version] = re.findall(r'(?m)^__version__ = "(.*)"$', read(root / MODULE))
    for key in ("version", "appVersion"):
        [other] = re.findall(rf'(?m)^{key}: "?([^"\n]*)"?$', read(root / CHART / "Chart.yaml"))
        if other != version:
            refuse(f"{CHART}/Chart.yaml: {key} is {other}, and {MODULE} says {version}. Set one to the other")
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v*", cwd=root).split()
    if tags and f"v{version}" not in tags:
        refuse(
            f"HEAD has the tag {tags[0]}, and {MODULE} says {version}. Drop it: git tag --delete {tags[0]}"
        )
    changes = read(root / "CHANGELOG.md")
    section = re.search(rf"(?m)^## ({re.escape(version)}\b.*)\n((?:(?!##).*\n)*)", changes)
    if section is None:
        refuse(f"CHANGELOG.md has no section `## {version}`. Write what the version brings")
    if tags and "unreleased" in section[1]:
        refuse(f"CHANGELOG.md: `{section[1]}` has the tag {tags[0]}. Commit its date, and tag again")
    build_version = version if tags else f"{version}+g{commit[:SHOWN]}"
    return Release(commit=commit, epoch=epoch, version=version, build_version=build_version,
                   summary=section[2].strip(), registry=registry)  # fmt: skip


def refuse_other(out: Path, commit: str) -> None:
    """Refuse to replace a folder that another commit, or another program, has filled."""
    try:
        statement = json.loads(read(out / PROVENANCE))["predicate"]["buildDefinition"]
        earlier = statement["resolvedDependencies"][0]["digest"]["gitCommit"][:SHOWN]
    except OSError:
        earlier = commit[:SHOWN] if not out.exists() else f"no release: {PROVENANCE} is not in it"
    if earlier != commit[:SHOWN]:
        refuse(f"{out} is there, of {earlier}, and HEAD is {commit[:SHOWN]}. Remove it: rm -r {out}")


def images_of(words: Sequence[str]) -> list[str]:
    """Names of the images to build, once a builder is there for them."""
    names = {"none": [], "all": [*ALL_IMAGES]}.get(" ".join(words), [*words])
    if unknown := [name for name in names if name not in ALL_IMAGES]:
        refuse(f"IMAGES: {unknown[0]} is not an image. Take all, none or some of {', '.join(ALL_IMAGES)}")
    if names and builder() not in BUILDERS:
        refuse(f"IMAGES={' '.join(words)} needs {' or '.join(BUILDERS)}, and BUILDER is `{builder()}`. Install one, or "
               "take IMAGES=none")  # fmt: skip
    return names


def builder() -> str:
    """Program that builds images and writes OCI layouts."""
    return os.environ.get("BUILDER") or next(filter(shutil.which, BUILDERS), "")


def read(file: Path) -> str:
    """Text of a file."""
    return file.read_text(encoding="utf-8")


def replace(file: Path, pattern: str, text: str) -> None:
    """Replace the line of a file that a pattern matches."""
    content, count = re.subn(f"(?m)^{pattern}$", lambda _: text, read(file))
    assert count == 1, f"{file}: {pattern} matches {count} times"
    file.write_text(content, encoding="utf-8")


def stamp(source: Path, release: Release) -> None:
    """Write version and commit into the sources that wheel, sdist and images are built of."""
    build = json.dumps({"version": release.build_version, "commit": release.commit})
    (source / "components/anadil/_build.json").write_text(build + "\n", encoding="utf-8")
    replace(source / "pyproject.toml", r'dynamic = \["version"\]', f'version = "{release.build_version}"')


def build_images(source: Path, names: Sequence[str], release: Release, out: Path) -> dict[str, str]:
    """Build images into one OCI layout, whose equal layers lie there once, and return their digests by name."""
    if not names:
        return {}
    options = f"{os.environ.get('BUILD_OPTIONS', '')} --timestamp {release.epoch}"
    run("images/build.sh", *names, cwd=source, BUILD_OPTIONS=options, BUILDER=builder(), REGISTRY=release.registry,
        TAG=release.version, SBOM=str(out / "sbom"), PUSH="")  # fmt: skip
    for name in names:
        place = f"oci:{out / LAYOUT}:{name}"
        run(builder(), "push", "--quiet", f"{release.registry}/{name}:{release.version}", place, cwd=source)
    entries = json.loads(read(out / LAYOUT / "index.json"))["manifests"]
    digests = {each["annotations"]["org.opencontainers.image.ref.name"]: each["digest"] for each in entries}
    return {name: digests[name] for name in names}


def pin_images(source: Path, release: Release, digests: Mapping[str, str]) -> None:
    """Let chart and manifests name the images of this release."""
    table = "digests: {" + ", ".join(f'{name}: "{digest}"' for name, digest in digests.items()) + "}"
    values, place = source / CHART / "values.yaml", release.registry.removesuffix("anadil").rstrip("/")
    replace(values, r"digests: \{\}", table)
    replace(values, r'  registry: ""', f'  registry: "{place}"')
    replace(source / CHART / "Chart.yaml", "version: .*", f"version: {release.build_version}")
    names = "|".join(ALL_IMAGES)
    reference = re.compile(rf"(?m)\b(image|value|name): anadil/({names})(:{re.escape(release.version)})?$")

    def pinned(match: re.Match[str]) -> str:
        key, name, tag = match.groups(default="")
        return f"{key}: {release.registry}/{name}" + (f"@{digests[name]}" if tag and name in digests else tag)

    for file in (source / "manifests").rglob("*.yaml"):
        text = reference.sub(pinned, read(file))
        if file.name == "recipe.yaml":  # the launcher starts images of this release too
            image = "" if "\n  image:" in text else f"  image: {release.registry}/{{stage}}:{{version}}\n"
            text = text.replace("\ncluster:\n", f"\ncluster:\n{image}  {table}\n")
        file.write_text(text, encoding="utf-8")


def pack(folder: Path, name: str, out: Path, epoch: str) -> None:
    """Pack a folder so that equal files give equal bytes, whoever packs them."""
    with out.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w") as archive:  # fmt: skip
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(f"{name}/{file.relative_to(folder)}")
            entry.size, entry.mtime = file.stat().st_size, int(epoch)
            with file.open("rb") as content:
                archive.addfile(entry, content)


def sums_of(files: Iterable[Path], root: Path) -> dict[str, str]:
    """SHA-256 of files by their names, without the blobs of images, whose names are their digests."""
    names = {file.relative_to(root): file for file in sorted(files) if file.is_file()}
    return {str(name): hashlib.sha256(file.read_bytes()).hexdigest() for name, file in names.items()
            if name.parts[:2] != (LAYOUT, "blobs")}  # fmt: skip


def provenance(source: Path, out: Path, release: Release, digests: Mapping[str, str]) -> dict[str, Any]:
    """The commit and the packages of what was built, as SLSA reads it.

    Source: in-toto Attestation Framework 1.0, SLSA Provenance 1.0.
    """
    images = {f"{LAYOUT}:{name}": digest.removeprefix("sha256:") for name, digest in digests.items()}
    locks = [source / "constraints.txt", *((source / "images/locks").glob("*.txt") if digests else [])]
    torch = os.environ.get("TORCH", "cpu") if digests else "none"

    def named(sums: Mapping[str, str]) -> list[dict[str, Any]]:
        return [{"name": name, "digest": {"sha256": digest}} for name, digest in sums.items()]

    definition = {
        "buildType": "urn:anadil:make-release:1",
        "externalParameters": {"version": release.build_version, "images": [*digests], "torch": torch},
        "resolvedDependencies": [
            {"name": "anadil", "digest": {"gitCommit": release.commit}}, *named(sums_of(locks, source)),
        ],
    }  # fmt: skip
    details = {"builder": {"id": "urn:anadil:scripts/release.py"}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": named(sums_of(out.rglob("*"), out) | images),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": details},
    }


def notes(release: Release, digests: Mapping[str, str], signers: str) -> str:
    """One page: what the release is, how it is verified, installed and pushed."""
    state = "" if release.version == release.build_version else ", for development: it has no tag"
    missing = ", ".join(f"`{name}`" for name in ALL_IMAGES if name not in digests)
    images = PUSH.format(release=release, name=next(iter(digests))) if digests else ""
    images += "".join(f"\n| `{name}` | `{digest}` |" for name, digest in digests.items())
    images += MISSING.format(missing=missing, tag=release.version) if missing else ""
    verify = VERIFY if signers else VERIFY.rpartition("&& ")[2]
    signature = SIGNED.format(signers=signers.strip()) if signers else UNSIGNED
    return NOTES.format(
        release=release, state=state, signature=signature, verify=verify, images=images.strip()
    )


def signers_of(source: Path, key: Path | None) -> str:
    """Signers as ssh-keygen reads them: the committed file, or the key alone, or none."""
    if (source / SIGNERS).is_file():
        return read(source / SIGNERS)
    return f"{IDENTITY} {run('ssh-keygen', '-y', '-f', key, cwd=source)}\n" if key else ""


def build(root: Path, out: Path, release: Release, names: Sequence[str], key: Path | None) -> None:
    """Fill an empty folder with all files of a release, of a checkout of its own."""
    source, version = out.parent / "source", release.build_version
    # A clone, because a worktree stays registered in the checkout where a build is killed. Images name the remote of HEAD.
    origin = run("git", "config", "--default", "", "remote.origin.url", cwd=root)
    run("git", "clone", "--quiet", "--shared", "--no-checkout", "--origin", "checkout",
        "--config", f"remote.origin.url={origin}", root, source, cwd=root)  # fmt: skip
    run("git", "checkout", "--quiet", "--detach", release.commit, cwd=source)
    stamp(source, release)
    python = (sys.executable, "-m", "hatchling", "build", "-d", out)
    run(*python, cwd=source, SOURCE_DATE_EPOCH=release.epoch)
    digests = build_images(source, names, release, out)
    pin_images(source, release, digests)
    pack(source / CHART, "anadil", out / f"anadil-{version}.tgz", release.epoch)
    pack(source / "manifests", "manifests", out / "manifests.tar.gz", release.epoch)
    if signers := signers_of(source, key):
        (out / SIGNERS).write_text(signers, encoding="utf-8")
    page = notes(release, digests, signers)
    (out / "RELEASE_NOTES.md").write_text(page, encoding="utf-8")
    shutil.copyfile(source / "constraints.txt", out / "constraints.txt")
    statement = json.dumps(provenance(source, out, release, digests), indent=1)
    (out / PROVENANCE).write_text(statement + "\n", encoding="utf-8")
    lines = [f"{digest}  {name}\n" for name, digest in sums_of(out.rglob("*"), out).items()]
    (out / SUMS).write_text("".join(lines), encoding="utf-8")
    if key:  # and verify it, as people do
        run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", IDENTITY, SUMS, cwd=out)
        run("sh", "-c", VERIFY, cwd=out)


def main() -> int:
    """Build a release, and put it into its folder when all of it is there."""
    parser = argparse.ArgumentParser(description="build what a release publishes")
    parser.add_argument("--images", default="all", help="all, none, or names")
    parser.add_argument("--registry", default="anadil", help="what images are called before /NAME")
    parser.add_argument("--key", type=Path, help="private key that signs")
    options = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    out = root / "dist"
    key: Path | None = options.key and options.key.expanduser().resolve()
    if key and not key.is_file():
        refuse(f"KEY: there is no file {key}. Make a key: ssh-keygen -t ed25519 -f {key}")
    registry: str = options.registry
    if registry.rpartition("/")[2] != "anadil":
        refuse(f"REGISTRY: {registry} does not end with /anadil, as the chart does. Take {registry}/anadil")
    release = identify(root, registry)
    refuse_other(out, release.commit)
    names = images_of(options.images.split())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "dist"
        folder.mkdir()
        build(root, folder, release, names, key)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder, out)
    print(f"anadil {release.build_version} is in {out}, {'signed' if key else 'not signed: no KEY'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
