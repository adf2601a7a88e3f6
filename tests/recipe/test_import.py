"""Recipes out of settings of axolotl, LLaMA-Factory and TRL, whose keys are those of their published examples."""

import json
import re
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.core.errors import RecipeError
from anadil.recipe.import_recipe import Imported, import_recipe, recipe_text
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.recipe.peer_settings import read_peer

PEERS = Path(__file__).parent / "peers"
TRL = (
    "trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --learning_rate 2e-4 "
    "--num_train_epochs 1 --packing --per_device_train_batch_size=2 --gradient_accumulation_steps 8 --use_peft "
    "--lora_r 32 --lora_alpha 16 --eos_token '<|im_end|>' --max_length 2048 --output_dir out"
)


def imported(given: str) -> Imported:
    return import_recipe(read_peer(given))


def test_an_adapter_of_axolotl_has_its_keys_here_and_what_is_lost_is_named() -> None:
    made = imported(str(PEERS / "axolotl-lora.yml"))

    assert made.recipe == {
        "base": {"model": "NousResearch/Meta-Llama-3-8B-Instruct"},
        "finetune": {
            "inputs": ["data/answers.jsonl"], "columns": {"messages": "dialogue"}, "trains": "adapter", "rank": 32,
            "alpha": 16, "dropout": 0.05, "validation_fraction": 0.05, "max_length": 4096, "batch_size": 2,
            "gradient_accumulation": 4, "epochs": 4, "schedule": "cosine", "lr": 0.0002, "weight_decay": 0.0,
        },
        "evaluate": {"max_new_tokens": 128},
    }  # fmt: skip
    assert set(made.lost) == {"load_in_8bit", "warmup_steps"}
    assert {"optimizer", "chat_template", "gradient_checkpointing"} <= set(made.decided)
    assert "lora_target_linear" in made.idle
    assert [each.partition(":")[0] for each in made.needed] == ["language", "clean.inputs"]


def test_four_bits_and_a_share_of_warm_up_are_taken_from_axolotl() -> None:
    made = imported(str(PEERS / "axolotl-qlora.yml"))

    assert made.recipe["finetune"]["quantization"] == "4bit"
    assert made.recipe["finetune"]["warmup_fraction"] == 0.1
    assert made.recipe["finetune"]["inputs"] == ["hf://datasets/teknium/GPT4-LLM-Cleaned"]
    assert "hf://datasets/teknium/GPT4-LLM-Cleaned: name a commit" in made.needed[1]
    assert set(made.lost) == {"loss_watchdog_threshold"}


def test_settings_of_a_data_set_that_are_not_read_are_lost(tmp_path: Path) -> None:
    text = "base_model: a\nsequence_len: 8\ndatasets: [{path: a.jsonl, type: {field_instruction: Sual}, shards: 4, split: test}]"
    (tmp_path / "a.yml").write_text(text, encoding="utf-8")

    made = imported(str(tmp_path / "a.yml"))

    assert set(made.lost) == {"datasets[].shards", "split test"}
    assert made.recipe["finetune"]["columns"] == {"question": "Sual"}


