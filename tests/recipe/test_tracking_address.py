import pytest

from anadil.core.errors import PreflightError, RecipeError
from anadil.core.log import masked
from anadil.recipe.load import parse_recipe
from anadil.recipe.tracking_address import tracking_fault
from anadil.runtime.tracking_spool import tracking_uri

ALLOWED = [
    "off", "http://127.0.0.1:5000", "https://mlflow.example.com/path", "http://mlflow:5000", "http://[::1]:5000",
    "http://10.0.0.4", "sqlite:///mlflow.db", "sqlite:////abs/mlflow.db", "postgresql+psycopg2://db/mlflow",
    "arn:aws:sagemaker:eu-west-1:111122223333:mlflow-tracking-server/az", "http://0xcafe.example", "http://fade.de",
    "https://dagshub.com/user/repo.mlflow", "https://host/mlflow", "https://host/teams/experimenttracking2024server",
    "https://host/mlflow-v2-eu1-prod3-2024-team7", "https://host/subscriptions/3f2504e0-4f89-11d3-9a0c-0305e82c3301/x",
    "https://a1b2c3d4e5f6a1b2c3d4e5f6.ngrok.app/tr", "sqlite:////tmp/0a1b2c3d4e5f60718293/mlflow.db", "https://host/llama3/b2b/v1.0/az2ru",
]  # fmt: skip
NO_ADDRESS = ["file:///tmp/runs", "FILE:/tmp/runs", "ftp://host/runs", "mlruns", "./mlruns", "s3://bucket/mlflow",
              "javascript:alert(1)", "http://", "http:///path", "http://[::1"]  # fmt: skip
TOKENS = [
    "https://host/ghp_0a1b2c3d4e5f/",
    "https://host/%67hp_0a1b2c3d4e5f",
    "https://host/mlflow/hf_aBcDeFgHiJkL/api",
    "https://host/eyJhbGciOiJIUzI1NiJ9.ghp_.x",
    "https://host:5000/0a1b2c3d4e5f60718293",
    "HTTPS://host/k/xK9vT2mQ8rL4pW7nB1zD",
    "https://host/v/pA55w0rdX7kLm29QzR5t-ghp_",
    "https://dagshub.com/u/r.mlflow?token=ghp_",
    "https://dagshub.com/u/r.mlflow?x=ghp_0a1b2c3d4e5f",
    "https://host/p;key=ghp_0a1b2c3d4e5f",
    "https://host/p#ghp_0a1b2c3d4e5f",
    "wandb://0a1b2c3d4e5f60718293ghp_/runs",
]
"""In each, `ghp_` or what stands for it must not be said."""
LINK_LOCAL = [
    "169.254.169.254", "169.254.0.1", "[fe80::1]", "[fe80::1%25eth0]", "[FEBF::1]", "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]", "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[fd00:ec2::254]",
    "2852039166", "0xa9fea9fe", "0xA9.0xFE.0xA9.0xFE", "0251.0376.0251.0376", "169.254.43518", "169.16689662",
    "169.254.169.254.", "%31%36%39.254.169.254", "\uff11\uff16\uff19.254.169.254", "169\u3002254\u3002169\u3002254",
    "user@169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "[fd20:ce::254]", "0x646464c8", "[::ffff:100.100.100.200]",
    "metadata.google.internal", "Metadata.Google.Internal.", "instance-data",
]  # fmt: skip


@pytest.mark.parametrize("uri", ALLOWED)
def test_servers_databases_and_off_are_addresses(uri: str) -> None:
    assert tracking_fault(uri) == ""
    assert parse_recipe("", "r", [f"tracking.uri={uri}"]).tracking.uri == uri


@pytest.mark.parametrize("uri", NO_ADDRESS)
def test_what_is_no_server_and_no_database_is_refused(uri: str) -> None:
    assert tracking_fault(uri)


