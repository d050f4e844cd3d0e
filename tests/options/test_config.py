"""Config files and command lines: precedence, round trips, and one sentence for every mistake."""

from pathlib import Path
from typing import get_args

import pytest

from lingua_flax.commands.train import TrainCommand, resolve_config
from lingua_flax.devices.mesh import MESH_AXES as MESH
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import as_json, read_config, refused_changes, to_toml, with_absolute_paths
from lingua_flax.options.schema import Config, MixtureConfig, Section
from tests.conftest import ROOT


def write(tmp_path, text):
    """Writes a config file; returns its path."""
    path = tmp_path / "c.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[model]\nnum_heds = 4", ["unknown option model.num_heds", "did you mean model.num_heads?"]),
        ("[modle]\nnum_heads = 4", ["unknown option modle", "did you mean model?"]),
        ("[model]\nnum_heads = 0", ["model.num_heads", "greater than or equal to 1", "got 0"]),
        ('[model]\nnum_heads = "4"', ["model.num_heads", "valid integer", 'got "4"']),
        ("[model]\nnum_heads = true", ["model.num_heads", "valid integer"]),
        ("[model]\nnum_heads = 3", ["num_heads must divide embed_dim", "3 heads for a width of 256"]),
        ('[model]\nnorm = "mid"', ["model.norm", "'pre' or 'post'", 'got "mid"']),
        ("[optimizer]\npeak_lr = nan", ["optimizer.peak_lr", "finite"]),
        ("[optimizer]\npeak_lr = -1", ["optimizer.peak_lr", "greater than 0", "got -1"]),
        ("[optimizer]\nweight_decay = 0.1", ["weight_decay 0.1 has no effect", "adamw"]),
        (
            '[optimizer]\nschedule = "cosine"\nwarmup_steps = 20000',
            [
                "warmup_steps must be below training.num_steps",
                "got 20000 of 10000",
                "give optimizer.warmup_share instead",
            ],
        ),
        (
            "[optimizer]\nwarmup_steps = 5\nwarmup_share = 0.2",
            ["optimizer: exactly one of warmup_steps and warmup_share must be given, got 5 and 0.2"],
        ),
        (
            "[training]\nnum_steps = 5\nnum_epochs = 2",
            ["training: exactly one of num_steps and num_epochs must be given, got 5 and 2.0"],
        ),
        ("[training]\ntokens_per_batch = 64", ["tokens_per_batch must be at least data.row_length", "got 64 for 128"]),
        (
            '[model]\npositions = "rotary"\nembed_dim = 12\nnum_heads = 4',
            ["embed_dim divided by num_heads must be even", "got 12 and 4"],
        ),
        (
            '[model]\npositions = "learned"\nposition_base = 100.0',
            ["position_base 100.0 has no effect with learned positions"],
        ),
        ("[data]\nrow_length = 512", ["data.row_length 512 exceeds model.max_length 256"]),
        ("[tokenizer]\njoint = false", ["tied_embeddings", "tokenizer.joint"]),
        ("[devices.mesh]\ndata = 0", ["devices.mesh", "got 0"]),
        ("[data]\nweight = 2", ["data: weight 2.0 has no effect without a [[data.mixture]]"]),
        ("[[data.mixture]]\nweight = 0", ["data.mixture.0.weight", "greater than or equal to 0.001", "got 0"]),
        (
            "[[data.mixture]]\n[[data.mixture]]\nwieght = 1",
            ["unknown option data.mixture.1.wieght", "did you mean data.mixture.1.weight?"],
        ),
        ("[[data.mixture]]\ntest_source = 'x'", ["unknown option data.mixture.0.test_source"]),
        ("[data]\nmixture = 3", ["data.mixture", "valid array"]),
        ("[tokenizer]\nsampling_alpha = -0.1", ["tokenizer.sampling_alpha", "greater than or equal to 0", "got -0.1"]),
        ("[data.augment]\nupper_case = 1.1", ["data.augment.upper_case", "less than or equal to 1", "got 1.1"]),
        ("[data.augment]\ntitle_case = 0.1\n[tokenizer]\nlowercase = true", ["no effect with tokenizer.lowercase"]),
        ("[tokenizer]\nkind = 'bpe'\nsampling_alpha = 1", ["sampling_alpha must be below 1 for bpe", "got 1.0"]),
        ("[training]\nseed = " + "9" * 5000, ["not valid TOML"]),
        ("a" + ".a" * 300 + " = 1", ["nested too deeply"]),
        ("a" + ".a" * 5000 + " = 1", ["nested"]),
        ('[data]\ndirectory = "a\\u0000b"', ["data.directory: a NUL character"]),
        ("[data\nname = 3", ["not valid TOML", "line 1"]),
        (b"[data]\n# caf\xe9", ["line 2", "not valid UTF-8"]),
        ("a = " + "[" * 5000, ["not valid TOML", "nested"]),
    ],
)
def test_a_bad_config_file_is_reported_in_one_sentence(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_config(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    if "nested" in words:
        assert any(word in message for word in words)
    else:
        assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["--workdir is required"]),
        ("--workdir", ["--workdir", "expected one argument"]),
        ("--workdir W", ["has no config.toml yet", "--config"]),
        ("--workdir W --config missing.toml", ["missing.toml", "No such file"]),
        (
            "--workdir W --config C --model.num-layerz 2",
            ["unknown option --model.num-layerz", "did you mean --model."],
        ),
        ("--workdir W --config C --num-steps 2", ["unknown option --num-steps", "did you mean --training.num-steps?"]),
        ("--workdir W --config C --training.seed 1 --training.seed 2", ["--training.seed is given twice"]),
        ("--workdir W --config C --model.num-heads 2 --model.num_heads=2", ["--model.num-heads is given twice"]),
        ("--workdir W --workdir V --config C", ["--workdir is given twice"]),
        ("--workdir W --config C --tokenizer.joint maybe", ['tokenizer.joint: must be True or False, got "maybe"']),
        ("--workdir W --config C stray", ['unexpected argument "stray"']),
        ("--workdir W stray", ['unexpected argument "stray"']),
        (
            "--workdir W --config C --training.num-steps x",
            ['training.num_steps: must be a whole number, got "x"'],
        ),
        ("--workdir W --config C --model.dropout-rate x", ['model.dropout_rate: must be a number, got "x"']),
        ("--workdir W --config C --training.seed", ["--training.seed: expected one argument"]),
        (
            "--workdir W --config C --training.num-steps 5 --training.num-epochs 2",
            ["training: exactly one of num_steps and num_epochs must be given, got 5 and 2.0"],
        ),
        (
            "--workdir W --config C --optimizer.warmup-steps 5 --optimizer.warmup-share 0.2",
            ["optimizer: exactly one of warmup_steps and warmup_share must be given, got 5 and 0.2"],
        ),
        ("--workdir W --config C --training.num-steps None", ["num_steps and num_epochs", "got None and None"]),
        ("--workdir W --config C --model.num-heads 3", ["num_heads must divide embed_dim"]),
        (
            "--workdir W --config C --tokenizer.kind word",
            ["tokenizer.kind: input should be 'unigram' or 'bpe', got \"word\""],
        ),
        ("--workdir W --config C --devices.mesh.data 0", ["devices.mesh", "got 0"]),
        ("--workdir W --config C --data.mixture.1.weight 2", ["--data.mixture.1", "can be added has the number 0"]),
        ("--workdir W --config M --data.mixture.2.weight 2", ["--data.mixture.2", "can be added has the number 1"]),
        ("--workdir W --config M --data.mixture.0.weight -2", ["data.mixture.0.weight", "got -2"]),
        ("--workdir W --config M --data.mixture.0.wait 2", ["unknown option", "did you mean --data.mixture.0.weight?"]),
    ],
)
def test_a_bad_command_line_is_reported_in_one_sentence(tmp_path, arguments, words):
    (tmp_path / "m").mkdir()
    names = {
        "W": str(tmp_path / "w"),
        "C": str(write(tmp_path, "")),
        "M": str(write(tmp_path / "m", "[[data.mixture]]\nname = 'phrasebook'")),
    }
    argv = [names.get(word, word) for word in arguments.split()]
    with pytest.raises(UserError) as caught:
        resolve_config(argv)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not (tmp_path / "w").exists()


