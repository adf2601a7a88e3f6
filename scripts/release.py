"""Build what a release publishes into dist/, of a clean checkout of HEAD.

    make release                       # wheel, sdist, chart, manifests and all images
    make release IMAGES=none           # without images; or IMAGES='clean tools'
    make release KEY=~/.ssh/anadil     # signed
    make release REGISTRY=ghcr.io/leyla/anadil

HEAD has the tag of its version (v0.1.0), or the build is one for development, whose version names the commit
(0.1.0+g1234567890ab). Equal commits give equal bytes of all but the images. images/build.sh takes its variables
(BUILDER, BASE, TORCH, BUILD_OPTIONS, ...) from the environment.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.core.stages import ALL_IMAGES

SHOWN = 12
"""Digits of the commit in a version for development."""
IDENTITY = NAMESPACE = "anadil"
"""Who signs, and for what, in terms of `ssh-keygen -Y`."""
SIGNERS = "allowed_signers"
SUMS = "SHA256SUMS"
PROVENANCE = "provenance.json"
LAYOUT = "images"
VERIFY = f"ssh-keygen -Y verify -f {SIGNERS} -I {IDENTITY} -n {NAMESPACE} -s {SUMS}.sig < {SUMS} && sha256sum --check --quiet {SUMS}"
BUILDERS = ("podman", "buildah")
"""Programs that write OCI layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One commit and its version."""

    commit: str
    epoch: int
    """Time of the commit, in seconds."""
    version: str
    """`__version__`, which tags of images have."""
    build_version: str
    """Version of wheel, sdist and chart: of a commit without a tag, it names the commit."""
    summary: str
    """What CHANGELOG.md says first of the version."""

    @property
    def is_tagged(self) -> bool:
        """True if HEAD has the tag of its version."""
        return self.version == self.build_version


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return its stdout; stderr passes through."""
    given = [str(word) for word in command]
    done = subprocess.run(
        given, cwd=cwd, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"release: `{' '.join(given)}` in {cwd} ended with {done.returncode}; its last lines are above"
        )
    return done.stdout.strip()


def identify(root: Path) -> Release:
    """The release that a checkout holds; refuses what no commit or no version names."""
    if changed := run("git", "status", "--porcelain", cwd=root).splitlines():
        sys.exit(
            f"release: {root} differs from its commit in {len(changed)} file(s), first `{changed[0]}`; commit them or take them out"
        )
    commit, epoch = run("git", "log", "-1", "--format=%H %ct", cwd=root).split()
    module = "components/anadil/__init__.py"
    [version] = re.findall(
        r'^__version__ = "(.*)"$', (root / module).read_text(encoding="utf-8"), re.MULTILINE
    )
    chart = (root / "charts/anadil/Chart.yaml").read_text(encoding="utf-8")
    for key in ("version", "appVersion"):
        [other] = re.findall(rf'^{key}: "?([^"\n]*)"?$', chart, re.MULTILINE)
        if other != version:
            sys.exit(
                f"release: charts/anadil/Chart.yaml: {key} is {other}, and {module} says {version}; set {key}: {version}"
            )
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v*", cwd=root).split()
    if tags and f"v{version}" not in tags:
        sys.exit(
            f"release: HEAD ({commit[:SHOWN]}) has the tag {tags[0]}, and {module} says {version}; "
            f"take the tag away (git tag --delete {tags[0]}), or set __version__ to {tags[0][1:]}, commit and tag again"
        )
    heading, summary = changes(root / "CHANGELOG.md", version)
    if tags and "unreleased" in heading:
        sys.exit(
            f"release: CHANGELOG.md: `{heading}` is released by the tag {tags[0]}; write the date in place of `unreleased`, and tag again"
        )
    build_version = version if tags else f"{version}+g{commit[:SHOWN]}"
    return Release(
        commit=commit, epoch=int(epoch), version=version, build_version=build_version, summary=summary
    )


def changes(changelog: Path, version: str) -> tuple[str, str]:
    """Heading of a version's section, and what stands in it before its first part."""
    text = changelog.read_text(encoding="utf-8")
    section = re.search(rf"^## ({re.escape(version)}\b.*)\n((?:(?!##).*\n)*)", text, re.MULTILINE)
    if section is None:
        sys.exit(f"release: CHANGELOG.md has no section `## {version}`; write what the version brings")
    return section[1], section[2].strip()


