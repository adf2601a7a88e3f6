import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.core.errors import RecipeError
from anadil.recipe.load import find_recipe, load_recipe, parse_recipe, paths_in
from anadil.recipe.merge import Merge
from anadil.recipe.other_names import OTHER_NAMES, TRAINED_TWICE, name_here
from anadil.recipe.pretrain import Phase
from anadil.recipe.sections import Recipe
from tests.golden.render import GOLDEN, SCHEMA

SHIPPED = ["azerbaijani-1b", "azerbaijani-8b", "japanese-1b", "japanese-70b", "own", "smoke"]


def refused(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "r.yaml", overrides)
    return str(caught.value)


UNKNOWN_LANGUAGE = (
    "no language has this id; did you mean 'xh' (Xhosa)? Packs are shipped for az, en, ja, tr; one in no list is "
    "learnt, `anadil language learn NAME SAMPLE... --out NAME.yaml`, and named by the pack's path"
)


def test_every_mistake_is_told_at_once_with_line_value_and_nearest_key() -> None:
    text = """\
language: xx
seed: -1
clean:
  input: [a.txt]
pretrain:
  batch_size: many
  phases:
    - {trains: embedings, steps: 10, lr: 1e-3}
    - trains: all
      steps: 10
finetune:
  dropout: 1.5
nonsense: 3
"""

    told = refused(text).splitlines()

    assert told[0] == "r.yaml: 8 mistakes"
    # In the order of the file.
    assert told[1:] == [
        f'  line 1: language: {UNKNOWN_LANGUAGE} (got "xx")',
        "  line 2: seed: must be at least 0 (got -1)",
        "  line 4: clean.input: unknown key; did you mean 'inputs'? (got [\"a.txt\"])",
        '  line 6: pretrain.batch_size: must be a whole number (got "many")',
        "  line 8: pretrain.phases.0.trains: must be 'new_rows', 'embeddings' or 'all' (got \"embedings\")",
        "  line 9: pretrain.phases.1.lr: is missing",
        "  line 12: finetune.dropout: must be at most 1 (got 1.5)",
        "  line 13: nonsense: unknown key (got 3)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: '3'", 'seed: must be a whole number (got "3")'),
        ("seed: true", "seed: must be a whole number (got true)"),
        ("seed: 4294967296", "seed: must be below 4294967296"),
        ("clean: [1]", "clean: must be a table of keys (got [1])"),
        ("evaluate: {tasks: az}", 'evaluate.tasks: must be a list, such as [a, b] (got "az")'),
        ("clean: {inputs: a.txt}", 'clean.inputs: must be a list, such as [a, b] (got "a.txt")'),
        ("clean: {text_field: 5}", "clean.text_field: must be text; put quotes around it (got 5)"),
        ("finetune: {lr: .nan}", 'finetune.lr: must be a number (got ".nan")'),
        ("finetune: {lr: 1e999}", "finetune.lr: must be a finite number"),
        ("base: {model: ''}", "base.model: must have at least 1 character"),
        ("storage: {root: ~/runs}", "storage.root: `~` is another place on every machine; write the"),
        (
            "storage: {root: gs://b/x}",
            "storage.root: storage gs:// is not supported; use a local path or s3:",
        ),
        ("storage: {root: hf://datasets/a/b}", "storage.root: storage hf:// is not supported; use a local"),
        ("storage: {root: 's3:/b/x'}", "storage.root: is no address, write s3://b/x"),
        ("storage: {root: S3://b}", "storage.root: is no address, write s3://b"),
        ("storage: {root: 's3://'}", "storage.root: names no bucket, write s3://bucket/key"),
        ("evaluate: {champion: 'file:/m'}", "evaluate.champion: storage file:// is not supported; use a"),
        ("base: {model: 'https://hf.co/a/b'}", "base.model: storage https:// is not supported; use a local"),
        ("tokenizer: {choice: bad}", "tokenizer.choice: must be 'base', 'extend', 'replace', 'surgery' or"),
        ("tokenizer: {strategies: [base], choice: extend}", "tokenizer: choice 'extend' is not one of"),
        ("tokenizer: {strategies: [extend], trial: {steps: 5}}", "tokenizer: trial compares strategies, and"),
        ("cluster: {sagemaker: {subnets: [subnet-1]}}", "cluster.sagemaker: subnets and security_groups go"),
        ("evaluate: {context: 64, stride: 65}", "recipe: evaluate.stride 65 is larger than the context 64"),
        ("cluster: {image: 'a:{tag}'}", "cluster.image: only {stage} and {version} are filled in"),
        ("pretrain: {phases: [{}]}", "pretrain.phases.0.trains: is missing"),
        ("pretrain: {parallelism: {prefetch: 9}}", "pretrain.parallelism.prefetch: must be at most 8"),
        ("pretrain: {copies: {memory_every: 20}}", "pretrain: copies.memory_every is 20, but nothing reads"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_value(text: str, message: str) -> None:
    assert message in refused(text)


def test_a_list_of_wrong_items_is_not_also_called_too_short() -> None:
    told = refused("tokenizer: {strategies: [foo]}")

    assert told.count("\n") == 1
    assert "tokenizer.strategies.0: must be 'base', 'extend', 'replace' or 'surgery' (got \"foo\")" in told


def test_a_long_value_is_cut_in_the_message() -> None:
    told = refused(f"seed: {'x' * 500}")

    assert "xxx..." in told
    assert len(told) < 200


def test_a_password_in_the_tracking_uri_is_refused_and_not_repeated() -> None:
    told = refused("tracking: {uri: 'http://me:opensesame@mlflow:5000'}")

    assert "tracking.uri: holds a password" in told
    assert "MLFLOW_TRACKING_PASSWORD" in told
    assert "opensesame" not in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n- 2\n", "r.yaml: a recipe is a table of keys, not list"),
        ("just words", "r.yaml: a recipe is a table of keys, not str"),
        ("a: 1\na: 2\n", "r.yaml: line 2: key 'a' is given twice"),
    ],
)
def test_what_is_no_table_is_refused(text: str, message: str) -> None:
    assert message in refused(text)