def test_command_line_overrides_file_which_overrides_defaults(tmp_path):
    path = write(tmp_path, "[training]\nnum_steps = 7\nseed = 3\n[devices]\nmesh = {data = 1}")
    argv = ["--config", str(path), "--workdir", str(tmp_path / "w"), "--training.num_steps", "9"]
    argv += ["--tokenizer.joint", "False", "--model.tied-embeddings", "none", "--data.directory", "somewhere"]
    config, command = resolve_config(argv)
    assert command.workdir == tmp_path / "w"
    assert (config.training.num_steps, config.training.seed, config.training.log_every) == (9, 3, 50)
    assert config.devices.mesh.data == 1
    assert config.tokenizer.joint is False
    assert config.data.directory is not None
    assert config.data.directory.is_absolute()


def test_the_length_given_last_wins_in_steps_or_in_epochs(tmp_path):
    for in_file, option, expected in (
        ("", [], (10000, None)),
        ("num_epochs = 0.1", ["--training.num-steps", "12"], (12, None)),
        ("num_steps = 7", ["--training.num_epochs=0.5"], (None, 0.5)),
        ("num_epochs = 0.1", ["--training.num-epochs", "2"], (None, 2.0)),
    ):
        path = write(tmp_path, f"[training]\n{in_file}")
        config, _ = resolve_config(["--config", str(path), "--workdir", str(tmp_path / "w"), *option])
        assert (config.training.num_steps, config.training.num_epochs) == expected
        assert read_config(write(tmp_path, to_toml(config))) == config


