"""What values the chart takes, what it refuses, and what it says then."""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from anadil import __version__
from anadil.core.stages import IMAGES
from anadil.recipe.load import parse_recipe
from tests.charts.chart import CASES, CHART, LOGIN, ROOT, Object, environment, named, pods, render, rendered

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
TRAINED = {"tokens": "/data/run/tokens", "tokenizer": "/data/run/tokenizer"}  # Inputs of pretrain.
LAUNCH = {"recipe": {"language": "az"}}
LOGIN_SECRET = "anadil-mlflow-login"
OPEN = {"recipe", "global", "mlflow.affinity"}  # Tables that others check: the program, Helm, Kubernetes.


REFUSALS = [
    ({"mlflow": {"databse": {}}}, "additional properties 'databse' not allowed"),
    ({"mlflow": {"replicas": "two"}}, "'/mlflow/replicas': got string, want integer"),
    ({"images": {"tools": {"digest": "latest"}}}, "'/images/tools/digest'"),
    ({"labels": {"team": "speech & text"}}, "'/labels/team'"),
    ({"labels": {"app.kubernetes.io/name": "mine"}}, "invalid propertyName 'app.kubernetes.io/name'"),
    ({"kubeflow": {"schedule": "weekly"}}, "'/kubeflow/schedule'"),
    ({"launchers": [{"name": "pipeline-runner"}]}, "missing property 'namespace'"),
    ({"storage": {"size": "100 GB"}}, "'/storage/size'"),
    ({"serving": {"model": "models:/az@champion"}}, "'/serving/model'"),
    ({"mlflow": {"artifacts": {"uri": "s3://key:secret@bucket"}}}, "'/mlflow/artifacts/uri'"),
    ({"trackingUri": "https://user:password@mlflow"}, "'/trackingUri'"),
    ({"watch": {"places": ["models:/az"]}}, "'/watch/places/0'"),
    ({"watch": {"enabled": True}}, "watch.places: not set"),
    ({"watch": {"enabled": True, "places": ["/data/az"]}}, "watch.places: /data/az is on no claim"),
    ({"monitoring": {"rules": {"throughputDrop": 70}}}, "'/monitoring/rules/throughputDrop'"),
    ({"mlflow": {"replicas": 2}}, "mlflow.replicas: more than 1"),
    (
        {"mlflow": {"database": {"existingSecret": "db"}, "artifacts": {"uri": "s3://bucket/mlflow"}}},
        "mlflow.auth.existingSecret: not set",
    ),
    ({"kubeflow": {"enabled": True}}, "needs a recipe to register"),
    ({"launch": {"enabled": True}}, "launch.enabled: needs a recipe"),
    (LAUNCH | {"launch": {"enabled": True, "inputs": {"corpus": "/data/corpus"}}}, "launch.inputs: pretrain reads"),
    (
        LAUNCH | {"launch": {"enabled": True, "inputs": TRAINED | {"scores": "/data/scores"}}},
        "launch.inputs: pretrain reads tokenizer, and takes corpus, probabilities, tokens, trial",
    ),
    (
        LAUNCH | {"launch": {"enabled": True, "stage": "finetune", "inputs": TRAINED}},
        "launch.inputs: finetune reads model; give the URI of each, and no other",
    ),
    (LAUNCH | {"launch": {"enabled": True, "stage": "evaluate"}}, "launch.stage: evaluate does not train"),
    ({"queue": {"enabled": True}}, "queue.clusterQueue: not set"),
    ({"serving": {"enabled": True}}, "serving.model: not set"),
    ({"serving": {"enabled": True, "model": "/data/model"}}, "serving.model: /data/model is on no claim"),
    ({"storage": {"enabled": True}, "jobs": {"namespace": "hyperpod-ns-nlp"}}, "use storage.fsx"),
    ({"storage": {"enabled": True, "fsx": {"fileSystemId": "fs-0123456789abcdef0"}}}, "dnsName and mountName"),
]  # fmt: skip