def test_an_empty_recipe_has_every_default() -> None:
    assert parse_recipe("", "r.yaml") == parse_recipe("# nothing\n", "r.yaml") == Recipe()


def test_defaults_are_the_published_values() -> None:
    recipe = Recipe()

    embeddings, everything = recipe.pretrain.phases
    assert (embeddings.trains, embeddings.lr, embeddings.steps) == ("embeddings", 0.0032, 5_000)
    assert (everything.trains, everything.lr, everything.steps) == ("all", 0.0024, 15_000)
    assert recipe.pretrain.steps == 20_000
    assert recipe.pretrain.sequence_length == recipe.context == 2_048
    assert (recipe.pretrain.batch_size, recipe.pretrain.micro_batch_size) == (224, 14)
    assert (recipe.finetune.rank, recipe.finetune.alpha, recipe.finetune.dropout) == (64, 28, 0.05)
    assert (recipe.finetune.lr, recipe.finetune.max_length) == (1e-4, 1_024)
    assert recipe.tokenizer.vocab_sizes == (100_000,)
    assert (recipe.clean.minhash_bands, recipe.clean.minhash_rows) == (14, 8)


def test_an_override_sets_a_key_a_list_and_an_item_of_a_list() -> None:
    recipe = parse_recipe(
        "pretrain: {batch_size: 4}",
        "r.yaml",
        [
            "pretrain.batch_size=8",
            "clean.inputs=[a.txt, 'b.txt']",
            "pretrain.phases.1.lr=1e-5",
            "seed=1",
            "seed=7",
        ],
    )

    assert recipe.pretrain.batch_size == 8
    assert recipe.clean.inputs == ("a.txt", "b.txt")
    assert [phase.lr for phase in recipe.pretrain.phases] == [0.0032, 1e-5]
    assert recipe.seed == 7