def test_the_warm_up_given_last_wins_in_steps_or_as_a_share(tmp_path):
    for in_file, option, expected in (
        ("warmup_share = 0.1", [], (None, 0.1)),
        ("warmup_share = 0.1", ["--optimizer.warmup-steps", "12"], (12, None)),
        ("warmup_steps = 7", ["--optimizer.warmup_share=0.5"], (None, 0.5)),
        ("warmup_share = 0.1", ["--optimizer.warmup-share", "0"], (None, 0.0)),
    ):
        path = write(tmp_path, f"[optimizer]\n{in_file}")
        config, _ = resolve_config(["--config", str(path), "--workdir", str(tmp_path / "w"), *option])
        assert (config.optimizer.warmup_steps, config.optimizer.warmup_share) == expected
        assert read_config(write(tmp_path, to_toml(config))) == config


WARM_UPS = {
    300: "tiny",
    357: "multi30k_en_de_monolingual",
    571: "multi30k_en_de_diversified",
    714: "multi30k_en_fr_diversified",
    785: "multi30k_en_de_student",
    1000: "multi30k_en_de multi30k_en_fr multi30k_en_de_fr",
    2000: "ted_pt_en",
    4000: "wmt14_en_de_base wmt14_en_de_deep_encoder wmt14_en_de_big wmt14_en_fr_big",
}


@pytest.mark.parametrize(("name", "steps"), [(name, steps) for steps in WARM_UPS for name in WARM_UPS[steps].split()])
def test_shipped_configs_warm_up_for_a_share_of_any_length(name, steps):
    """With their own lengths, for the number of steps with which their scores were measured."""
    config = read_config(ROOT / "configs" / f"{name}.toml")
    assert config.optimizer.warmup_steps is None
    assert config.optimizer.num_warmup_steps(config.training.num_steps) == steps
    assert 0 < config.optimizer.num_warmup_steps(300) <= 60