def tables(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if schema.get("type") == "object" or "object" in schema.get("type", []):
        yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from tables(part, f"{path}.{key}".strip("."))


def leaves(table: Object, path: str = "") -> Iterator[str]:
    for key, value in table.items():
        inner = f"{path}.{key}".strip(".")
        if isinstance(value, dict) and value:
            yield from leaves(value, inner)
        else:
            yield inner


@pytest.mark.parametrize(("values", "words"), REFUSALS)
def test_a_value_that_cannot_be_or_contradicts_another_is_refused_with_its_place(
    values: Object, words: str
) -> None:
    with pytest.raises((helm_python.HelmValuesError, helm_python.HelmRenderError), match=re.escape(words)):
        render(values)


def test_every_table_of_the_schema_is_closed_but_those_that_others_check() -> None:
    open_ones = {path for path, table in tables(SCHEMA) if table.get("additionalProperties") is not False}

    label = SCHEMA["$defs"]["labels"]["additionalProperties"]
    digest = SCHEMA["properties"]["digests"]["additionalProperties"]
    by_source = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/map"}]}
    maps = {
        path
        for path, table in tables(SCHEMA)
        if table.get("additionalProperties")
        in ({"type": "string"}, label, digest, {"$ref": "#/$defs/quantity"}, by_source)
    }
    assert open_ones - maps == OPEN


def test_the_schema_knows_every_default_and_no_key_without_one() -> None:
    def keys(schema: Object, path: str = "") -> Iterator[str]:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        if "properties" not in schema:
            yield path
        for key, part in schema.get("properties", {}).items():
            yield from keys(part, f"{path}.{key}".strip("."))

    free = ("resources.requests", "resources.limits", "labels")
    known = {key for key in keys(SCHEMA) if not key.endswith(free)} - {"global"}
    given = {re.sub(r"\.(requests|limits|labels)\..*", r".\1", key) for key in leaves(DEFAULTS)}

    assert known == {key for key in given if not key.endswith(free)}


@pytest.mark.parametrize(("release", "name"), [("team.v1", "team.v1-anadil"), ("1b", "1b-anadil")])
def test_a_release_of_whose_name_kubernetes_takes_no_service_is_refused(release: str, name: str) -> None:
    with (
        helm_python.Chart.load(CHART) as chart,
        pytest.raises(helm_python.HelmRenderError, match=f"fullnameOverride: not set.*{re.escape(name)}"),
    ):
        chart.render({}, name=release)

    with helm_python.Chart.load(CHART) as chart:
        assert chart.render({"fullnameOverride": "az"}, name=release)


@pytest.mark.parametrize("inputs", [TRAINED, TRAINED | {"trial": "/data/run/trial"}])
def test_pretrain_can_be_launched_with_a_trial_and_without(inputs: dict[str, str]) -> None:
    values = {"recipe": {"language": "az"}, "launch": {"enabled": True, "inputs": inputs}}

    [spec] = [spec for name, _, spec in pods(render(values)) if name.endswith("-launch")]

    given = [each for each in spec["containers"][0]["args"] if "=/data/run/" in each]
    assert given == [f"--{word}={uri}" for word, uri in sorted(inputs.items())]


def recipe_of(values: Object) -> str:
    return str(named(render(values), "ConfigMap", "-recipe")["data"]["recipe.yaml"])


@pytest.mark.parametrize(
    "name", ["kubeflow with schedule", "kubeflow without schedule", "hyperpod with fsx", "launch"]
)
def test_the_recipe_in_the_cluster_is_one_that_the_program_takes(name: str) -> None:
    parse_recipe(recipe_of(CASES[name]), "recipe.yaml")


def test_a_table_recipe_gets_what_the_chart_knows_and_keeps_what_the_user_says() -> None:
    values = CASES["hyperpod with fsx"] | {"recipe": {"tracking": {"uri": "off"}, "seed": 7}}

    recipe = parse_recipe(recipe_of(values), "recipe.yaml")

    assert recipe.seed == 7
    assert recipe.tracking.uri == "off"
    assert recipe.cluster.namespace == "hyperpod-ns-nlp"
    assert recipe.cluster.service_account == "anadil-stage"
    assert [(volume.claim, volume.path) for volume in recipe.cluster.volumes] == [("anadil-storage", "/data")]
    assert recipe.storage.root == "/data/anadil"


def test_what_the_build_prints_pins_every_image_of_the_chart_and_of_the_steps(tmp_path: Path) -> None:
    """`images/build.sh all > digests.yaml`, with a builder that makes nothing."""
    builder = tmp_path / "podman"
    builder.write_text(f'#!/bin/sh\n[ "$1" != images ] || echo sha256:{"a" * 64}\n')
    builder.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUILDER": "podman", "SBOM": str(tmp_path / "sbom")}
    command = ["sh", "images/build.sh", "all"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    values = {"kubeflow": {"enabled": True}, "recipe": {"language": "az"}} | yaml.safe_load(done.stdout)

    images = {each["image"] for _, _, spec in pods(render(values)) for each in spec["containers"]}
    recipe = parse_recipe(recipe_of(values), "recipe.yaml")

    assert images == {f"anadil/{name}@sha256:{'a' * 64}" for name in ("mlflow", "tools", "pipelines")}
    assert {recipe.image_of(name).partition("@")[2] for name in IMAGES} == {f"sha256:{'a' * 64}"}
    tagged = {"images": {"mlflow": {"tag": "edge"}, "tools": {"digest": f"sha256:{'b' * 64}"}}}
    own = {each["image"] for _, _, spec in pods(render(values | tagged)) for each in spec["containers"]}
    assert {"anadil/mlflow:edge", f"anadil/tools@sha256:{'b' * 64}"} < own, (
        "what is said of one image comes first"
    )


def test_a_registry_of_the_users_is_that_of_the_steps_and_whole_numbers_stay_whole() -> None:
    given = {"language": "az", "pretrain": {"batch_size": 2_000_000}}
    values = {"recipe": given, "images": {"registry": "ghcr.io/leyla", "pullSecrets": ["hub"]}}

    recipe = parse_recipe(recipe_of(values), "recipe.yaml")

    assert recipe.cluster.pull_secrets == ("hub",)
    assert recipe.image_of("pretrain") == f"ghcr.io/leyla/anadil/pretrain:{__version__}"
    assert "batch_size: 2000000" in recipe_of(values)


def test_mlflow_is_never_two_servers_on_one_claim() -> None:
    found = {
        name: named(render(CASES[name]), "Deployment", "-mlflow")["spec"]["strategy"]["type"]
        for name in ("default", "postgres and s3")
    }

    assert found == {"default": "Recreate", "postgres and s3": "RollingUpdate"}


def test_a_text_recipe_stays_as_it_is() -> None:
    assert recipe_of({"recipe": "# mine\nlanguage: az\n"}).strip() == "# mine\nlanguage: az"


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_no_object_but_the_login_holds_a_secret_and_arguments_refer_to_none(values: Object) -> None:
    objects = render(values)

    assert {item["metadata"]["name"] for item in objects if item["kind"] == "Secret"} <= {LOGIN_SECRET}
    for name, _, spec in pods(objects):
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            variables: dict[str, Any] = environment(container)
            for variable, value in variables.items():
                if re.search("PASSWORD|SECRET|TOKEN$|USERNAME", variable):
                    assert set(value) == {"secretKeyRef"}, f"{name}: {variable}"
            words = " ".join([*container.get("command", []), *container.get("args", [])])
            assert not re.search(r"://[^/\s]*:[^/\s]*@", words), name


@pytest.mark.parametrize("name", ["default", "kubeflow with schedule", "hyperpod with fsx"])
def test_mlflow_asks_for_a_login_that_is_made_once_wherever_steps_and_jobs_run(name: str) -> None:
    made, again = (
        {
            each["metadata"]["namespace"]: each["data"]
            for each in yaml.safe_load_all(rendered(CASES[name])[LOGIN])
        }
        for _ in range(2)
    )

    spaces = {"default": {"training"}, "kubeflow with schedule": {"training", "leyla"}}
    assert set(made) == spaces.get(name, {"training", "hyperpod-ns-nlp"})
    passwords = [base64.b64decode(each["MLFLOW_TRACKING_PASSWORD"]) for each in made.values()]
    assert len(set(passwords)) == 1
    assert len(passwords[0]) == 32
    assert made["training"]["MLFLOW_TRACKING_PASSWORD"] != again["training"]["MLFLOW_TRACKING_PASSWORD"]
    assert [space for space, data in made.items() if "MLFLOW_FLASK_SERVER_SECRET_KEY" in data] == ["training"]
    others = "".join(text for template, text in rendered(CASES[name]).items() if template != LOGIN)
    assert passwords[0].decode() not in others


def test_the_login_of_an_install_is_kept(tmp_path: Path) -> None:
    """No cluster is here for `lookup` to look at: what it would find stands in its place."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    template = chart / "templates/login.yaml"
    kept = base64.b64encode(b"first").decode()
    found = f'(dict "data" (dict "MLFLOW_TRACKING_PASSWORD" "{kept}"))'
    text = template.read_text(encoding="utf-8")
    looked = '(lookup "v1" "Secret" .Release.Namespace $name)'
    template.write_text(text.replace(looked, found), encoding="utf-8")

    with helm_python.Chart.load(chart) as changed:
        secret = yaml.safe_load(changed.render({}, name="anadil", namespace="training")[LOGIN])

    assert looked in text
    assert secret["data"]["MLFLOW_TRACKING_PASSWORD"] == kept
    assert secret["data"]["MLFLOW_FLASK_SERVER_SECRET_KEY"]
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(
    ("values", "secret"),
    [
        ({}, LOGIN_SECRET),
        ({"mlflow": {"auth": {"existingSecret": "mine"}}}, "mine"),
        ({"mlflow": {"auth": {"enabled": False}}}, None),
        ({"mlflow": {"enabled": False}, "trackingUri": "https://mlflow.example.com"}, None),
    ],
)
def test_steps_and_jobs_sign_in_by_the_variables_of_the_secret(values: Object, secret: str | None) -> None:
    given = {"language": "az", "cluster": {"secrets": {"hub": ["HF_TOKEN"]}}}

    recipe = parse_recipe(recipe_of(values | {"recipe": given}), "recipe.yaml")

    login = {secret: ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")} if secret else {}
    assert recipe.cluster.secrets == {"hub": ("HF_TOKEN",)} | login
