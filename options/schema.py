"""Every option of a training run, in one frozen, typed schema. The docstring below a field is also its --help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from host.errors import UserError

MAX_COUNT = 2**31 - 1  # counts are int32 on devices
MAX_FLOAT = 1e38  # and numbers float32
PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Length = Annotated[int, Field(ge=8, le=MAX_COUNT)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0, le=MAX_FLOAT, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, le=MAX_FLOAT, allow_inf_nan=False)]
REMAINING_DEVICES = -1  # size of the mesh's axis that takes the devices that are left
MeshSize = Annotated[int, Field(ge=REMAINING_DEVICES)]
Weight = Annotated[float, Field(ge=0.001, le=1000.0)]


class Section(BaseModel):
    """A frozen table of options; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _text_has_no_nul(cls, value: Any) -> Any:
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("a NUL character can be in no name and no path")
        return value


class SectionWithAlternatives(Section):
    """A table with two options of which exactly one has a value; the default of the first gives way to the second."""

    alternatives: ClassVar[tuple[str, str]]

    @model_validator(mode="before")
    @classmethod
    def _the_default_gives_way(cls, values: Any) -> Any:
        first, second = cls.alternatives
        if isinstance(values, dict) and first not in values and values.get(second) is not None:
            return {**values, first: None}
        return values

    @model_validator(mode="after")
    def _exactly_one_is_given(self) -> SectionWithAlternatives:
        values = [getattr(self, name) for name in self.alternatives]
        if values.count(None) != 1:
            names, got = (" and ".join(map(str, both)) for both in (self.alternatives, values))
            raise ValueError(f"exactly one of {names} must be given, got {got}")
        return self


class MixtureConfig(Section):
    """One more corpus to train on, an entry [[data.mixture]]: it adds training pairs and nothing else."""

    name: str = "text"
    """Corpus, as in [data]."""
    source_language: str | None = None
    """Language translated from; by default that of [data]."""
    target_language: str | None = None
    """Language translated into; by default that of [data]."""
    directory: Path | None = None
    """Like data.directory."""
    train_source: Path | None = None
    """Like data.train_source; nothing is held out of it."""
    train_target: Path | None = None
    """Like data.train_target."""
    weight: Weight = 1.0
    """Its part of the training pairs drawn, in proportion to data.weight and the weights of the other entries."""


class DataConfig(Section):
    """The corpus and how it is laid into batches."""

    name: str = "phrasebook"
    """Corpus: phrasebook (built in), multi30k, text (your own files), or one of TensorFlow Datasets, such as
    ted_hrlr_translate/pt_to_en (the part behind the slash may be left out where the languages decide it)."""
    source_language: str = "en"
    """Language translated from."""
    target_language: str = "fr"
    """Language translated into."""
    directory: Path | None = None
    """Folder with files that are already here, instead of a download: multi30k's *.en.gz, *.de.gz as published, or the
    archives of a corpus of TensorFlow Datasets under their published names."""
    cache_directory: Path | None = None
    """Where prepared corpora lie; by default lingua-flax in $XDG_CACHE_HOME or ~/.cache."""
    train_source: Path | None = None
    """text: source lines, or pairs where the name ends in .tsv or .jsonl (no train_target then); .gz of any of them."""
    train_target: Path | None = None
    """text: target lines, aligned with train_source."""
    validation_source: Path | None = None
    """text: like train_source; a part of train is held out where validation is not given."""
    validation_target: Path | None = None
    """text: target lines, aligned with validation_source."""
    test_source: Path | None = None
    """text: like train_source; a part of train is held out where test is not given."""
    test_target: Path | None = None
    """text: target lines, aligned with test_source."""
    row_length: Length = 128
    """Tokens of a packed row on each side; training pairs with a longer side are left out, counted and reported."""
    tag_target: bool = False
    """Put a piece such as <2fr>, for the corpus's target_language, before each source: one model, several languages."""
    weight: Weight = 1.0
    """Part of the training pairs that is drawn from this corpus, where there are others in mixture."""
    mixture: tuple[MixtureConfig, ...] = ()
    """More corpora to train on. Each is shuffled and repeated by itself, as often as the weights ask; an epoch is as
    many pairs as all have together. The tokenizer is trained on all; validation and test are those of [data]."""

    @model_validator(mode="after")
    def _weight_needs_a_mixture(self) -> DataConfig:
        if self.weight != 1.0 and not self.mixture:
            raise ValueError(f"weight {self.weight} has no effect without a [[data.mixture]] to weigh it against")
        return self

    @property
    def target_languages(self) -> list[str]:
        """The languages that the model learns to translate into, each once, that of [data] first."""
        others = [more.target_language or self.target_language for more in self.mixture]
        return list(dict.fromkeys([self.target_language, *others]))