def test_a_written_config_reads_back_equal(tmp_path):
    config = with_absolute_paths(Config.model_validate({"data": {"directory": "x"}, "training": {"num_epochs": 2.5}}))
    assert read_config(write(tmp_path, to_toml(config))) == config


MIXED = """
[data]
weight = 2.5
[[data.mixture]]
train_source = "a.en"
train_target = "~/a.de"
target_language = "de"
[[data.mixture]]
name = "phrasebook"
weight = 4
"""


def test_a_mixture_is_read_made_absolute_and_written(tmp_path):
    argv = ["--config", str(write(tmp_path, MIXED)), "--workdir", str(tmp_path / "w"), "--data.mixture.1.weight", "0.5"]
    config, _ = resolve_config(argv)
    assert (config.data.weight, [entry.weight for entry in config.data.mixture]) == (2.5, [1.0, 0.5])
    assert [entry.name for entry in config.data.mixture] == ["text", "phrasebook"]
    assert config.data.target_languages == ["fr", "de"]
    assert config.data.mixture[0].train_source == Path.cwd() / "a.en"
    assert config.data.mixture[0].train_target == Path.home() / "a.de"
    assert read_config(write(tmp_path, to_toml(config))) == config
    assert hash(config)


def test_entries_are_added_to_a_mixture(tmp_path):
    argv = ["--config", str(write(tmp_path, MIXED)), "--workdir", str(tmp_path / "w")]
    argv += ["--data.mixture.2.train-source", "c.jsonl", "--data.mixture.3.name", "phrasebook"]
    config, _ = resolve_config([*argv, "--data.mixture.2.tag-source", "True"])
    assert [entry.name for entry in config.data.mixture] == ["text", "phrasebook", "text", "phrasebook"]
    added = config.data.mixture[2]
    assert (added.train_source, added.tag_source, added.weight) == (Path.cwd() / "c.jsonl", True, 1.0)


def test_a_resumed_run_may_move_the_files_of_a_mixture_but_not_change_it(tmp_path):
    saved = read_config(write(tmp_path, MIXED))
    moved = MIXED.replace("a.en", "/b/c.en").replace("~/a", "/b/c")
    assert refused_changes(as_json(saved), read_config(write(tmp_path, moved)), "in the workdir") == []
    other = MIXED.replace("weight = 4", "weight = 3").replace('"de"', '"es"').replace("2.5", "2")
    assert refused_changes(as_json(saved), read_config(write(tmp_path, other)), "in the workdir") == [
        "data.weight: 2.5 in the workdir, now 2.0",
        "data.mixture.0.target_language: de in the workdir, now es",
        "data.mixture.1.weight: 4.0 in the workdir, now 3.0",
    ]
    fewer = read_config(write(tmp_path, MIXED.split("[[data.mixture]]\nname")[0]))
    assert refused_changes(as_json(saved), fewer, "in the workdir") == [
        "data.mixture: 2 entries in the workdir, now 1 entries"
    ]
    sampled = Config.model_validate({"tokenizer": {"sampling_alpha": 0.1}})
    assert refused_changes(as_json(Config()), sampled, "in the workdir") == [
        "tokenizer.sampling_alpha: 0.0 in the workdir, now 0.1"
    ]


