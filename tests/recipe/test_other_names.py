"""What other trainers call a setting, said where a recipe has it."""

import re

import pytest

from anadil.core.errors import RecipeError
from anadil.recipe.load import load_recipe, paths_in
from anadil.recipe.other_names import OTHER_NAMES, TRAINED_TWICE, name_here
from anadil.recipe.pretrain import Phase
from anadil.recipe.sections import Recipe


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