class TokenizerConfig(Section):
    """SentencePiece, trained on the training split into the workdir on first use."""

    model_file: Path | None = None
    """An existing SentencePiece model (pad 0, eos 1, bos 2, unk 3) to use instead of training one; it must be joint.
    A run keeps the copy in its workdir: the file may move, but not change."""
    kind: Literal["unigram", "bpe"] = "unigram"
    """Subword algorithm."""
    joint: bool = True
    """One vocabulary for both languages; otherwise one for each side."""
    vocab_size: Annotated[int, Field(ge=8, le=MAX_COUNT)] = 8000
    """Pieces in each vocabulary."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the training text's characters that get a piece; lower it for Chinese or Japanese (0.9995)."""
    byte_fallback: bool = False
    """Spell characters without a piece as bytes instead of <unk>; takes 256 pieces."""
    lowercase: bool = False
    """Fold case before splitting: translations come out in lower case, and BLEU is computed without case."""
    sampling_alpha: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """Train on segmentations drawn anew in every epoch; 0 turns it off. unigram: by their probability to the power of
    alpha, such as 0.2 (Kudo 2018); bpe: dropping merges with this probability, such as 0.1 (Provilkov et al. 2020)."""

    @model_validator(mode="after")
    def _sampling_is_a_probability_for_bpe(self) -> TokenizerConfig:
        if self.kind == "bpe" and self.sampling_alpha >= 1:
            raise ValueError(
                f"sampling_alpha must be below 1 for bpe, where it is the probability to drop a merge, "
                f"got {self.sampling_alpha}"
            )
        return self


