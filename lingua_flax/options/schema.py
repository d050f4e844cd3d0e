"""All options of a training run, in one frozen, typed schema. The docstring below a field is also its --help text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from lingua_flax.host.errors import UserError

MAX_PLACEHOLDERS = 64
MAX_COUNT = 2**31 - 1  # counts are int32 on the devices
MAX_FLOAT = 1e38  # and other numbers float32
PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Length = Annotated[int, Field(ge=8, le=MAX_COUNT)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0, le=MAX_FLOAT, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, le=MAX_FLOAT, allow_inf_nan=False)]
CHANGEABLE = "may change when a run is resumed"  # a mark in the metadata of options, or of a whole section
REMAINING_DEVICES = -1  # size of the mesh axis that takes all remaining devices
MeshSize = Annotated[int, Field(ge=REMAINING_DEVICES)]
Weight = Annotated[float, Field(ge=0.001, le=1000.0)]
BUILD_MARK = "build"  # a file in the folder of a build


def run_folder(path: Path) -> Path:
    """Returns the folder of a run: for that of a build, the folder of its student."""
    return path / "student" if (path / BUILD_MARK).is_file() else path


Run = Annotated[Path, AfterValidator(run_folder)]


class Section(BaseModel):
    """A frozen table of options; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _text_has_no_nul(cls, value: Any) -> Any:
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("a NUL character is not allowed in names and paths")
        return value

    def _refuse_unused(self, names: str, reason: str) -> None:
        """Raises ValueError if one of the options, separated by spaces, has a value of its own but no effect."""
        for name in names.split():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name} {value} has no effect {reason}")


SectionType = TypeVar("SectionType", bound=Section)


def section_of(field: FieldInfo) -> type[Section] | None:
    """Returns the section that a field holds, or holds a list of, if any."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


class SectionWithAlternatives(Section):
    """A table with two options of which exactly one has a value; the first one's default is dropped for the second."""

    alternatives: ClassVar[tuple[str, str]]

    @model_validator(mode="before")
    @classmethod
    def _drop_the_default(cls, values: Any) -> Any:
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