def test_a_resumed_run_may_change_length_logging_devices_and_paths_only():
    saved = Config()
    allowed = {
        "data": {"directory": "/elsewhere", "train_source": "/a", "cache_directory": "/b"},
        "tokenizer": {"model_file": "/c"},
        "training": {
            "num_steps": 5,
            "log_every": 1,
            "eval_every": 2,
            "checkpoint_every": 3,
            "patience": 4,
            "keep_checkpoints": 5,
        },
        "devices": {"precision": "bfloat16", "mesh": {"data": 2}},
    }
    assert refused_changes(as_json(saved), Config.model_validate(allowed), "in the workdir") == []
    changed = Config.model_validate({"model": {"num_heads": 8}, "training": {"seed": 2}, "data": {"name": "text"}})
    assert refused_changes(as_json(saved), changed, "in the workdir") == [
        "data.name: phrasebook in the workdir, now text",
        "model.num_heads: 4 in the workdir, now 8",
        "training.seed: 1 in the workdir, now 2",
    ]


def test_every_option_is_documented_and_has_a_default():
    def check(section: type[Section]):
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                check(field.annotation)
            elif name == "mixture":
                assert field.description
                check(MixtureConfig)
            else:
                assert field.description, f"{section.__name__}.{name} has no docstring"
                assert not field.is_required()

    check(Config)


def bounded_fields(section=TrainCommand, prefix=""):
    """Yields (name, whether it is a float, pydantic's bounds) of every number in the schema of the command."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from bounded_fields(kind, f"{prefix}{name}.")
        elif bounds := {
            relation: getattr(bound, relation)
            for bound in [*field.metadata, *(extra for part in get_args(kind) for extra in field_info(part))]
            for relation in ("ge", "gt", "le", "lt")
            if getattr(bound, relation, None) is not None
        }:
            yield prefix + name, float in (kind, *get_args(kind)) or "float" in str(kind), bounds


def field_info(part):
    """Returns the bounds in a part of a type such as Annotated[int, Field(ge=1)] | None."""
    return [bound for extra in getattr(part, "__metadata__", ()) for bound in getattr(extra, "metadata", [])]


FIELDS = list(bounded_fields())
# Parsing a command line is slow, and its values are checked like those of a file: one number for each kind of bound in
# each section.
ON_COMMAND_LINE = {(name.rpartition(".")[0], kind): name for name, _, bounds in FIELDS for kind in bounds}
WORDS = {"ge": "greater than or equal to", "gt": "greater than", "le": "less than or equal to", "lt": "less than"}


def beyond(relation, bound, is_float):
    """Returns a value just beyond a bound, or the bound itself if it is not in the range."""
    if relation in ("gt", "lt"):
        return bound
    if relation == "ge":
        return bound - 1
    return bound * 1.01 if is_float else bound + 1


def assert_refused(read, source, name, relation, value):
    with pytest.raises(UserError) as caught:
        read()
    message = str(caught.value)
    assert message.startswith(f"{source}{name}: input should be {WORDS[relation]} "), message
    assert message.endswith(f", got {value!r}")
    assert "\n" not in message


def test_every_number_of_the_schema_has_two_bounds():
    assert {name for name, _, _ in FIELDS} >= {"training.num_steps", "optimizer.peak_lr", "model.num_heads"}
    assert {name for name, _, bounds in FIELDS if len(bounds) < 2} == {f"devices.mesh.{axis}" for axis in MESH}


@pytest.mark.parametrize(("name", "is_float", "bounds"), FIELDS, ids=[name for name, _, _ in FIELDS])
def test_numbers_out_of_range_are_refused_with_name_value_and_bound(tmp_path, name, is_float, bounds):
    """In a file and on the command line; a bound that belongs to the range is a valid value."""
    section, _, field = name.rpartition(".")
    for relation, bound in bounds.items():
        value = beyond(relation, bound, is_float)
        if section:
            path = write(tmp_path, f"[{section}]\n{field} = {value!r}")
            assert_refused(lambda path=path: read_config(path), f"{path}: ", name, relation, value)
        if not section or ON_COMMAND_LINE[section, relation] == name:
            argv = ["--config", str(write(tmp_path, "")), "--workdir", str(tmp_path / "w")]
            argv.append(f"--{name.replace('_', '-')}={value!r}")
            assert_refused(lambda argv=argv: resolve_config(argv), "", name, relation, value)