class ModelConfig(Section):
    """The encoder/decoder Transformer (Vaswani et al. 2017)."""

    num_encoder_layers: PositiveInt = 3
    """Layers of the encoder."""
    num_decoder_layers: PositiveInt = 3
    """Layers of the decoder."""
    embed_dim: PositiveInt = 256
    """Width D of the residual stream; must be divisible by num_heads."""
    num_heads: PositiveInt = 4
    """Attention heads N of every layer."""
    mlp_dim: PositiveInt = 1024
    """Width F of the feed-forward layer."""
    activation: Literal["relu", "gelu"] = "relu"
    """Non-linearity of the feed-forward layer."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer (and after the last), or after each residual sum as in the paper."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Position encodings: added to embeddings, or rotary: every attention, that to the source too, turns its queries
    and keys by where they stand (Su et al. 2021)."""
    position_base: Annotated[float, Field(gt=1.0, le=MAX_FLOAT, allow_inf_nan=False)] = 10000.0
    """Base of the wavelengths of sinusoids and rotations."""
    qk_norm: bool = False
    """Normalise queries and keys of each head (Henry et al. 2020; by their root mean square, with a learned scale)."""
    max_length: Length = 256
    """Longest sentence in tokens, either side; translation cuts what is longer, and says so."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """What shares one matrix: source, target and output; target and output; or nothing."""
    dropout_rate: Probability = 0.1
    """Dropout on embeddings, on each sublayer's output and inside the feed-forward layer."""
    attention_dropout_rate: Probability = 0.0
    """Dropout on attention weights."""
    attention: Literal["auto", "plain", "fused", "cudnn"] = "auto"
    """What computes attention in training: plain, equation 1 as written; fused, a kernel for TPUs; cudnn, NVIDIA's for
    GPUs; auto, fused where it can compute this network, else plain. They differ in the last digits."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> ModelConfig:
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide embed_dim, got {self.num_heads} heads for a width of {self.embed_dim}"
            )
        if self.positions == "sinusoidal" and self.embed_dim % 2:
            raise ValueError(f"embed_dim must be even for sinusoidal positions, got {self.embed_dim}")
        if self.positions == "rotary" and self.embed_dim // self.num_heads % 2:
            raise ValueError(
                f"embed_dim divided by num_heads must be even for rotary positions, "
                f"got {self.embed_dim} and {self.num_heads}"
            )
        return self

    @model_validator(mode="after")
    def _learned_positions_have_no_base(self) -> ModelConfig:
        if self.positions == "learned" and self.position_base != ModelConfig.model_fields["position_base"].default:
            raise ValueError(f"position_base {self.position_base} has no effect with learned positions")
        return self


class OptimizerConfig(SectionWithAlternatives):
    """Optimizer, learning-rate schedule, clipping."""

    alternatives = ("warmup_steps", "warmup_share")
    name: Literal["adam", "adamw", "adafactor"] = "adam"
    """adam (Kingma and Ba 2015), adamw (decoupled weight decay, Loshchilov and Hutter 2019), or adafactor (Shazeer and
    Stern 2018: second moments as row and column means, no first moments, rates not scaled by the parameters)."""
    peak_lr: PositiveFloat = 1e-3
    """Learning rate at the end of warm-up."""
    warmup_steps: Count | None = 1000
    """Steps over which the learning rate rises linearly from 0."""
    warmup_share: Probability | None = None
    """Warm-up as a share of the run's steps instead of warmup_steps: exactly one of the two has a value. It is turned
    into steps when the run is made: one that is made longer later keeps those."""
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    """What follows warm-up; cosine falls to 0 at the last step."""
    beta1: Probability = 0.9
    """Decay of Adam's first moment."""
    beta2: Probability = 0.98
    """Decay of Adam's second moment."""
    epsilon: Annotated[float, Field(ge=1e-30, le=MAX_FLOAT)] = 1e-9
    """Added to Adam's denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay on matrices (adamw only)."""
    clip_norm: NonNegativeFloat = 1.0
    """Gradients with a larger global norm are scaled down to it; 0 turns clipping off."""

    def num_warmup_steps(self, num_steps: int) -> int:
        """Steps of warm-up in a run of num_steps; a share of them is never all."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        assert self.warmup_share is not None  # exactly one of the two has a value
        return min(num_steps - 1, round(self.warmup_share * num_steps))

    @model_validator(mode="after")
    def _decay_needs_adamw(self) -> OptimizerConfig:
        if self.weight_decay and self.name != "adamw":
            raise ValueError(f'weight_decay {self.weight_decay} has no effect with "{self.name}"; set name to "adamw"')
        return self

    @model_validator(mode="after")
    def _adafactor_is_not_adam(self) -> OptimizerConfig:
        for name in ("beta1", "beta2", "epsilon"):
            value = getattr(self, name)
            if self.name == "adafactor" and value != OptimizerConfig.model_fields[name].default:
                raise ValueError(f'{name} {value} has no effect with "adafactor", only with "adam" and "adamw"')
        return self


class TrainingConfig(SectionWithAlternatives):
    """Length, batch, loss, validation, checkpoints."""

    alternatives = ("num_steps", "num_epochs")
    num_steps: PositiveInt | None = 10000
    """Optimizer steps of the whole run."""
    num_epochs: PositiveFloat | None = None
    """Length in passes over the training pairs instead of num_steps: exactly one of the two has a value, and one that
    is given on the command line takes the place of the config's other."""
    tokens_per_batch: PositiveInt = 4096
    """Target positions of one optimizer step: rows of data.row_length, filled to some 95%."""
    accumulation_steps: PositiveInt = 1
    """Parts in which a batch is computed, one after the other, to save memory; gradients are the whole batch's."""
    label_smoothing: Probability = 0.1
    """Probability mass spread evenly over the vocabulary (Szegedy et al. 2016)."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Seed of initialization, data order and dropout."""
    log_every: PositiveInt = 50
    """Steps between progress lines; metrics.jsonl has a line for every step, written at this interval."""
    eval_every: Count = 500
    """Steps between validations (loss, greedy BLEU, samples); one more at the end; 0 for none at all."""
    checkpoint_every: PositiveInt = 500
    """Steps between checkpoints; a validation that is the best so far saves one too."""
    tensorboard: bool = True
    """Write event files for TensorBoard into the workdir's folder tensorboard."""
    keep_checkpoints: PositiveInt = 3
    """Newest checkpoints kept, beside the best by validation BLEU."""
    ema_decay: Probability = 0.0
    """Above 0, such as 0.999: the moving average of the parameters is what is validated, scored and translated with; in
    the first steps it forgets faster, (1 + n) / (10 + n) after n of them."""
    init_from: Annotated[Path | None, tyro.conf.arg(aliases=("--init-from",))] = None
    """Workdir of another run with whose best parameters to begin: what fits is taken, and the log says what does not.
    Its tokenizer is taken too, unless tokenizer.model_file is given. Read only where the run has no checkpoint yet."""
    patience: Count = 0
    """Stop after so many validations in a row without a better BLEU; 0 never stops early. A run that has stopped goes
    on with more patience, or with more steps, where the count begins anew."""

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> TrainingConfig:
        if self.patience and not self.eval_every:
            raise ValueError(f"patience {self.patience} has no effect without validations; set eval_every above 0")
        return self