def test_the_guide_says_what_is_lost_of_each_example() -> None:
    guide = Path(__file__).parents[2] / "docs/guides/from-another-trainer.md"
    rows = re.findall(
        r"^\| (?:axolotl|LLaMA-Factory), .*\| (\d+) \| (.*) \|$",
        guide.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    names = ("axolotl-lora.yml", "axolotl-dpo.yml", "axolotl-qlora.yml", "llamafactory-lora.yaml", "llamafactory-full.yaml",
             "llamafactory-pretrain.yaml")  # fmt: skip

    made = [imported(str(PEERS / name)) for name in names]

    assert [(int(keys), set(re.findall(r"`(\w+)`", lost))) for keys, lost in rows] == [
        (len(each.taken), {*each.lost} - {"lr_scheduler_type"}) for each in made
    ]


def test_pairs_of_axolotl_are_the_second_step_here() -> None:
    made = imported(str(PEERS / "axolotl-dpo.yml"))

    assert made.recipe["finetune"]["preference"]["lr"] == 0.0002
    assert made.recipe["finetune"]["rank"] == 32
    assert (
        "finetune.inputs: chats, which the model learns to answer from before it learns from pairs"
        in made.needed
    )


def test_data_sets_of_llama_factory_are_found_in_its_table() -> None:
    made = imported(str(PEERS / "llamafactory-lora.yaml"))

    assert made.recipe["finetune"]["inputs"] == [
        str(PEERS / "data/identity.json"),
        str(PEERS / "data/alpaca_az.json"),
    ]
    assert made.recipe["finetune"]["columns"] == {"question": "sual", "answer": "cavab"}
    assert made.recipe["finetune"]["checkpoint_every"] == 500
    assert set(made.lost) == {"max_samples"}


def test_all_weights_of_llama_factory_keep_their_share_of_warm_up() -> None:
    made = imported(str(PEERS / "llamafactory-full.yaml"))

    assert made.recipe["finetune"]["trains"] == "all"
    assert made.recipe["finetune"]["warmup_fraction"] == 0.1
    assert made.lost["lr_scheduler_type"].startswith(
        "'cosine_with_restarts' is none of cosine, linear, constant"
    )
    assert made.lost["deepspeed"].startswith("pretrain.parallelism.shard")


def test_text_of_llama_factory_is_pre_training_of_all_weights() -> None:
    made = imported(str(PEERS / "llamafactory-pretrain.yaml"))
    recipe = parse_recipe(json.dumps(made.recipe), "recipe")

    assert recipe.clean.inputs == (str(PEERS / "data/wiki_az.jsonl"),)
    assert (recipe.pretrain.batch_size, recipe.pretrain.micro_batch_size, recipe.pretrain.max_epochs) == (
        8,
        1,
        3,
    )
    assert [(phase.trains, phase.lr) for phase in recipe.pretrain.phases] == [("all", 1e-4)]
    assert "finetune" not in made.recipe
    assert set(made.lost) == {"finetuning_type", "lora_rank"}


def test_arguments_of_trl_are_read_as_its_script_does() -> None:
    made = imported(TRL)

    assert made.recipe["base"] == {"model": "Qwen/Qwen3-0.6B"}
    assert made.recipe["finetune"]["batch_size"] == 2
    assert made.recipe["finetune"]["rank"] == 32
    assert set(made.lost) == {"eos_token"}


AXOLOTL = (
    "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\ndatasets: [{path: a.jsonl, type: alpaca}]\n"
)
FACTORY = "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\nfinetuning_type: lora\ndataset_dir: data\ntemplate: qwen3\n"


@pytest.mark.parametrize(
    ("settings", "tracking", "asked"),
    [
        (AXOLOTL + "wandb_project: az\nwandb_entity: team\nwandb_mode:\nwandb_watch: gradients\n",
         {"uri": "wandb://team/az"}, ""),
        (AXOLOTL + "wandb_project: az\nwandb_name: first\n", None, "wandb://ENTITY/az"),
        (AXOLOTL + "use_mlflow: true\nmlflow_tracking_uri: http://mlflow:5000\nmlflow_experiment_name: az\n",
         {"uri": "http://mlflow:5000", "experiment": "az"}, ""),
        (AXOLOTL + "use_tensorboard: true\nwandb_project:\nwandb_entity:\n", {"uri": "tensorboard:runs"}, ""),
        (AXOLOTL + "mlflow_tracking_uri: http://me:hunter2@mlflow\n", None, "the address holds a password"),
        (FACTORY + "report_to: tensorboard\nlogging_dir: saves/qwen3/sft/run\nrun_name: first\n",
         {"uri": "tensorboard:saves/qwen3/sft/run"}, ""),
        (FACTORY + "report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]\n", None, ""),
        (FACTORY + "report_to: [wandb, swanlab]\nuse_swanlab: true\n", None, "wandb://ENTITY/PROJECT"),
        (FACTORY + "report_to: [swanlab]\n", None, "swanlab is no tracker here"),
        ("trl sft --model_name_or_path a --dataset_name b --report_to tensorboard mlflow", None, ""),
        ("trl sft --model_name_or_path a --dataset_name b --report_to tensorboard", {"uri": "tensorboard:runs"}, ""),
    ],
)  # fmt: skip
def test_a_tracker_is_the_address_of_tracking(
    settings: str, tracking: dict[str, str] | None, asked: str, tmp_path: Path
) -> None:
    (tmp_path / "peer.yml").write_text(settings, encoding="utf-8")

    made = imported(settings if settings.startswith("trl") else str(tmp_path / "peer.yml"))

    said = [*made.needed, *made.lost.values()]
    assert made.recipe.get("tracking") == tracking
    assert any(asked in each for each in said)
    assert asked or not any("track" in each for each in said), said
    assert {*made.settings.values} <= {*made.taken.values(), *made.lost, *made.decided, *made.idle}
    assert "hunter2" not in recipe_text(made, "peer.yml")


@pytest.mark.parametrize("given", [*sorted(map(str, PEERS.glob("*.y*ml"))), TRL])
def test_every_setting_is_in_a_list_and_the_file_is_a_recipe(given: str, tmp_path: Path) -> None:
    made = imported(given)
    text = recipe_text(made, given)

    said = {*made.taken.values(), *made.lost, *made.decided, *made.idle}
    assert set(made.settings.values) <= said
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    assert load_recipe(str(tmp_path / "my.yaml")) == parse_recipe(json.dumps(made.recipe), "recipe")
    assert all(f"# {name}" in text for name in made.taken.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("language: az\n", r"neither settings of axolotl .* nor of LLaMA-Factory .* nor arguments of TRL"),
        ("base_model: a\ndatasets: []\nrl: grpo\n", "learns by 'grpo', which no stage here does"),
        ("base_model: a\nsequence_len: -1\nlearning_rate: 1\n", r"settings of axolotl.*finetune\.max_length"),
        ("- a\n", "holds no table of settings"),
    ],
)
def test_what_is_no_settings_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(text, encoding="utf-8")

    with pytest.raises(RecipeError, match=re.compile(message, re.DOTALL)):
        imported(str(tmp_path / "a.yml"))


def test_the_command_writes_a_file_once_and_lists_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["recipe", "import", str(PEERS / "axolotl-lora.yml"), str(tmp_path / "my.yaml")]

    assert main(words) == 0
    out = capsys.readouterr().out
    assert (
        "my.yaml: 16 keys from settings of axolotl\nlost, for nothing here does it:\n  load_in_8bit: weights"
        in out
    )
    assert "asked for before a run:\n  language: " in out
    assert main(words) == 2
    assert "exists already; choose another name" in capsys.readouterr().err


def test_a_file_of_another_trainer_is_no_recipe_and_the_error_names_the_import(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipe", "check", str(PEERS / "axolotl-lora.yml")]) == 2
    assert "these are settings of axolotl: anadil recipe import" in capsys.readouterr().err
