"""manifests/: every overlay builds into objects that a cluster takes, and that the launcher would make."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree

import pytest
import yaml

import make_manifests
from anadil.core.format import amount
from anadil.core.stages import STAGES
from anadil.launch.kubernetes.checks import ENGINE_KINDS, AccessRule, engine_rules, launcher_rules
from anadil.preflight.memory import check_fits
from anadil.recipe.load import load_recipe
from anadil.runtime import entry_point, termination
from tests.kit.jobs import launch_options
from tests.kit.kubernetes_schemas import VERSIONS, validate
from tests.kit.restricted import containers, violations
from tests.manifests.kustomized import JOB, MANIFESTS, OVERLAYS, Object, build, jobs, one, overlay, template

CUSTOM = {JOB, "LocalQueue"}
CLUSTER_WIDE = {"Namespace", "PersistentVolume"}
NAMESPACES = {
    "hyperpod": "hyperpod-ns-team",
    "efa": "hyperpod-ns-team",
    "restricted": "anadil-restricted",
    "launch": "anadil",
}

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def plain(job: Object) -> Object:
    """A job with its environment by name: patches append, so that the order says nothing."""
    for container in template(job)["spec"]["containers"]:
        container["env"] = {each["name"]: each for each in container["env"]}
        container.pop("imagePullPolicy", None)
    return job


@every_overlay
@pytest.mark.parametrize("version", VERSIONS)
def test_an_overlay_is_valid_in_every_version(name: str, version: str) -> None:
    for each in overlay(name):
        if each["kind"] not in CUSTOM:
            validate(each, version)


@every_overlay
def test_every_pod_keeps_to_restricted(name: str) -> None:
    for job in jobs(overlay(name)):
        assert violations(template(job)["spec"]) == []
        assert template(job)["spec"]["automountServiceAccountToken"] is False


def test_the_laptop_runs_what_the_launcher_renders_after_the_steps_that_make_its_tokens() -> None:
    recipe = load_recipe(str(make_manifests.BASE_RECIPE))
    expected = make_manifests.rendered("pretrain", recipe)

    job = one(overlay("laptop"), JOB, "anadil-pretrain")

    before = template(job)["spec"].pop("initContainers")
    assert plain(job) == plain(expected)
    images = [(each["name"], each["image"]) for each in before]
    cleaner, encoder = "anadil/clean:0.1.0", "anadil/tokenizer:0.1.0"
    assert images == [
        ("clean-az", cleaner),
        ("clean-en", cleaner),
        ("overlap-az", cleaner),
        ("overlap-en", cleaner),
        ("tokenizer", encoder),
        ("encode-az", encoder),
        ("encode-en", encoder),
    ]


@pytest.mark.parametrize("name", ["hyperpod", "efa"])
def test_patches_make_what_the_launcher_renders_for_the_same_recipe(name: str) -> None:
    recipe = load_recipe(str(MANIFESTS / "overlays" / name / "recipe.yaml"))

    job = one(overlay(name), JOB, "anadil-pretrain")

    assert plain(job) == plain(make_manifests.rendered("pretrain", recipe))


def edited(folder: Path, name: str, edit: Callable[[str], str]) -> list[Object]:
    """The objects of an overlay whose kustomization a user has edited."""
    tree = copytree(MANIFESTS, folder / "manifests")
    file = tree / "overlays" / name / "kustomization.yaml"
    file.write_text(edit(file.read_text()))
    return build(file.parent)


def test_finetuning_on_hyperpod_is_one_line_away(tmp_path: Path) -> None:
    line = "- ../../components/finetune"
    objects = edited(tmp_path, "hyperpod", lambda text: text.replace(f"  # {line}", f"  {line}"))
    recipe = load_recipe(str(MANIFESTS / "overlays/hyperpod/recipe.yaml"))

    job = plain(one(objects, JOB, "anadil-finetune"))

    expected = plain(make_manifests.rendered("finetune", recipe))
    for each in (job, expected):  # of this the kustomization says what to add
        del template(each)["spec"]["containers"][0]["env"]["ANADIL_IMAGE"]
    assert job == expected


def test_the_recipe_of_a_job_is_the_file_beside_it() -> None:
    for name, folder in {"laptop": "base", "hyperpod": "overlays/hyperpod", "efa": "overlays/efa"}.items():
        text = one(overlay(name), "ConfigMap", "anadil-recipe")["data"]["recipe.yaml"]

        assert text == (MANIFESTS / folder / "recipe.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["hyperpod", "efa"])
def test_what_the_recipes_ask_for_fits(name: str) -> None:
    hub = "base.model=meta-llama/Llama-3.1-8B"

    said = check_fits(load_recipe(str(MANIFESTS / "overlays" / name / "recipe.yaml"), [hub]), here=False)

    assert said.endswith("(fits)")


@every_overlay
def test_namespaces_are_those_that_an_overlay_says(name: str) -> None:
    expected = NAMESPACES.get(name)
    for each in overlay(name):
        if each["kind"] not in CLUSTER_WIDE:
            assert each["metadata"].get("namespace") == expected, each["kind"]
        for subject in each.get("subjects", ()):
            assert subject["namespace"] == expected
        claim = each["spec"].get("claimRef") if each["kind"] == "PersistentVolume" else None
        if claim:
            assert claim["namespace"] == expected


@every_overlay
def test_nothing_holds_a_secret(name: str) -> None:
    objects = overlay(name)

    assert not [each for each in objects if each["kind"] == "Secret"]
    for job in jobs(objects):
        for _, container in containers(template(job)["spec"]):
            literal = [each["name"] for each in container["env"] if "value" in each]
            assert not [each for each in literal if re.search("TOKEN|KEY|PASSWORD|SECRET", each)]


@pytest.mark.parametrize("name", ["laptop", "hyperpod", "efa", "restricted"])
def test_what_a_pod_names_is_there(name: str) -> None:
    objects = overlay(name)
    there = {(each["kind"], each["metadata"]["name"]) for each in objects}
    policy = one(objects, "NetworkPolicy", "anadil-jobs")["spec"]

    for job in jobs(objects):
        spec = template(job)["spec"]
        labels = template(job)["metadata"]["labels"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
        for volume in spec["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in there
            if config := volume.get("configMap"):
                assert ("ConfigMap", config["name"]) in there
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert policy["podSelector"] == policy["ingress"][0]["from"][0]["podSelector"]
        assert labels.items() <= job["metadata"]["labels"].items()


def test_the_laptop_fits_a_small_node() -> None:
    [job] = jobs(overlay("laptop"))
    asked = [each["resources"]["requests"] for _, each in containers(template(job)["spec"])]

    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert max(amount(each["cpu"]) for each in asked) < 0.5
    assert max(amount(each["memory"]) for each in asked) <= 2 * 2**30
    [claim] = [each for each in overlay("laptop") if each["kind"] == "PersistentVolumeClaim"]
    assert amount(claim["spec"]["resources"]["requests"]["storage"]) <= 5 * 2**30
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "storageClassName" not in claim["spec"]


@pytest.mark.parametrize("name", ["laptop", "laptop/finetune", "hyperpod"])
def test_arguments_are_those_of_the_stages(name: str) -> None:
    for job in jobs(overlay(name)):
        for where, container in containers(template(job)["spec"]):
            stage = re.sub(r"^.*/|:.*$", "", container["image"])
            # An image of two stages starts the one that has its name, unless a command says otherwise.
            command = container.get("command", ["python", "-m", f"anadil.{stage}"])
            named = command[-1].removeprefix("anadil.")

            options = entry_point.stage_parser(STAGES[named]).parse_args(container["args"])

            assert STAGES[named].pod.image == stage, where
            assert options.recipe == "/etc/anadil/recipe.yaml"
            assert options.out.startswith("/data/run/")


@pytest.mark.matrix
def test_the_laptop_stages_hand_over_to_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = overlay("laptop")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        one(objects, "ConfigMap", "anadil-recipe")["data"]["recipe.yaml"].replace("/data", str(tmp_path))
    )
    spec = template(jobs(objects)[0])["spec"]
    mapped = {"/etc/anadil/recipe.yaml": str(recipe)}
    arguments = {
        each["name"]: [mapped.get(word, word.replace("/data", str(tmp_path))) for word in each["args"]]
        for each in (*spec["initContainers"], *spec["containers"])
    }

    for name in [each["name"] for each in spec["initContainers"]]:
        for _ in range(2):  # the second time as after a restart of the pod
            code, told = entry_point.main(name.partition("-")[0], arguments[name]), capsys.readouterr().err
            assert code == 0, told

    options = entry_point.stage_parser(STAGES["pretrain"]).parse_args(arguments["pytorch"])
    assert len(options.tokens) == 2
    for uri in (*options.tokens, *options.tokenizer):
        assert (Path(uri.rpartition("=")[2]) / "manifest.json").is_file()
    assert "reused" in told


def test_restricted_denies_traffic_and_gives_no_token() -> None:
    objects = overlay("restricted")

    labels = one(objects, "Namespace", "anadil-restricted")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    deny = one(objects, "NetworkPolicy", "default-deny")["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert {each["metadata"]["name"] for each in accounts} == {"default", "anadil-stage", "anadil-launcher"}
    assert not any(each["automountServiceAccountToken"] for each in accounts)


def test_the_queue_component_queues_the_laptop_too(tmp_path: Path) -> None:
    objects = edited(tmp_path, "laptop", lambda text: f"{text}components:\n  - ../../components/queue\n")

    queue = one(objects, "LocalQueue", "anadil")
    labels = one(objects, JOB, "anadil-pretrain")["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]


def launcher_of(objects: list[Object]) -> Object:
    found: Object = one(objects, "Job", "anadil-launch")["spec"]["template"]
    return found


@pytest.mark.parametrize(
    ("component", "rules"),
    [
        ("launcher", launcher_rules("pytorchjob")),
        ("clean-pods", [rule for kind in ENGINE_KINDS.values() for rule in engine_rules(kind)]),
    ],
)
def test_the_rights_that_are_asked_for_are_those_that_a_component_gives(
    component: str, rules: Sequence[AccessRule]
) -> None:
    path = MANIFESTS / "components" / component / f"{component}.yaml"
    objects = {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}

    given = {
        (group, name): set(rule["verbs"])
        for rule in objects["Role"]["rules"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
    }

    assert given == {(rule.group, rule.resource): set(rule.verbs) for rule in rules}
    assert objects["RoleBinding"]["subjects"][0]["name"] == "anadil-launcher"


def test_the_launcher_s_command_is_one_that_the_program_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    [container] = launcher_of(overlay("launch"))["spec"]["containers"]

    options = launch_options(monkeypatch, container["args"])

    assert (options.stage, options.recipe) == ("pretrain", "/etc/anadil/recipe.yaml")
    assert (options.tokens, options.tokenizer) == (
        ["az=/data/run/tokens/az", "en=/data/run/tokens/en"],
        ["/data/run/tokenizer"],
    )


def test_the_launcher_is_not_started_again_for_what_would_end_the_same() -> None:
    rules = one(overlay("launch"), "Job", "anadil-launch")["spec"]["podFailurePolicy"]["rules"]

    assert [rule["action"] for rule in rules] == ["FailJob", "Ignore"]
    assert rules[0]["onExitCodes"]["values"] == list(termination.DETERMINISTIC)


def test_the_launcher_takes_the_place_of_the_job_on_hyperpod_too(tmp_path: Path) -> None:
    line, more = "  # - ../../components/finetune", "  - ../../components/launch\n  #"
    objects = edited(
        tmp_path, "hyperpod", lambda text: text.partition("replacements:")[0].replace(line, more)
    )

    assert jobs(objects) == []
    [container] = launcher_of(objects)["spec"]["containers"]
    assert container["image"].startswith("111122223333.dkr.ecr.us-east-1.amazonaws.com/anadil/tools:")


def test_every_file_of_a_kustomization_is_used() -> None:
    for file in MANIFESTS.rglob("kustomization.yaml"):
        named = yaml.safe_dump(yaml.safe_load(file.read_text(encoding="utf-8")))
        unused = [each.name for each in file.parent.glob("*.yaml") if each != file and each.name not in named]
        unused = [each for each in unused if each not in file.read_text(encoding="utf-8")]
        assert unused == [], file.parent