class MeshConfig(Section):
    """Devices along each axis of the mesh; at most one of them -1, which takes the rest of those there are."""

    data: MeshSize = REMAINING_DEVICES
    """Devices that share out the rows of a batch."""
    fsdp: MeshSize = 1
    """Devices that share out rows as well, and the parameters and what the optimizer keeps of them (Rajbhandari et al.
    2020): the less memory each needs."""
    tensor: MeshSize = 1
    """Devices that share out heads, feed-forward width and vocabulary, and work on each row together (Shoeybi et al.
    2019)."""

    @model_validator(mode="after")
    def _sizes_are_possible(self) -> MeshConfig:
        sizes = dict(self)
        for name, size in sizes.items():
            if size == 0:
                raise ValueError(f"{name} must be {REMAINING_DEVICES} or at least 1, got 0")
        if list(sizes.values()).count(REMAINING_DEVICES) > 1:
            raise ValueError(f"only one of {', '.join(sizes)} can be {REMAINING_DEVICES} and take the rest")
        return self


class ComputeConfig(Section):
    """What evaluation and translation compute on."""

    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Kind of device; auto takes the best there is."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of activations (parameters, softmax and loss are float32); auto: float32 on cpu and on GPUs
    without bfloat16 (before Ampere), bfloat16 on others and on tpu."""
    padding: Literal["auto", "lengths", "longest"] = "auto"
    """What validation, evaluation and translation pad sentences to: "lengths" to one of four lengths, which computes
    little in vain; "longest" all that are given together to the length of the longest, for which a single program is
    compiled; auto: lengths on cpu, where compiling takes seconds, longest on gpu and tpu, where it takes minutes."""


class DevicesConfig(ComputeConfig):
    """What the run computes on."""

    mesh: MeshConfig = MeshConfig()
    topology: str | None = None
    """With --dry-run: TPUs to compile the training step for, such as v5e:1x1, v5e:2x4 or v4:2x2x2; none need be here,
    but the extra tpu has to be installed."""

    @property
    def compute(self) -> ComputeConfig:
        """What evaluation and translation compute on unless they are told otherwise.

        A model trained on a gpu or tpu is used on the best device there is, which is such a one where there is one.
        """
        platform: Literal["cpu", "auto"] = "cpu" if self.platform == "cpu" else "auto"
        return ComputeConfig(platform=platform, precision=self.precision, padding=self.padding)


class Config(Section):
    """One training run."""

    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    devices: DevicesConfig = DevicesConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        if not self.rows_per_batch:
            raise ValueError(
                f"training.tokens_per_batch must be at least data.row_length times training.accumulation_steps, "
                f"got {self.training.tokens_per_batch} for {self.data.row_length} times "
                f"{self.training.accumulation_steps}"
            )
        if self.data.row_length > self.model.max_length:
            raise ValueError(f"data.row_length {self.data.row_length} exceeds model.max_length {self.model.max_length}")
        warmup, last = self.optimizer.warmup_steps, self.training.num_steps
        if self.optimizer.schedule == "cosine" and warmup is not None and last is not None and warmup >= last:
            raise ValueError(
                f"optimizer.warmup_steps must be below training.num_steps for the cosine schedule, "
                f"got {warmup} of {last}; lower it, or give optimizer.warmup_share instead"
            )
        if self.model.tied_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError('model.tied_embeddings "all" needs tokenizer.joint; use "decoder" or "none"')
        if self.tokenizer.model_file and not self.tokenizer.joint:
            raise ValueError("tokenizer.model_file is one model for both sides, so tokenizer.joint must stay true")
        return self

    @property
    def rows_per_batch(self) -> int:
        """Packed rows of one optimizer step: the most that fit into tokens_per_batch and divide into equal parts."""
        parts = self.training.accumulation_steps
        return self.training.tokens_per_batch // (self.data.row_length * parts) * parts


class ProcessOptions(Section):
    """Where several processes, started by hand, make one run; a TPU pod and SLURM need none of these."""

    coordinator: str | None = None
    """Address and port of process 0, such as 10.0.0.1:1234, the same for all: several processes make one run."""
    num_processes: PositiveInt | None = None
    """How many processes make the run."""
    process_id: Count | None = None
    """Number of this process, counted from 0."""

    @model_validator(mode="after")
    def _all_or_none(self) -> ProcessOptions:
        given = (self.coordinator, self.num_processes, self.process_id)
        if any(value is not None for value in given) and None in given:
            raise ValueError("coordinator, num_processes and process_id go together: all three, or none")
        if self.coordinator and not re.fullmatch(r".+:[1-9]\d*", self.coordinator):
            raise ValueError(
                f'coordinator must be an address and a port, such as 10.0.0.1:1234, got "{self.coordinator}"'
            )
        if self.num_processes and self.process_id is not None and self.process_id >= self.num_processes:
            raise ValueError(f"process_id must be below num_processes, got {self.process_id} of {self.num_processes}")
        return self


class DecodingOptions(Section):
    """How translations are searched for, or drawn."""

    beam_size: PositiveInt = 5
    """Hypotheses kept at each position; 1 is greedy search. Without effect where temperature is above 0."""
    length_penalty: NonNegativeFloat = 0.6
    """Alpha of the length penalty of Wu et al. (2016); 0 compares plain log-probabilities."""
    temperature: NonNegativeFloat = 0.0
    """Above 0, draw translations at random instead of searching: from the probabilities to the power of 1/temperature,
    so that 1 draws from the model's own and less prefers the likely."""
    top_k: PositiveInt | None = None
    """With a temperature: draw each token from so many of the likeliest only."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """With a temperature: draw each token from the likeliest that together reach this probability; after top_k."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """With a temperature: another seed draws other translations, the same one the same again."""
    min_decoding_length: PositiveInt = 1
    """Shortest translation in tokens, its end token included."""
    max_decoding_length: PositiveInt | None = None
    """Longest translation in tokens, its end token included; by default ten more than twice the tokens of the source,
    and a prefix comes on top."""
    batch_size: PositiveInt | None = None
    """Sentences decoded together; by default 64 on a cpu, up to 512 on a gpu or tpu as its memory suggests, and 64 to
    score given translations."""

    @model_validator(mode="after")
    def _goes_together(self) -> DecodingOptions:
        drawing = {"top_k": self.top_k, "top_p": self.top_p, "seed": self.seed or None}
        given = [f"{name} {value}" for name, value in drawing.items() if value is not None]
        if given and not self.temperature:
            raise ValueError(
                f"{given[0]} has no effect without a temperature above 0, which draws instead of searching"
            )
        if self.max_decoding_length and self.min_decoding_length > self.max_decoding_length:
            raise ValueError(
                f"min_decoding_length {self.min_decoding_length} exceeds max_decoding_length {self.max_decoding_length}"
            )
        return self

    def check_num_hypotheses(self, count: int) -> None:
        """Raises UserError unless a search, or sampling, can return that many hypotheses of a sentence."""
        if count < 1:
            raise UserError(f"num_hypotheses must be at least 1, got {count}")
        if count > self.beam_size and not self.temperature:
            raise UserError(f"num_hypotheses {count} exceeds beam_size {self.beam_size}")