def refuse_other(out: Path, commit: str) -> None:
    """Refuse to replace a folder that another commit, or another program, has filled."""
    if not out.exists():
        return
    try:
        statement = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
        [source, *_] = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        earlier = f"of commit {source['digest']['gitCommit'][:SHOWN]}"
    except (OSError, ValueError, KeyError, TypeError):
        earlier = f"without {PROVENANCE}"
    if earlier != f"of commit {commit[:SHOWN]}":
        sys.exit(
            f"release: {out} is there, {earlier}, and HEAD is {commit[:SHOWN]}; move it away, or remove it: rm -r {out}"
        )


def images_of(words: Sequence[str]) -> list[str]:
    """Names of the images to build, once a builder is there for them."""
    names = [] if words == ["none"] else [*ALL_IMAGES] if words == ["all"] else [*words]
    if unknown := [name for name in names if name not in ALL_IMAGES]:
        sys.exit(
            f"release: IMAGES: {', '.join(unknown)} is not an image; take all, none or some of {', '.join(ALL_IMAGES)}"
        )
    if names and builder() not in BUILDERS:
        sys.exit(
            f"release: IMAGES={' '.join(words)} needs {' or '.join(BUILDERS)}, and BUILDER is `{builder()}`; install one, or take IMAGES=none"
        )
    return names


def builder() -> str:
    """The program that images/build.sh takes, among those that write OCI layouts."""
    return os.environ.get("BUILDER") or next(filter(shutil.which, BUILDERS), "")


def stamp(source: Path, release: Release) -> None:
    """Write version and commit into the sources that wheel, sdist and images are built of."""
    build = {"version": release.build_version, "commit": release.commit}
    (source / "components/anadil/_build.json").write_text(json.dumps(build) + "\n", encoding="utf-8")
    project, version = source / "pyproject.toml", f'version = "{release.build_version}"'
    replace(project, r'^dynamic = \["version"\]$', version)


