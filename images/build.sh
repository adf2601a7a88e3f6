#!/bin/sh
# images/build.sh [NAME...|all]: build images, write their bills of materials, print their digests as the
# recipe's key cluster.digests. By environment: BUILDER (docker, podman, buildah), BASE, TORCH (cpu, cuda),
# TORCH_INDEX, REGISTRY (anadil), TAG (the version), PUSH (1: push, and print the registry's digests), SBOM (a
# directory), PIP_CONFIG_FILE (pip's, for the build only), BUILD_OPTIONS (more options for the builder).
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' components/anadil/__init__.py)
: "${REGISTRY:=anadil}" "${TAG:=$version}" "${TORCH:=cpu}" "${SBOM:=images/dist}" "${PUSH:=}"
[ "$TORCH" = cuda ] || : "${TORCH_INDEX=https://download.pytorch.org/whl/cpu}"
for known in ${BUILDER:-podman buildah docker}; do BUILDER=$known; ! command -v "$known" > /dev/null || break; done
# A tag may be another base tomorrow: all images of a build have one, by its digest, which their labels tell.
: "${BASE:=$(sed -n 's/^ARG BASE=//p' images/stage.Containerfile)}"
base_name=$BASE base_digest=$(expr "$BASE" : '.*@\(sha256:.*\)' || true)
if [ -z "$base_digest" ]; then
    "$BUILDER" images -q "$BASE" | grep -q . || "$BUILDER" pull "$BASE" >&2
    base_digest=$("$BUILDER" images --digests --format '{{.Digest}}' "$BASE" | grep '^sha256:' | head -n 1 || true)
    case $BASE in localhost/*) ;; *:*) [ -z "$base_digest" ] || BASE=${BASE%:*}@$base_digest ;; esac
fi
if [ -n "$PUSH" ] && [ -z "$base_digest" ]; then
    echo "images/build.sh: the digest of BASE=$BASE is not known, and what is pushed has to name it; give BASE=NAME@sha256:..." >&2
    exit 2
fi
names=${*:-all}
image_of() { sed -n 's/.*image="\([^"]*\)".*/\1/p' "$@" | sort -u | xargs; }
# Two stages may share an image, which is built and printed once: a recipe takes no key twice.
[ "$names" != all ] ||
    names="$(image_of components/anadil/*/stage.py) clean-ray pipelines mlflow laptop"
# Images of the stages that run the model hold torch, and so does that of all stages.
# shellcheck disable=SC2046  # names of files without blanks
with_torch="$(image_of $(grep -l 'uses_model=True' components/anadil/*/stage.py)) laptop"
mkdir -p "$SBOM"
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
echo "digests:"
for name in $names; do
    image="$REGISTRY/$name:$TAG"
    file=images/stage.Containerfile && [ "$name" != mlflow ] || file=images/mlflow.Containerfile
    torch=none && case " $with_torch " in *" $name "*) torch=$TORCH ;; esac
    folder= && [ "$name" != laptop ] || folder=/work
    engine=$(expr "$name" : 'clean-\(.*\)' || true)
    set -- -f "$file" -t "$image" --build-arg "STAGE=${name%%-*}" --build-arg "ENGINE=$engine" \
        --build-arg "VERSION=$version" --build-arg "TORCH=$torch" ${folder:+--build-arg "FOLDER=$folder"} \
        --build-arg "REVISION=$(git rev-parse HEAD 2> /dev/null || echo unknown)" \
        --build-arg "SOURCE=$(git config remote.origin.url || true)" --build-arg "BASE=$BASE" \
        --label "org.opencontainers.image.base.name=$base_name" --label "org.opencontainers.image.base.digest=$base_digest" \
        ${TORCH_INDEX:+--build-arg "TORCH_INDEX=$TORCH_INDEX"} ${PIP_CONFIG_FILE:+--secret "id=pip,src=$PIP_CONFIG_FILE"}
    [ "$BUILDER" = docker ] || set -- --layers "$@"
    # shellcheck disable=SC2086  # several options in one word
    "$BUILDER" build ${BUILD_OPTIONS:-} "$@" . >&2
    case $BUILDER in
    buildah)
        held=$(buildah from "$image")
        buildah run "$held" -- cat /opt/anadil/sbom.cdx.json > "$SBOM/$name.cdx.json"
        buildah rm "$held" > /dev/null ;;
    *) "$BUILDER" run --rm --network none --entrypoint cat "$image" /opt/anadil/sbom.cdx.json > "$SBOM/$name.cdx.json" ;;
    esac
    : > "$scratch/digest"
    case $BUILDER$PUSH in
    docker1) docker push "$image" >&2 && docker inspect --format '{{index .RepoDigests 0}}' "$image" | sed 's/.*@//' > "$scratch/digest" ;;
    docker) docker inspect --format '{{.Id}}' "$image" > "$scratch/digest" ;;
    *1) "$BUILDER" push --digestfile "$scratch/digest" "$image" >&2 ;;
    *) "$BUILDER" images --digests --format '{{.Digest}}' "$image" | head -n 1 > "$scratch/digest" ;;
    esac
    digest=$(grep '^sha256:' "$scratch/digest") || {
        echo "images/build.sh: $BUILDER gives no digest of $image, which it has built${PUSH:+ and was to push}. Its reason is above, or ask it: $BUILDER images --digests" >&2
        exit 1
    }
    echo "  $name: $digest"
done