TEXT_FILES = tuple(f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target"))


class MixtureConfig(Section):
    """An additional corpus, an entry [[data.mixture]]."""

    name: str = "text"
    """Name of the corpus, like data.name."""
    source_language: str | None = None
    """Language to translate from; by default data.source_language."""
    target_language: str | None = None
    """Language to translate into; by default data.target_language."""
    directory: Path | None = None
    """Like data.directory."""
    train_source: Path | None = None
    """Like data.train_source, except that no part of it is held out."""
    train_target: Path | None = None
    """Like data.train_target."""
    weight: Weight = 1.0
    """Sampling weight of this corpus: training pairs are drawn from all corpora in proportion to their weights."""
    tag_source: bool = False
    """Begin the sources of this corpus with a tag, <bt>, which is never added at translation time, so that the model
    learns from back-translations without treating their sources as natural text (Caswell et al. 2019)."""


class AugmentConfig(Section):
    """Changes of training pairs on both sides, drawn anew in every epoch; the tokenizer is trained on some, too."""

    upper_case: Fraction = 0.0
    """Fraction of the pairs in UPPER CASE."""
    title_case: Fraction = 0.0
    """Fraction of the pairs in Title Case: every word begins with a capital."""
    no_final_punctuation: Fraction = 0.0
    """Fraction of the pairs without the full stop, question mark or exclamation mark at their end."""


class DataConfig(Section):
    """The corpus and how it is packed into batches."""

    name: str = "phrasebook"
    """Name of the corpus: phrasebook (built in), multi30k, text (your own files), or a corpus of TensorFlow Datasets
    such as ted_hrlr_translate/pt_to_en (the part after the slash may be omitted if the languages determine it)."""
    source_language: str = "en"
    """Language to translate from."""
    target_language: str = "fr"
    """Language to translate into."""
    directory: Path | None = None
    """Folder with local files to use instead of a download: for multi30k the published .gz files of both languages, for
    a corpus of TensorFlow Datasets its archives under their published names."""
    cache_directory: Path | None = None
    """Folder of prepared corpora; by default lingua-flax in $XDG_CACHE_HOME or ~/.cache."""
    train_source: Path | None = None
    """text: file of source sentences, one per line, or of sentence pairs if its name ends in .tsv or .jsonl (then
    without train_target); each may be compressed (.gz). In the names of all files, {source} and {target} stand for the
    languages, and an entry of the mixture without files takes these: train.{source}-{target}.tsv."""
    train_target: Path | None = None
    """text: file of target sentences, aligned with train_source."""
    validation_source: Path | None = None
    """text: like train_source; if omitted, a part of the training pairs is held out for validation."""
    validation_target: Path | None = None
    """text: file of target sentences, aligned with validation_source."""
    test_source: Path | None = None
    """text: like train_source; if omitted, a part of the training pairs is held out for testing."""
    test_target: Path | None = None
    """text: file of target sentences, aligned with test_source."""
    held_out: Path | None = None
    """File held_out.json in the workdir of another run, by default of training.init_from: the pairs that it held out
    are held out again, and others of their sources left out, if at least half of these are here, as targets if that run
    translates in the other direction. The run keeps a copy."""
    row_length: Length = 128
    """Tokens per packed row on each side; training pairs with a longer side are left out, counted and reported."""
    tag_target: bool = False
    """Put a piece for the target language, such as <2fr>, before each source, so one model translates into several."""
    augment: AugmentConfig = AugmentConfig()
    weight: Weight = 1.0
    """Sampling weight of this corpus: training pairs are drawn from all corpora in proportion to their weights."""
    temperature: PositiveFloat | None = None
    """Multiply the weights by the sizes of the corpora to the power of 1/temperature (Arivazhagan et al. 2019): 1 draws
    in proportion to the sizes, a higher one more from the small corpora."""
    mixture: tuple[MixtureConfig, ...] = ()
    """Additional corpora to train on. Each corpus is shuffled and repeated independently, as often as the weights
    require; an epoch has as many pairs as all corpora together. The tokenizer is trained on all corpora. With
    tag_target, each direction whose corpus has a validation split is validated, and their mean counts; the test split
    is that of the corpus in [data]."""

    @model_validator(mode="after")
    def _weight_needs_a_mixture(self) -> DataConfig:
        if not self.mixture:
            self._refuse_unused("weight temperature", "without a [[data.mixture]] to weigh it against")
        return self

    @property
    def files(self) -> dict[str, Path]:
        """The files that are given, by the names of their options, with the languages in their names."""
        paths = ((name, getattr(self, name)) for name in TEXT_FILES)
        return {name: self._with_languages(path) for name, path in paths if path is not None}

    def _with_languages(self, path: Path) -> Path:
        return Path(str(path).replace("{source}", self.source_language).replace("{target}", self.target_language))

    @property
    def tagged_language(self) -> str | None:
        """The target language where a tag chooses it, None where a network has no choice."""
        return self.target_language if self.tag_target else None

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The (source, target) languages of all corpora, without duplicates; those of [data] come first."""
        corpora: list[DataConfig | MixtureConfig] = [self, *self.mixture]
        source, target = self.source_language, self.target_language
        pairs = ((each.source_language or source, each.target_language or target) for each in corpora)
        return list(dict.fromkeys(pairs))

    @property
    def target_languages(self) -> list[str]:
        """Languages that the model learns to translate into, without duplicates; that of [data] comes first."""
        return list(dict.fromkeys(target for _, target in self.directions))

    def direction_into(self, language: str) -> tuple[str, str]:
        """Returns the first of the directions into a language; if there is none, from the source language of [data]."""
        return next(own for own in [*self.directions, (self.source_language, language)] if own[1] == language)


class TokenizerConfig(Section):
    """The SentencePiece tokenizer, trained on the training split and saved in the workdir when a run starts."""

    model_file: Path | None = None
    """Existing SentencePiece model (pad 0, eos 1, bos 2, unk 3) to use instead of training one; it must be joint. The
    run keeps a copy in its workdir: the file may be moved, but not changed."""
    kind: Literal["unigram", "bpe"] = "unigram"
    """Subword algorithm."""
    joint: bool = True
    """Use one vocabulary for both languages instead of one for each side."""
    shared_ids: bool = False
    """Two models, one for each side, that number the same pieces alike: those of an imported network, and of runs that
    begin with it."""
    vocab_size: Annotated[int, Field(ge=8, le=MAX_COUNT)] = 8000
    """Number of pieces in each vocabulary."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the characters of the training text that have a piece; lower it for Chinese or Japanese (0.9995)."""
    byte_fallback: bool = False
    """Encode characters without a piece as bytes instead of <unk>; takes 256 pieces of the vocabulary."""
    normalization: Literal["nmt_nfkc", "nfkc", "identity"] = "nmt_nfkc"
    """How SentencePiece normalizes text, of translations too. nfkc: Unicode's compatibility composition, with which a
    full-width letter becomes a normal one; nmt_nfkc: the same, and characters without a width are dropped or become
    spaces; identity: not at all."""
    lowercase: bool = False
    """Convert text to lower case before tokenization: translations are in lower case, and BLEU ignores case."""
    placeholders: Annotated[int, Field(ge=0, le=MAX_PLACEHOLDERS)] = 0
    """Number of pieces that stand for what a translation must contain as it is (such as 8): URLs, mail addresses,
    @names, paths, code in backticks, tags and placeholders of software, numbers of four digits or more, and terms of a
    glossary. A sentence with more of them than pieces is translated around them."""
    sampling_alpha: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """Train on segmentations sampled anew in every epoch; 0: off. unigram: by their probability to the power of alpha,
    such as 0.2 (Kudo 2018); bpe: each merge is dropped with probability alpha, such as 0.1 (Provilkov et al. 2020)."""

    @model_validator(mode="after")
    def _options_agree(self) -> TokenizerConfig:
        if self.kind == "bpe" and self.sampling_alpha >= 1:
            meaning = "where it is the probability of dropping a merge"
            raise ValueError(f"sampling_alpha must be below 1 for bpe, {meaning}, got {self.sampling_alpha}")
        if self.lowercase and self.normalization == "identity":
            raise ValueError("lowercase is not possible with the normalization identity")
        return self


class ModelConfig(Section):
    """The encoder-decoder Transformer (Vaswani et al. 2017)."""

    num_encoder_layers: PositiveInt = 3
    """Number of encoder layers."""
    num_decoder_layers: PositiveInt = 3
    """Number of decoder layers."""
    embed_dim: PositiveInt = 256
    """Width D of the residual stream; must be divisible by num_heads."""
    num_heads: PositiveInt = 4
    """Number N of attention heads in every layer."""
    mlp_dim: PositiveInt = 1024
    """Width F of the feed-forward sublayers."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation function of the feed-forward sublayers."""
    attention_bias: bool = False
    """Add learned biases to the four projections of every attention."""
    output_bias: bool = False
    """Add a learned bias to the logit of every target piece."""
    norm_epsilon: PositiveFloat = 1e-6
    """Number added to variances, and with qk_norm to mean squares, before their roots divide."""
    norm: Literal["pre", "post"] = "pre"
    """pre: layer norm before each sublayer and after the last one; post: after each residual sum, as in the paper."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Position encodings: sinusoidal or learned ones are added to the embeddings; rotary ones rotate the queries and
    keys of every attention by angles proportional to their positions (Su et al. 2021)."""
    rotary_cross_attention: bool = True
    """Whether rotary positions also rotate the queries and keys of cross-attention."""
    position_base: Annotated[float, Field(gt=1.0, le=MAX_FLOAT, allow_inf_nan=False)] = 10000.0
    """Base of the wavelengths of sinusoidal and rotary positions."""
    qk_norm: bool | Literal["self"] = False
    """Normalize queries and keys of each head (Henry et al. 2020), by their root mean square, with a learned scale;
    self: only those of self-attention, as CTranslate2 can."""
    max_length: Length = 256
    """Maximum sentence length in tokens on either side; translation splits longer lines and logs a warning."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """Embeddings that share one matrix: all (source, target and output), decoder (target and output), or none."""
    dropout_rate: Probability = 0.1
    """Dropout rate of the embeddings, of the output of each sublayer, and inside the feed-forward sublayers."""
    attention: Annotated[Literal["auto", "plain", "fused"], CHANGEABLE] = "auto"
    """Implementation of attention in training: plain, equation 1 of the paper as written; fused, a kernel for TPUs and
    NVIDIA GPUs, with other last digits; auto, fused on GPUs if it supports this model and device, otherwise plain.
    Before the first step, fused is compared with plain, which replaces it, with a warning, if it fails."""

    @model_validator(mode="after")
    def _options_agree(self) -> ModelConfig:
        dim, heads = self.embed_dim, self.num_heads
        if dim % heads:
            raise ValueError(f"num_heads must divide embed_dim, got {heads} heads for a width of {dim}")
        if self.positions == "sinusoidal" and dim % 2:
            raise ValueError(f"embed_dim must be even for sinusoidal positions, got {dim}")
        if self.positions == "rotary" and dim // heads % 2:
            raise ValueError(f"embed_dim divided by num_heads must be even for rotary positions, got {dim} and {heads}")
        if self.positions != "rotary" and not self.rotary_cross_attention:
            raise ValueError(f"rotary_cross_attention has no effect with {self.positions} positions")
        if self.positions == "learned":
            self._refuse_unused("position_base", "with learned positions")
        return self


FALLING_SCHEDULES = ("cosine", "wsd")  # whose learning rate is 0 at the last step


class OptimizerConfig(SectionWithAlternatives):
    """Optimizer, learning-rate schedule and gradient clipping."""

    alternatives = ("warmup_steps", "warmup_share")
    name: Literal["adam", "adamw", "adafactor"] = "adam"
    """adam (Kingma and Ba 2015), adamw (decoupled weight decay, Loshchilov and Hutter 2019), or adafactor (Shazeer and
    Stern 2018: second moments as row and column means, no first moments, no scaling of the learning rate by the
    size of the parameters)."""
    peak_lr: PositiveFloat = 1e-3
    """Learning rate at the end of warm-up."""
    warmup_steps: Count | None = 1000
    """Number of steps in which the learning rate rises linearly from 0 to peak_lr."""
    warmup_share: Probability | None = None
    """Warm-up as a share of the run's steps, instead of warmup_steps: exactly one of the two has a value. It is
    converted into steps when the run is created, and a run that is extended later keeps these."""
    schedule: Literal["inverse_sqrt", "cosine", "constant", "wsd"] = "inverse_sqrt"
    """Learning-rate schedule after warm-up. cosine falls to 0 at the last step; wsd (warm-up, stable, decay) is
    constant at first and falls linearly to 0 in the last part of the run, which training.patience can bring forward."""
    decay_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """wsd: share of the run's steps during which the learning rate falls."""
    beta1: Probability = 0.9
    """Decay rate of Adam's first moment."""
    beta2: Probability = 0.98
    """Decay rate of Adam's second moment."""
    epsilon: Annotated[float, Field(ge=1e-30, le=MAX_FLOAT)] = 1e-9
    """Number added to Adam's denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay of the matrices (adamw only)."""
    clip_norm: NonNegativeFloat = 1.0
    """Maximum global norm of the gradients, to which larger ones are scaled down; 0 turns clipping off."""

    @model_validator(mode="after")
    def _options_agree(self) -> OptimizerConfig:
        if self.name != "adamw":
            self._refuse_unused("weight_decay", f'with "{self.name}"; set name to "adamw"')
        if self.schedule != "wsd":
            self._refuse_unused("decay_share", f'with "{self.schedule}", only with "wsd"')
        if self.name == "adafactor":
            self._refuse_unused("beta1 beta2 epsilon", 'with "adafactor", only with "adam" and "adamw"')
        return self


class TrainingConfig(SectionWithAlternatives):
    """Run length, batches, loss, validation and checkpoints."""

    alternatives = ("num_steps", "num_epochs")
    num_steps: Annotated[PositiveInt | None, CHANGEABLE] = 10000
    """Number of optimizer steps of the whole run."""
    num_epochs: Annotated[PositiveFloat | None, CHANGEABLE] = None
    """Length of the run in passes over the training pairs, instead of num_steps: exactly one of the two has a value,
    and one given on the command line replaces the other one in the config."""
    tokens_per_batch: PositiveInt = 4096
    """Target positions per optimizer step, padding included, in rows of data.row_length that are about 95% full."""
    accumulation_steps: PositiveInt = 1
    """Number of parts of a batch that are computed one after the other to save memory; gradients remain the same."""
    label_smoothing: Probability = 0.1
    """Probability mass spread evenly over the vocabulary (Szegedy et al. 2016)."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Random seed of initialization, data order, dropout and sampled segmentations (not of the tokenizer)."""
    log_every: Annotated[PositiveInt, CHANGEABLE] = 50
    """Steps between progress lines; metrics.jsonl has a line for every step, written at the same interval."""
    eval_every: Annotated[Count, CHANGEABLE] = 500
    """Steps between validations (loss, chrF and BLEU of greedy translations, samples), one more at the end; 0: none."""
    checkpoint_every: Annotated[PositiveInt, CHANGEABLE] = 500
    """Steps between checkpoints; one is also saved after the best validation so far, at the end, and after a signal."""
    tensorboard: Annotated[bool, CHANGEABLE] = True
    """Write event files for TensorBoard to the workdir, whose name TensorBoard gives the run."""
    keep_checkpoints: Annotated[PositiveInt, CHANGEABLE] = 3
    """Number of newest checkpoints to keep, in addition to the best one by validation."""
    ema_decay: Probability = 0.0
    """Decay of a moving average of the parameters, such as 0.999, for validation, evaluation and translation; 0: off.
    At first the decay is smaller: (1 + n) / (10 + n) after n updates."""
    init_from: Path | None = None
    """Workdir of another run whose best parameters initialize this one, where they fit; the log lists the others. Its
    tokenizer is used too, unless tokenizer.model_file is given. Ignored once the run has a checkpoint."""
    patience: Annotated[Count, CHANGEABLE] = 0
    """Stop after this number of consecutive validations without a better one, or with the wsd schedule begin the decay
    of the learning rate and stop after it; 0 never stops early. A run that has stopped continues if it is given more
    patience (except with wsd) or more steps; with more steps, the count starts again at 0."""

    @model_validator(mode="after")
    def _options_agree(self) -> TrainingConfig:
        if not self.eval_every:
            self._refuse_unused("patience", "without validations; set eval_every above 0")
        return self


class MeshConfig(Section):
    """Number of devices along each axis of the mesh; one of them may be -1, which takes all remaining devices."""

    data: MeshSize = REMAINING_DEVICES
    """Number of devices across which the rows of a batch are split."""
    fsdp: MeshSize = 1
    """Number of devices across which rows are split too, along with parameters and optimizer state, so that each device
    needs less memory (Rajbhandari et al. 2020)."""
    tensor: MeshSize = 1
    """Number of devices across which heads, feed-forward width and vocabulary are split; they process each row together
    (Shoeybi et al. 2019)."""

    @model_validator(mode="after")
    def _sizes_are_possible(self) -> MeshConfig:
        sizes = dict(self)
        for name, size in sizes.items():
            if size == 0:
                raise ValueError(f"{name} must be {REMAINING_DEVICES} or at least 1, got 0")
        if list(sizes.values()).count(REMAINING_DEVICES) > 1:
            raise ValueError(f"only one of {', '.join(sizes)} can be {REMAINING_DEVICES} and take what remains")
        return self


class ComputeConfig(Section):
    """Devices, precision and padding of evaluation and translation."""

    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Kind of device; auto takes the best one available."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of activations and matrix products (parameters, softmax and loss are float32). On cpu, bfloat16 applies
    only to the operands of matrix products with parameters. auto: float32 on cpu and on GPUs without bfloat16 (before
    Ampere), bfloat16 on other GPUs and on tpu."""
    deterministic: bool = True
    """On GPUs, compute the same bits every time, which a resumed run needs to be exact: no operation whose result
    depends on the order of its threads, and no choice between algorithms by timing them."""
    padding: Literal["auto", "lengths", "longest"] = "auto"
    """How validation, evaluation and translation pad sentences. lengths: to one of four lengths, which wastes little
    computation; longest: all sentences given together to the longest of them, which needs only one compiled program;
    auto: lengths on cpu, where compiling takes seconds, longest on gpu and tpu, where it takes minutes."""


class DevicesConfig(ComputeConfig):
    """Devices, precision and padding of the run."""

    mesh: MeshConfig = MeshConfig()
    topology: str | None = None
    """With --dry-run: TPUs or GPUs to compile the training step for, such as v5e:1x1, v5e:2x4, v4:2x2x2, h100:1, a100:8
    or t4:1; none is needed, but the extra tpu or cuda must be installed."""

    @property
    def compute(self) -> ComputeConfig:
        """Default settings of evaluation and translation: on CPUs if the run was, otherwise the best devices."""
        values = {name: getattr(self, name) for name in ComputeConfig.model_fields}
        return ComputeConfig(**values | {"platform": "cpu" if self.platform == "cpu" else "auto"})


class EvaluationConfig(Section):
    """How translations are scored, in validations and by evaluate."""

    tokenize: Annotated[Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] | None, CHANGEABLE] = None
    """sacreBLEU's tokenizer for BLEU; by default that of the target language: zh for Chinese, ja-mecab and ko-mecab
    where their packages are installed (lingua-flax[ja], [ko]), char for Thai, Khmer, Lao, Burmese, Tibetan and for
    references of which hardly any has a space, and otherwise 13a."""


class SearchOptions(Section):
    """How translations are searched for."""

    beam_size: PositiveInt = 5
    """Number of hypotheses kept at each decoding step; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0.0, le=4.0)] = 0.6
    """Exponent alpha of the length penalty; 0 compares plain log-probabilities."""
    length_penalty_form: Literal["wu", "length"] = "wu"
    """What log-probabilities are divided by: wu, ((5 + length) / 6)^alpha (Wu et al. 2016), or length, length^alpha, as
    transformers and CTranslate2 do."""