def replace(file: Path, pattern: str, text: str) -> None:
    """Replace the one line of a file that a pattern matches."""
    content, count = re.subn(pattern, lambda _: text, file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1, f"{file}: {pattern} matches {count} times"
    file.write_text(content, encoding="utf-8")


def build_images(
    source: Path, names: Sequence[str], release: Release, registry: str, out: Path
) -> dict[str, str]:
    """Build images into one OCI layout, whose equal layers lie there once, and return their digests by name."""
    if not names:
        return {}
    options = f"{os.environ.get('BUILD_OPTIONS', '')} --timestamp {release.epoch}"
    run("images/build.sh", *names, cwd=source, BUILD_OPTIONS=options, BUILDER=builder(), REGISTRY=registry,
        TAG=release.version, SBOM=str(out / "sbom"), PUSH="")  # fmt: skip
    for name in names:
        run(
            builder(),
            "push",
            "--quiet",
            f"{registry}/{name}:{release.version}",
            f"oci:{out / LAYOUT}:{name}",
            cwd=source,
        )
    index = json.loads((out / LAYOUT / "index.json").read_text(encoding="utf-8"))
    called = {
        each["annotations"]["org.opencontainers.image.ref.name"]: each["digest"]
        for each in index["manifests"]
    }
    return {name: called[name] for name in names}


def pin_images(source: Path, release: Release, registry: str, digests: Mapping[str, str]) -> None:
    """Let chart and manifests name the images of this release."""
    table = "{" + ", ".join(f'{name}: "{digest}"' for name, digest in sorted(digests.items())) + "}"
    chart = source / "charts/anadil"
    replace(chart / "values.yaml", r"^digests: \{\}$", f"digests: {table}")
    replace(
        chart / "values.yaml",
        r'^  registry: ""$',
        f'  registry: "{registry.removesuffix("anadil").rstrip("/")}"',
    )
    replace(chart / "Chart.yaml", r"^version: .*$", f"version: {release.build_version}")
    reference = re.compile(
        rf"\b(image|value|name): anadil/({'|'.join(ALL_IMAGES)})(:{re.escape(release.version)})?$",
        re.MULTILINE,
    )

    def pinned(match: re.Match[str]) -> str:
        key, name, tag = match.groups()
        digest = digests.get(name) if tag else None
        return f"{key}: {registry}/{name}" + (f"@{digest}" if digest else tag or "")

    for file in (source / "manifests").rglob("*.yaml"):
        text = reference.sub(pinned, file.read_text(encoding="utf-8"))
        if file.name == "recipe.yaml":  # what the launcher starts is of this release too
            image = (
                ""
                if re.search(r"^  image:", text, re.MULTILINE)
                else f"\n  image: {registry}/{{stage}}:{{version}}"
            )
            text = re.sub(r"^cluster:$", f"cluster:{image}\n  digests: {table}", text, flags=re.MULTILINE)
        file.write_text(text, encoding="utf-8")


def pack(folder: Path, name: str, out: Path, epoch: int) -> None:
    """Pack a folder so that equal files give equal bytes, whoever packs them."""
    with out.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:  # fmt: skip
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(f"{name}/{file.relative_to(folder).as_posix()}")
            entry.size, entry.mtime = file.stat().st_size, epoch
            with file.open("rb") as content:
                archive.addfile(entry, content)


def digest_of(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def files_of(out: Path) -> Iterator[Path]:
    """Files of a release, but the blobs of the images, whose names are their digests."""
    blobs = out / LAYOUT / "blobs"
    return (path for path in sorted(out.rglob("*")) if path.is_file() and not path.is_relative_to(blobs))


def provenance(source: Path, out: Path, release: Release, digests: Mapping[str, str]) -> dict[str, Any]:
    """What was built of which commit and packages, as SLSA reads it.

    Source: in-toto Attestation Framework 1.0, SLSA Provenance 1.0.
    """
    subjects = {str(file.relative_to(out)): digest_of(file) for file in files_of(out)}
    subjects |= {f"{LAYOUT}:{name}": digest.removeprefix("sha256:") for name, digest in digests.items()}
    locks = [
        source / "constraints.txt",
        *(sorted((source / "images/locks").glob("*.txt")) if digests else []),
    ]
    parameters = {
        "version": release.build_version,
        "images": sorted(digests),
        "torch": os.environ.get("TORCH", "cpu"),
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:anadil:make-release:1",
                "externalParameters": parameters,
                "resolvedDependencies": [
                    {"name": "anadil", "digest": {"gitCommit": release.commit}},
                    *(
                        {"name": str(file.relative_to(source)), "digest": {"sha256": digest_of(file)}}
                        for file in locks
                    ),
                ],
            },
            "runDetails": {"builder": {"id": "urn:anadil:scripts/release.py"}},
        },
    }


def notes(release: Release, digests: Mapping[str, str], registry: str, signer: str) -> str:
    """One page: what the release is, how it is verified, installed and pushed."""
    left_out = ", ".join(name for name in ALL_IMAGES if name not in digests)
    state = "" if release.is_tagged else " It is a build for development: the commit has no tag."
    signature = f"The signature is of the key `{signer}`. Compare it with the one that the maintainers publish." if signer else (
        "**This release is not signed.** Sums show damage on the way, and not who built it.")  # fmt: skip
    verify = VERIFY if signer else VERIFY.rpartition("&& ")[2]
    lines = [
        f"# anadil {release.build_version}\n", f"Built of commit `{release.commit}`.{state}\n", release.summary,
        "\n## Verify\n", signature + f" `{PROVENANCE}` says what was built of which commit.\n",
        f"```bash\n{verify}\n```", "\n## Install\n", "Python 3.11 to 3.13 on Linux:\n",
        f"```bash\npython -m venv venv\nvenv/bin/pip install -c constraints.txt './anadil-{release.build_version}-py3-none-any.whl[laptop]'\nvenv/bin/anadil run smoke\n```",
        f"\nA cluster: `helm install anadil anadil-{release.build_version}.tgz`, or the manifests of `manifests.tar.gz`.",
        "\n## Images\n",
    ]  # fmt: skip
    if digests:
        lines += [
            "Chart and manifests name these digests. `sbom/` has a bill of materials of each.\n",
            f"```bash\nskopeo copy --preserve-digests oci:{LAYOUT}:tools docker://{registry}/tools:{release.version}\n```\n",
            "| image | digest |\n|---|---|", *(f"| `{name}` | `{digest}` |" for name, digest in digests.items()),
        ]  # fmt: skip
    if left_out:
        lines.append(
            f"\nNot built: {left_out}. Chart and manifests name them by the tag `{release.version}`, and `images/build.sh` builds them."
        )
    return "\n".join(lines) + "\n"