def test_an_override_may_hold_equal_signs_and_be_empty() -> None:
    recipe = parse_recipe("", "r.yaml", ["report.title=a=b", "base.revision="])

    assert recipe.report.title == "a=b"
    assert recipe.base.revision is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set 'seed': write key.path=value, such as pretrain.batch_size=8"),
        ("=3", "--set '=3': write key.path=value"),
        ("a..b=3", "--set 'a..b=3': write key.path=value"),
        ("seed=[", "--set seed: not YAML"),
        ("seed={a: 1, a: 2}", "--set seed: line 1: key 'a' is given twice"),
        ("pretrain.phases.2.lr=1", "'2' is not a place in a list of 2"),
        ("pretrain.phases.x.lr=1", "'x' is not a place in a list of 2"),
        ("pretrain.phases.-1.lr=1", "'-1' is not a place in a list of 2"),
        ("tokenizer.strategies.0.x=1", "--set 'tokenizer.strategies.0.x=1': item 0 of the list is not a"),
        ("seed.deeper=1", "seed: must be a whole number"),
        ("pretrain.batchsize=8", "pretrain.batchsize: unknown key; did you mean 'batch_size'? (got 8)"),
        (f"seed={'9' * 5000}", "seed: must be a whole number"),
    ],
)
def test_a_wrong_override_is_told(override: str, message: str) -> None:
    assert message in refused("", override)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("clean.minhash_row", "; did you mean 'minhash_rows'?"),
        ("clean.min_script", "; did you mean 'rules.min_script'?"),
        ("clean.rules.top_ngram", "; did you mean 'max_top_ngram'?"),
        ("pretrain.batch", "; did you mean 'batch_size'?"),
        ("shards", "; did you mean 'pretrain.parallelism.shard'?"),
        (
            "batch_sizes",
            "; here it is pretrain.batch_size (of all devices together), or for chats finetune.batch_size",
        ),
        ("clean.min_char", "; did you mean 'rules.min_chars'?"),
        ("clean.max_word", "; did you mean 'rules.max_words'?"),
        ("max_nonsense", ""),
        ("clean.nonsense", ""),
    ],
)
def test_an_unknown_key_is_answered_with_what_may_be_meant_and_no_far_guess(key: str, hint: str) -> None:
    assert f"{key}: unknown key{hint} (got 1)" in refused("", f"{key}=1")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("seed=x", '  command line: seed: must be a whole number (got "x")'),
        ("clean.input=3", "  command line: clean.input: unknown key; did you mean 'inputs'? (got 3)"),
        ("clean={input: 3}", "  command line: clean.input: unknown key"),
        ("pretrain.phases.0.lrr=1", "  command line: pretrain.phases.0.lrr: unknown key"),
        ("tokenizer.choice=replace", "  line 3 or command line: tokenizer: choice 'replace' is not one of"),
        ("finetune.rank=3", "  line 8: report.titel: unknown key"),
    ],
)
def test_a_mistake_is_told_where_it_was_made(override: str, told: str) -> None:
    text = "language: az\nseed: 3\ntokenizer:\n  strategies: [base]\nclean:\n  inputs: [a.txt]\nreport:\n  titel: x\n"

    assert told in refused(text, override)


@settings(max_examples=300)
@given(
    st.lists(
        st.text(max_size=20)
        | st.builds(
            "{}={}".format,
            st.lists(
                st.sampled_from([*Recipe.model_fields, "phases", "inputs", "0", "1", "lr", "model", "", "é"]),
                max_size=5,
            ).map(".".join),
            st.sampled_from(["", "1", "1e-4", "[", "{a: 1}", "[1, {}]", "null", "*x", "!!int 3", "9" * 500])
            | st.text(max_size=10),
        ),
        max_size=3,
    )
)
def test_no_override_gives_anything_but_a_recipe_or_a_recipe_error(overrides: list[str]) -> None:
    with contextlib.suppress(RecipeError):
        assert isinstance(parse_recipe("clean: {inputs: [a.txt]}", "r.yaml", overrides), Recipe)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_loads_and_survives_a_round_trip(name: str) -> None:
    recipe = load_recipe(name)

    assert load_recipe(recipe.model_dump_json()) == recipe
    assert recipe.sources
    assert recipe.finetune.inputs or name == "own"


def test_a_recipe_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("seed: 4", encoding="utf-8")

    assert find_recipe("smoke").name == "smoke.yaml"
    assert load_recipe(str(path)).seed == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smoks", "did you mean 'smoke'?"),
        ("onw", "did you mean 'own'?"),  # letters of a short name are swapped
        ("no/such.yaml", "recipe no/such.yaml: no such file"),
        ("x" * 5000, "File name too long"),
        ("a\0b", "neither a file nor a shipped recipe"),
        (".", "neither a file nor a shipped recipe"),
    ],
)
def test_a_recipe_that_is_not_there_is_told(name: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name)

    assert message in str(caught.value)


