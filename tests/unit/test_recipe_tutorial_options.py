"""docs/tutorial-options.md: no option of the tutorials is missing, and what it says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunesmith.recipe.explain import fields
from tunesmith.recipe.load import load_recipe, yaml_value

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-options.md"

TPU = "tinystories-gemma3-270m"
GPU = "text-to-sql-gemma4-31b"
OPTIONS = {
    TPU: {
        # argparse
        *("--maxlen", "--batch_size", "--datacount"),
        # constants in the script's body
        *("num_epochs", "learning_rate", "optax.adamw", "file_path", "text.split", "story.strip()"),
        *("[:maxlen]", "padding to `maxlen`", "shuffle", "seed", "NoSharding", "drop_remainder"),
        *("len(batch) % len(jax.devices())", "Gemma3Tokenizer", "Gemma3_270M", "GEMMA3_270M_PT"),
        *("full logits `.mean()`", "prep_target_batch", "donate_argnums", "batchCount % 10"),
        *("Mesh(jax.devices(), ('batch',))", "jax.distributed.initialize()", "test_prompt"),
        *("max_new_tokens", "Sampler"),
        # what it leaves out
        *("schedule", "warm-up", "gradient clipping", "BOS", "dtype", "saving"),
    },
    GPU: {
        # argparse
        *("--model_id", "--hf_token", "--trust_remote", "--use_fast", "--dataset_name"),
        *("--output_dir", "--lora_r", "--lora_alpha", "--lora_dropout", "--max_length"),
        *("--num_train_epochs", "--per_device_train_batch_size", "--gradient_accumulation_steps"),
        *("--learning_rate", "--logging_steps", "--save_strategy", "--save_steps"),
        *("--push_to_hub", "--hub_private_repo"),
        # constants in the script's body
        *("split", "shuffle()", "select(range(12500))", "train_test_split", "system_message"),
        *("user_prompt", "sql_prompt`, `sql_context`, `sql", "apply_chat_template(tokenize=False)"),
        *(
            "loss on",
            "pad_token",
            "torch_dtype",
            "bf16",
            "fp16",
            "use_cache",
            "attn_implementation",
        ),
        *("bias", "target_modules", "exclude_modules", "task_type", "packing", "label_names"),
        *("rows above `max_length`", "gradient_checkpointing", "use_reentrant", "optim"),
        *("max_grad_norm", "warmup_steps", "lr_scheduler_type", "report_to", "eval_dataset"),
        *("FULL_STATE_DICT", "destroy_process_group", "BitsAndBytesConfig"),
        # Accelerate's configuration file
        *("compute_environment", "debug", "distributed_type", "downcast_bf16"),
        *("enable_cpu_affinity", "fsdp_activation_checkpointing", "fsdp_auto_wrap_policy"),
        *("fsdp_cpu_ram_efficient_loading", "fsdp_offload_params", "fsdp_reshard_after_forward"),
        *("fsdp_state_dict_type", "fsdp_transformer_layer_cls_to_wrap", "fsdp_version"),
        *("machine_rank", "main_training_function", "mixed_precision", "num_machines"),
        *("num_processes", "rdzv_backend", "same_network", "tpu_env", "tpu_use_cluster"),
        *("tpu_use_sudo", "use_cpu"),
    },
}


def rows(recipe: str) -> list[list[str]]:
    """Cells of all tables below the heading that names the recipe."""
    section = PAGE.read_text(encoding="utf-8").partition(f"`{recipe}`\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "Option" and set(row[0]) != {"-"}]


@pytest.mark.parametrize("recipe", [TPU, GPU])
def test_every_option_has_one_row(recipe: str) -> None:
    named = [row[0].strip("`") for row in rows(recipe)]
    wanted = sorted(option.strip("`") for option in OPTIONS[recipe])
    assert sorted(named) == wanted


def test_both_scripts_have_their_number_of_flags() -> None:
    assert [sum(o.startswith("--") for o in OPTIONS[r]) for r in (TPU, GPU)] == [3, 19]


@pytest.mark.parametrize("recipe", [TPU, GPU])
def test_every_row_names_fields_with_the_shipped_values(recipe: str) -> None:
    known = {path for path, _ in fields()}
    shipped = load_recipe(recipe).recipe
    for option, _, here, _ in rows(recipe):
        named = re.findall(r"`([^`]*)`", here)
        assert named or here == "gone", option
        for entry in named:
            path, colon, value = entry.partition(": ")
            assert path in known, f"{option}: no field {path}"
            actual = shipped
            for step in path.split("."):
                actual = getattr(actual, step)
            assert actual is not None or value == "null", f"{option}: {path} is not set"
            if colon:
                assert yaml_value(actual) == value, f"{option}: {path}"


@pytest.mark.parametrize("recipe", [TPU, GPU])
def test_fields_in_the_reasons_exist(recipe: str) -> None:
    known = {path for path, _ in fields()}
    for option, _, _, why in rows(recipe):
        for name in re.findall(r"`((?:data|train|eval|run|cloud|model|lora)\.\w[\w.]*)`", why):
            assert name in known, f"{option}: no field {name}"