def public_key(key: Path) -> str:
    """Type and public half of a key."""
    return " ".join(run("ssh-keygen", "-y", "-f", key, cwd=key.parent).split()[:2])


def sign(source: Path, out: Path, key: Path) -> None:
    """Sign the sums, and verify them as people do: with the committed signers, where there are any."""
    committed = source / SIGNERS
    signers = (
        committed.read_text(encoding="utf-8")
        if committed.is_file()
        else f'{IDENTITY} namespaces="{NAMESPACE}" {public_key(key)}\n'
    )
    (out / SIGNERS).write_text(signers, encoding="utf-8")
    run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, SUMS, cwd=out)
    run("sh", "-c", VERIFY, cwd=out)


def build(
    root: Path, out: Path, release: Release, names: Sequence[str], registry: str, key: Path | None
) -> None:
    """Fill an empty folder with all files of a release, of a checkout of its own."""
    source = out.parent / "source"
    run("git", "worktree", "add", "--quiet", "--detach", source, release.commit, cwd=root)
    try:
        stamp(source, release)
        run(
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-d",
            out,
            cwd=source,
            SOURCE_DATE_EPOCH=str(release.epoch),
        )
        digests = build_images(source, names, release, registry, out)
        pin_images(source, release, registry, digests)
        pack(source / "charts/anadil", "anadil", out / f"anadil-{release.build_version}.tgz", release.epoch)
        pack(source / "manifests", "manifests", out / "manifests.tar.gz", release.epoch)
        shutil.copyfile(source / "constraints.txt", out / "constraints.txt")
        signer = public_key(key) if key else ""
        (out / "RELEASE_NOTES.md").write_text(notes(release, digests, registry, signer), encoding="utf-8")
        statement = json.dumps(provenance(source, out, release, digests), indent=1) + "\n"
        (out / PROVENANCE).write_text(statement, encoding="utf-8")
        sums = [f"{digest_of(file)}  {file.relative_to(out)}\n" for file in files_of(out)]
        (out / SUMS).write_text("".join(sums), encoding="utf-8")
        if key:
            sign(source, out, key)
    finally:
        run("git", "worktree", "remove", "--force", source, cwd=root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a release, and put it into its folder when all of it is there."""
    parser = argparse.ArgumentParser(description="build what a release publishes")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout")
    parser.add_argument("--out", type=Path, help="the folder of the release; by default dist in the checkout")
    parser.add_argument("--images", default="all", help="all, none, or names")
    parser.add_argument(
        "--registry", default="anadil", help="what images are called before /NAME; it ends with anadil"
    )
    parser.add_argument("--key", type=Path, help="private key that signs")
    options = parser.parse_args(arguments)
    root: Path = options.root.resolve()
    out: Path = (options.out or root / "dist").resolve()
    key: Path | None = options.key and options.key.expanduser().resolve()
    if key and not key.is_file():
        sys.exit(f"release: KEY: there is no file {key}; `ssh-keygen -t ed25519 -f {key}` makes a key")
    if options.registry.rpartition("/")[2] != "anadil":
        sys.exit(
            f"release: REGISTRY: {options.registry} does not end with anadil, as the chart's names do; take {options.registry}/anadil"
        )
    release = identify(root)
    refuse_other(out, release.commit)
    names = images_of(options.images.split() or ["none"])
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "dist"
        made.mkdir()
        build(root, made, release, names, options.registry, key)
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(made, out)
    print(f"anadil {release.build_version} is in {out}, {'signed' if key else 'not signed: no KEY'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
