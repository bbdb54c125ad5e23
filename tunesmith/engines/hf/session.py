"""A session: weights on the devices, and all that can be done with them but training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.tensor import DTensor

from tunesmith.data.dataset import PackedDataset
from tunesmith.data.types import Batch
from tunesmith.engines.contract import Completion, LossSum, Say
from tunesmith.engines.hf import build, devices, export, generate, precision
from tunesmith.engines.hf.checkpoint import Checkpoints
from tunesmith.engines.hf.families import Family, check_length, choose_attention, find_family
from tunesmith.errors import UserError
from tunesmith.models.adapter import read_peft
from tunesmith.recipe.schema import Generation, LoraSection, Recipe
from tunesmith.runs.rundir import RunDir

_NOT_A_TARGET = -100


@dataclass
class HfSession:
    """Weights of one model on the devices.

    Attributes:
        model_dir: the base model.
        family: its row of `families.FAMILIES`.
        accelerator: of the run.
        model: as Accelerate prepared it.
        text_config: transformers' config of the text decoder.
        compute_dtype: of the products.
        optimizer: of the weights that train; None in a session that does not train.
        lora: the adapters' figures, if there are any.
    """

    model_dir: Path
    family: Family
    accelerator: Accelerator
    model: nn.Module
    text_config: Any
    compute_dtype: torch.dtype
    optimizer: torch.optim.Optimizer | None = None
    lora: LoraSection | None = None

    @property
    def held_dtype(self) -> str:
        """Type of the frozen weights."""
        bfloat16 = self.lora is not None and self.compute_dtype == torch.bfloat16
        return "bfloat16" if bfloat16 else "float32"

    @property
    def module(self) -> Any:
        """The model without a wrapper around it; sharded weights stay sharded."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def trainable(self) -> dict[str, torch.Tensor]:
        """What trains, by transformers' names; sharded, where they are."""
        return {
            name: parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }

    def loss_sum(self, model: Any, batch: Batch) -> torch.Tensor:
        """Summed loss of this process's rows.

        Segments of a sequence are told apart by their positions, which restart: with no attention
        mask given, transformers keeps them from seeing each other.
        """
        device = self.accelerator.device
        labels = np.where(batch.target_mask, batch.targets, _NOT_A_TARGET)
        with precision.compute(self.module, self.compute_dtype, device):
            output = model(
                input_ids=torch.from_numpy(batch.tokens).long().to(device),
                position_ids=torch.from_numpy(batch.positions).long().to(device),
                shift_labels=torch.from_numpy(labels).long().to(device),
                fused_lm_head=True,
                use_cache=False,
            )
        return -output.log_probs.sum()

    @torch.no_grad()
    def loss(
        self,
        dataset: PackedDataset,
        *,
        batch_size: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> LossSum:
        """Sum the loss over a data set; see `engines.contract.Session.loss`."""
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        batch_size = -(-batch_size // count) * count
        share = batch_size // count
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        targets, sequences = 0, 0
        self.model.eval()
        for batch in dataset.in_order(batch_size):
            total += self.loss_sum(self.module, batch.rows(rank * share, share))
            targets += int(batch.target_mask.sum())
            sequences = min(sequences + batch_size, dataset.num_sequences)
            if progress:
                progress(sequences, dataset.num_sequences)
        return LossSum(float(self.accelerator.reduce(total)), targets)  # type: ignore[arg-type]

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        settings: Generation,
        *,
        stop_ids: Sequence[int],
        batch_size: int = 32,
        done: Callable[[int, np.ndarray], bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Continue each prompt; see `engines.contract.Session.generate`."""
        self.model.eval()
        with precision.compute(self.module, self.compute_dtype, self.accelerator.device):
            return generate.answer(
                self.module,
                self.accelerator,
                prompts,
                settings,
                stop_ids=stop_ids,
                batch_size=batch_size,
                done=done,
                progress=progress,
            )

    @torch.no_grad()
    def logits(self, ids: np.ndarray) -> np.ndarray:
        """Logits [T, V] of one sequence, computed in float32; every process calls it."""
        self.model.eval()
        tokens = torch.from_numpy(np.asarray(ids, np.int64))[None].to(self.accelerator.device)
        with precision.float32(self.module):
            return self.module(input_ids=tokens, use_cache=False).logits[0].float().cpu().numpy()

    def export(self, out_dir: Path | None, *, kind: str, dtype: str) -> None:
        """Write `merged` weights or the `adapter`; every process calls it, one names a folder."""
        trained = {
            name: gathered
            for name, parameter in self.trainable.items()
            if (gathered := _to_host(parameter, wanted=out_dir is not None)) is not None
        }
        if out_dir is not None:
            export.write(out_dir, self.model_dir, trained, self.lora, kind=kind, dtype=dtype)

    def take_weights(self, run: RunDir, say: Say, *, use_best: bool) -> None:
        """Take a run's trained weights; see `engines.contract.Session.take_weights`.

        Raises:
            UserError: the run has no readable checkpoint, or trained other weights.
        """
        checkpoints = Checkpoints(run.checkpoints, keep=1)
        step = checkpoints.restore_weights(self.trainable, say, use_best=use_best)
        say(f"takes the weights of {run.path} after step {step}")


def _to_host(parameter: torch.Tensor, *, wanted: bool) -> np.ndarray | None:
    """A parameter whole, in float32; all processes gather it, one keeps it."""
    whole = parameter.detach()
    if isinstance(whole, DTensor):
        whole = whole.full_tensor()
    return whole.float().cpu().numpy() if wanted else None


def open_session(
    model_dir: Path, *, adapter_dir: Path | None = None, compute_dtype: str = "auto"
) -> HfSession:
    """Load a model to score and generate with, an adapter merged into it.

    Raises:
        UserError: the model or adapter cannot be read.
    """
    family, text_config = find_family(model_dir)
    accelerator = devices.make_accelerator()
    dtype = precision.settle_dtype(compute_dtype, accelerator.device)
    held = torch.float32 if adapter_dir else dtype  # merged in float32, as the trainer adds it
    model = build.load_text_model(model_dir, family, text_config, dtype=held)
    if adapter_dir:
        build.merge_adapter(model, read_peft(adapter_dir))
    model = model.to(accelerator.device).eval().requires_grad_(False)
    for parameter in model.parameters():  # not the buffers: rotary angles stay float32
        parameter.data = parameter.data.to(dtype)
    return HfSession(model_dir, family, accelerator, model, text_config, dtype)


def open_trainer(recipe: Recipe, model_dir: Path) -> HfSession:
    """Load a model to train as the recipe says, with LoRA also fresh adapters.

    Raises:
        UserError: the model cannot be read, or the recipe does not fit it or the devices.
    """
    family, text_config = find_family(model_dir)
    lora = recipe.lora
    check_length(text_config, recipe.data.max_length)
    attention = choose_attention(family, text_config, recipe.train.attention)
    if lora is not None:
        build.check_lora(lora, family, text_config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = precision.settle_dtype(recipe.train.compute_dtype, device)
    quantization = build.quantization(lora, dtype, device)
    accelerator = devices.make_accelerator(recipe, family, dtype)
    model = build.load_text_model(
        model_dir,
        family,
        text_config,
        # Master weights are float32; what is frozen lies in the type of the products.
        dtype=dtype if lora else torch.float32,
        attention=attention,
        quantization=quantization,
        # Sharded weights are read by one process of a machine; whole ones go straight to where they
        # are used, so that the processes do not hold a copy each on the host.
        device=None if recipe.parallel.fsdp > 1 else accelerator.device,
    )
    if lora is not None:
        build.attach_lora(model, lora, seed=recipe.train.seed)
    if recipe.train.remat == "layer":
        build.recompute_layers(model)
    if recipe.parallel.fsdp > 1:
        build.share_buffers(model)
    optimizer = build.make_optimizer(model, recipe.train, fused=device.type == "cuda")
    model, optimizer = accelerator.prepare(model, optimizer)
    if recipe.parallel.fsdp > 1:
        _refuse_unsharded(model)
    return HfSession(model_dir, family, accelerator, model, text_config, dtype, optimizer, lora)


def _refuse_unsharded(model: nn.Module) -> None:
    """Accelerate trains unsharded without a word where it does not do FSDP, as on CPUs.

    Raises:
        UserError: sharding was asked for, and is not active for every weight.
    """
    whole = [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]
    if whole or not precision.is_sharded(model):
        raise UserError(
            "parallel.fsdp asks for sharded weights, and sharding is not active: each device "
            f"would hold {len(whole)} tensors whole ({', '.join(whole[:2])} …)",
            "Accelerate shards on GPUs only: use them, or set parallel.fsdp to 1.",
        )