class DecodingOptions(SearchOptions):
    """How translations are searched for or sampled; in a config, what translation and evaluation do by default."""

    temperature: NonNegativeFloat = 0.0
    """Above 0, sample translations instead of searching, whatever beam_size is, from the probabilities to the power of
    1/temperature: 1 samples from the model's own probabilities, a lower value prefers likely tokens."""
    top_k: PositiveInt | None = None
    """With a temperature: sample each token only from the k likeliest."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """With a temperature: nucleus sampling, from the fewest tokens whose probabilities sum to this; after top_k."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """With a temperature: random seed; the same seed samples the same translations, another seed different ones."""
    mbr_samples: PositiveInt | None = None
    """With a temperature: sample this number of translations of each sentence, and prefer what is most like all of them
    by chrF (minimum Bayes risk, Eikema and Aziz 2020); such as 16, with a temperature of 0.6, where a
    network is unsure of most words."""
    min_decoding_length: PositiveInt = 1
    """Minimum length of a translation in tokens, including its end token."""
    max_decoding_length: PositiveInt | None = None
    """Maximum length of a translation in tokens, including its end token; by default twice the number of source tokens
    plus ten, plus the length of a prefix."""
    batch_size: PositiveInt | None = None
    """Number of sentences decoded together; by default 64 on a cpu, up to 512 on a gpu or tpu depending on the memory
    they need, and 64 for scoring given translations."""

    @model_validator(mode="after")
    def _options_agree(self) -> DecodingOptions:
        if not self.temperature:
            reason = "without a temperature above 0, which samples instead of searching"
            self._refuse_unused("top_k top_p seed mbr_samples", reason)
        shortest, longest = self.min_decoding_length, self.max_decoding_length
        if longest and shortest > longest:
            raise ValueError(f"min_decoding_length {shortest} exceeds max_decoding_length {longest}")
        return self

    @property
    def penalty_offset(self) -> float:
        """What the length penalty adds to lengths: it is ((offset + length) / (offset + 1))^alpha."""
        return 5.0 if self.length_penalty_form == "wu" else 0.0

    def check_num_hypotheses(self, count: int) -> None:
        """Raises UserError unless beam search or sampling can return this number of hypotheses per sentence."""
        if count < 1:
            raise UserError(f"num_hypotheses must be at least 1, got {count}")
        if count > self.beam_size and not self.temperature:
            raise UserError(f"num_hypotheses {count} exceeds beam_size {self.beam_size}")
        if self.mbr_samples and count > self.mbr_samples:
            raise UserError(f"num_hypotheses {count} exceeds mbr_samples {self.mbr_samples}")


class Config(Section):
    """All options of a training run."""

    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    decoding: Annotated[DecodingOptions, CHANGEABLE] = DecodingOptions()
    devices: Annotated[DevicesConfig, CHANGEABLE] = DevicesConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        data, model, training, schedule = self.data, self.model, self.training, self.optimizer.schedule
        if not self.rows_per_batch:
            raise ValueError(
                "training.tokens_per_batch must be at least data.row_length times training.accumulation_steps, "
                f"got {training.tokens_per_batch} for {data.row_length} times {training.accumulation_steps}"
            )
        if data.row_length > model.max_length:
            raise ValueError(f"data.row_length {data.row_length} exceeds model.max_length {model.max_length}")
        warmup, last = self.optimizer.warmup_steps, training.num_steps
        if schedule in FALLING_SCHEDULES and warmup and last and warmup >= last:
            raise ValueError(
                f"optimizer.warmup_steps must be below training.num_steps for the {schedule} schedule, "
                f"got {warmup} of {last}; lower it, or give optimizer.warmup_share instead"
            )
        if model.tied_embeddings == "all" and not (self.tokenizer.joint or self.tokenizer.shared_ids):
            raise ValueError('model.tied_embeddings "all" needs tokenizer.joint; use "decoder" or "none"')
        if self.tokenizer.model_file and not self.tokenizer.joint:
            raise ValueError("tokenizer.model_file is one model for both sides, so tokenizer.joint must stay true")
        if self.tokenizer.lowercase and (data.augment.upper_case or data.augment.title_case):
            raise ValueError("data.augment.upper_case and title_case have no effect with tokenizer.lowercase")
        return self

    @property
    def rows_per_batch(self) -> int:
        """Packed rows per step: the largest multiple of accumulation_steps that fits into tokens_per_batch."""
        parts = self.training.accumulation_steps
        return self.training.tokens_per_batch // (self.data.row_length * parts) * parts


class CleaningOptions(Section):
    """What clean mends in a parallel corpus, and which pairs it leaves out."""

    mojibake: bool = True
    """Mend text that was decoded with the wrong encoding, such as Ã¼ for ü (ftfy)."""
    entities: bool = True
    """Replace HTML entities by their characters."""
    tags: bool = True
    """Remove HTML tags, such as <b>, but not those of other kinds, such as <x id="1"/>, nor escaped ones: &lt;b&gt;."""
    control_characters: bool = True
    """Remove control characters, byte-order marks, soft hyphens and spaces without a width."""
    whitespace: bool = True
    """Replace white space of any kind and length by one space, and remove it from the ends."""
    normalize: bool = True
    """Compose letters and their accents (Unicode's normal form C)."""
    max_length: Count = 2000
    """Leave out pairs with more characters than this on a side; 0 turns the check off."""
    min_letters: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3
    """Leave out pairs with a side of which fewer characters than this share are letters."""
    identical: bool = True
    """Leave out pairs whose target is the source, unless it is a name: up to four words with capitals."""
    language: bool = True
    """Leave out pairs with a side in another language than its own (py3langid)."""
    script: bool = True
    """Leave out pairs with a side without a letter of a script that its corpus is written in."""
    numbers: bool = True
    """Leave out pairs with other digits on each side if their words, too, match less than usual; needs misaligned."""
    addresses: bool = True
    """Leave out pairs whose e-mail addresses, or the hosts of whose URLs, differ."""
    duplicates: bool = True
    """Leave out pairs that are the same as an earlier one."""
    max_targets: Count = 10
    """Keep this number of targets of a source, the first ones; 0 turns the check off."""
    shifts: bool = True
    """Leave out pairs in parts of the corpus in which one side is some lines ahead of the other."""
    max_deviation: NonNegativeFloat = 6.0
    """Leave out pairs whose length ratio is further from that of the corpus than this, in standard deviations of a pair
    of its length; 0 turns the check off."""
    misaligned: bool = True
    """Leave out pairs whose words do not match, according to word alignments of the corpus with itself."""


class ProcessOptions(Section):
    """Options of a run with several processes that are started by hand; TPU pods and SLURM need none of them."""

    coordinator: str | None = None
    """Address and port of process 0, such as 10.0.0.1:1234, the same for all processes of the run."""
    num_processes: PositiveInt | None = None
    """Number of processes of the run."""
    process_id: Count | None = None
    """Index of this process, counted from 0."""

    @model_validator(mode="after")
    def _all_or_none(self) -> ProcessOptions:
        given = address, count, index = self.coordinator, self.num_processes, self.process_id
        if None in given and given != (None, None, None):
            raise ValueError("coordinator, num_processes and process_id go together: all three, or none")
        if address and not re.fullmatch(r".+:[1-9]\d*", address):
            raise ValueError(f'coordinator must be an address and a port, such as 10.0.0.1:1234, got "{address}"')
        if count and index is not None and index >= count:
            raise ValueError(f"process_id must be below num_processes, got {index} of {count}")
        return self


# Types in which CTranslate2 stores matrices.
Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]


class CheckpointOptions(Section):
    """Which checkpoint of a run is used."""

    checkpoint: str = "best"
    """Checkpoint to use: best (by chrF plus BLEU of validations), last, the number of a step, or average:N for the mean
    of the last N checkpoints."""


class NetworkOptions(CheckpointOptions):
    """Which networks translate."""

    ensemble: tuple[Run, ...] = ()
    """Workdirs of more runs with the same tokenizer, for an ensemble: the probabilities of all are averaged."""


class AlignmentOptions(Section):
    """Which cross-attention aligns words."""

    alignment_step: Literal["predict", "read"] = "predict"
    """Step of the decoder that aligns a target token: the one that predicts it, or the one that reads it."""
    alignment_layer: PositiveInt | None = None
    """Decoder layer that aligns, counted from 1; by default the mean of all."""
    alignment_head: PositiveInt | None = None
    """Head that aligns, counted from 1; by default the mean of all."""