@pytest.mark.parametrize("host", LINK_LOCAL)
@pytest.mark.parametrize("uri", ["http://{}", "https://{}:8080/x"])
def test_link_local_addresses_are_refused_however_they_are_written(host: str, uri: str) -> None:
    assert "link-local or metadata" in tracking_fault(uri.format(host))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tracking.uri=https://ghp_0a1b2c@mlflow.example.org", "holds a password, a token or a user"),
        ("tracking.uri=HTTP://a@b@mlflow", "holds a password, a token or a user"),
        ("tracking.uri=postgresql://ghp_0a1b2c3d4e5f6g7h8i9j@db/mlflow", "holds a password, a token or a user"),
        *((f"tracking.uri={uri}", "holds a password, a token or a user") for uri in TOKENS),
        ("tracking.uri=tensorboard:/etc", "/etc is the machine's own; name a directory for figures"),
        ("tracking.uri=tensorboard:/var/../usr/x", "/usr is the machine's own"),
        ("tracking.uri=tensorboard:/", "/ is the machine's own"),
        ('tracking.uri="http://mlflow:5000\\n"', "holds a line feed or another control character"),
        ("tracking.uri=http://mlflow:5000/#/experiments/1", "leave the query and the fragment out"),
        ("tracking.uri=https://mlflow/?auth=abc", "leave the query and the fragment out"),
        ("tracking.uri=http://mlflow:99999", "names no host and port"),
        ('tracking.uri="tensorboard:/tmp/a\\nb"', "tracking.uri: holds a line feed"),
        ('storage.root="/tmp/a\\0b"', "storage.root: holds a line feed"),
        ('tracking.uri="https://ghp_0a1b2c@mlflow\\n"', "tracking.uri: holds "),
        ('clean.inputs=["a\\nb.txt"]', "clean.inputs: holds a line feed"),
        ('finetune.system="a\\x1b[2J"', "finetune.system: holds a line feed"),
        ('evaluate.prompts=["a\\0"]', "evaluate.prompts: holds a line feed"),
        ('cluster.image="a/{stage}:1\\n  command: [sh]"', "cluster.image: holds a line feed"),
        ("cluster.image=a b/{stage}", "is not the name of an image"),
        ('cluster.node_selector={"a\\rb": c}', "holds a line feed or another control character"),
        ('cluster.volumes=[{"claim": c, "path": "/a\\u2028b"}]', "holds a line feed or another control character"),
    ],
)  # fmt: skip
def test_an_address_or_a_manifest_that_would_carry_more_than_its_name_is_refused(
    setting: str, words: str
) -> None:
    with pytest.raises(RecipeError) as refusal:
        parse_recipe("", "r", [setting])

    assert words in str(refusal.value)
    assert "ghp_" not in str(refusal.value)


def test_texts_that_models_read_may_have_lines() -> None:
    recipe = parse_recipe(
        "", "r", ['finetune.system="Qısa yaz.\\nVə düz."', 'evaluate.prompts=["Bir\\n\\niki"]']
    )

    assert recipe.evaluate.prompts == ("Bir\n\niki",)


def test_a_recipe_says_which_key_and_what_to_write() -> None:
    with pytest.raises(RecipeError, match=r"tracking\.uri: file:// is not an address of MLflow; write"):
        parse_recipe("", "r", ["tracking.uri=file:///runs"])


def test_the_variable_is_checked_too_unless_the_recipe_goes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://169.254.169.254/latest")

    with pytest.raises(PreflightError, match=r"MLFLOW_TRACKING_URI: http://169.* link-local"):
        tracking_uri(parse_recipe("", "r"))
    assert tracking_uri(parse_recipe("", "r", ["tracking.uri=off"])) is None


def test_a_token_in_the_path_of_the_variable_is_said_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://host/mlflow/0a1b2c3d4e5f60718293/?key=abc")

    assert (
        masked("see https://host/mlflow/0a1b2c3d4e5f60718293/#/runs") == "see https://host/mlflow/***/#/runs"
    )
    with pytest.raises(PreflightError, match=r"MLFLOW_TRACKING_URI: https://host/mlflow/\*\*\*/: names more"):
        tracking_uri(parse_recipe("", "r"))