def test_a_file_that_is_no_utf_8_is_told(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("report: {title: é}".encode("latin-1"))

    with pytest.raises(RecipeError, match=r"latin\.yaml: cannot be read: 'utf-8' codec"):
        load_recipe(str(path))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_text("seed: 3", encoding="utf-8-sig")

    assert load_recipe(str(path)).seed == 3


def test_the_schema_explains_every_key() -> None:
    schema = json.loads(GOLDEN[SCHEMA]())

    for name, table in schema["$defs"].items():
        for key, field in table["properties"].items():
            assert field.get("description") or "$ref" in field, f"{name}.{key} has no text"


def test_no_reason_is_in_the_words_of_the_library() -> None:
    wrong = {
        "inputs": 3,
        "heldout_fraction": "a",
        "rules": 1,
        "pii": "x",
        "engine": "y",
        "workers": 1.5,
        "text_field": "",
    }
    with pytest.raises(RecipeError) as error:
        parse_recipe(
            json.dumps({"clean": wrong, "pretrain": {"phases": [{"trains": "all"}], "betas": [1]}}), "r.json"
        )

    assert "Input should" not in str(error.value)
    assert "valid" not in str(error.value)


VECTOR = "{model: a/instruct, minus: a/base}"


def merge_of(text: str) -> Merge:
    merge = parse_recipe(f"clean: {{inputs: [a.txt]}}\nmerge: {text}", "r.yaml").merge
    assert merge is not None
    return merge


def test_a_recipe_without_the_section_merges_nothing() -> None:
    assert Recipe().merge is None


@pytest.mark.parametrize(
    ("text", "is_auto"),
    [
        ("{base_share: 0.25}", False),
        (f"{{add: [{VECTOR}]}}", False),
        ("{base_share: auto}", True),
        ("{add: [{model: a/instruct, minus: a/base, weight: auto}]}", True),
    ],
)
def test_a_share_or_a_weight_may_be_left_to_measuring(text: str, is_auto: bool) -> None:
    assert merge_of(text).is_auto is is_auto


def test_models_are_named_once_each() -> None:
    other = "{model: a/code, minus: a/base, weight: 0.5}"

    assert merge_of(f"{{add: [{VECTOR}, {other}]}}").models == ("a/instruct", "a/base", "a/code")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "merge: merges nothing; set a base_share above 0 or add"),
        ("{base_share: 0, add: []}", "merges nothing"),
        ("{base_share: 1.5}", "merge.base_share: must be at most 1 (got 1.5)"),
        ("{base_share: atuo}", "merge.base_share: must be 'auto' (got \"atuo\")"),
        ("{base_share: '0.5'}", 'merge.base_share: must be a number (got "0.5")'),
        ("{base_share: .nan}", "merge.base_share: must be a number (got "),
        ("{base_shares: .5}", "merge.base_shares: unknown key; did you mean 'base_share'?"),
        ("{average_last: 2}", "merge.average_last: unknown key; did you mean 'pretrain.average_last'?"),
        ("{add: [{model: a/b}]}", "merge.add.0.minus: is missing"),
        ("{add: [{model: a/b, minus: a/b}]}", "model and minus are both a/b"),
        ("{add: [{model: a/b, minus: a/c, weight: 0}]}", "merge.add.0.weight: must be above 0 (got 0)"),
        (f"{{add: [{{model: {Recipe().base.model}, minus: a/b}}]}}", "takes away what a/b learnt; swap"),
        (f"{{add: [{VECTOR}, {VECTOR}]}}", "the difference of a/instruct and a/base is named twice"),
    ],
)
def test_a_mistake_names_key_value_and_remedy(text: str, words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        merge_of(text)

    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("key", "here"),
    [
        ("learning_rate", "pretrain.phases[].lr, or for chats finetune.lr"),
        ("finetune.learningRate", "finetune.lr"),
        ("pretrain.learning_rate", "pretrain.phases[].lr"),
        ("peft-config", "finetune.trains: adapter, with finetune.rank"),
        ("lora_r", "finetune.rank"),
        ("gradient_checkpointing", "pretrain.activation_checkpointing"),
        ("cutoff_len", "pretrain.sequence_length, or for chats finetune.max_length"),
        ("base.model_name_or_path", "base.model"),
        ("fsdp_config", "pretrain.parallelism.shard"),
        ("wandb_project", "tracking.uri"),
        ("save_total_limit", "pretrain.keep_checkpoints"),
    ],
)
def test_a_name_of_another_trainer_says_what_it_is_called_here(key: str, here: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"{key}: unknown key; here it is {here}")):
        load_recipe("smoke", [f"{key}=1"])


def test_what_other_trainers_are_told_names_keys_that_exist() -> None:
    keys = set(paths_in(Recipe))
    told = [*OTHER_NAMES, *(key for pair in TRAINED_TWICE.values() for key in pair)]
    named = {
        key
        for text in told
        for key in re.findall(r"\b(?:[a-z_]+\.)+[a-z_]+", text.replace("phases[].", "phases."))
    }

    # A key within a list's item is a key of the list's table.
    assert {key for key in named if key not in keys} == {"pretrain.phases.lr", "pretrain.phases.steps"}
    assert {"lr", "steps"} <= set(Phase.model_fields)


def test_a_name_of_another_trainer_stands_there_once() -> None:
    names = " ".join(OTHER_NAMES.values()).split()

    assert len(names) == len(set(names))
    assert all(name_here(name) for name in names)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("pretrain.max_seq_lenght", "here it is pretrain.sequence_length"),
        ("finetune.gradient_acumulation_steps", "did you mean 'gradient_accumulation'"),
        ("finetune.learning_rat", "here it is finetune.lr"),
        ("finetune.seed", "did you mean 'seed'?"),
        ("finetune.use_unsloth", "nowhere: the fastest kernel of the device is taken"),
    ],
)
def test_a_slip_in_such_a_name_and_a_key_of_another_place_are_answered_too(key: str, hint: str) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("smoke", [f"{key}=1"])

    assert f"{key}: unknown key; {hint}" in str(refused.value)
