"""Config files and command lines: precedence, round trips, and one sentence for every mistake."""

from pathlib import Path
from typing import get_args

import pytest

from lingua_flax.commands.train import resolve_config
from lingua_flax.devices.mesh import MESH_AXES as MESH
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import as_json, packaged_configs, read_config, refused_changes, to_toml
from lingua_flax.options.messages import all_fields, section_of, validated
from lingua_flax.options.schema import Config, DecodingOptions


def write(tmp_path, text):
    """Writes a config file; returns its path."""
    path = tmp_path / "c.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def check_sentence(error, words):
    """Checks that a message is one line with all of these words."""
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_bad_config_file_is_reported_in_one_sentence(tmp_path):
    for text, *words in (
        ("[model]\nnum_heds = 4", "unknown option model.num_heds", "did you mean model.num_heads?"),
        ('[model]\nnum_heads = "4"', "model.num_heads", "valid integer", 'got "4"'),
        ("[optimizer]\npeak_lr = nan", "optimizer.peak_lr", "finite"),
        ("[optimizer]\nweight_decay = 0.1", "weight_decay 0.1 has no effect", "adamw"),
        ('[optimizer]\nschedule = "cosine"\nwarmup_steps = 20000', "got 20000 of 10000", "give optimizer.warmup_share"),
        ("[optimizer]\nwarmup_steps = 5\nwarmup_share = 0.2", "exactly one of warmup_steps and", "got 5 and 0.2"),
        ('[model]\npositions = "rotary"\nembed_dim = 12\nnum_heads = 4', "must be even", "got 12 and 4"),
        ("[data]\nrow_length = 512", "data.row_length 512 exceeds model.max_length 256"),
        ("[tokenizer]\njoint = false", "tied_embeddings", "tokenizer.joint"),
        ("[[data.mixture]]\n[[data.mixture]]\nwieght = 1", "data.mixture.1.wieght", "mean data.mixture.1.weight?"),
        ("[data.augment]\ntitle_case = 0.1\n[tokenizer]\nlowercase = true", "no effect with tokenizer.lowercase"),
        ("[tokenizer]\nkind = 'bpe'\nsampling_alpha = 1", "sampling_alpha must be below 1 for bpe", "got 1.0"),
        ("[training]\nseed = " + "9" * 5000, "not valid TOML"),
        ("a" + ".a" * 300 + " = 1", "nested too deeply"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ('[data]\ndirectory = "a\\u0000b"', "data.directory: a NUL character"),
        ("[data\nname = 3", "not valid TOML", "line 1"),
        (b"[data]\n# caf\xe9", "line 2", "not valid UTF-8"),
    ):
        path = write(tmp_path, text)
        with pytest.raises(UserError, match=f"^{path}") as error:
            read_config(path)
        check_sentence(error, words)


def test_a_bad_command_line_is_reported_in_one_sentence(tmp_path):
    (tmp_path / "m").mkdir()
    mixture = write(tmp_path / "m", "[[data.mixture]]\nname = 'phrasebook'")
    names = {"W": f"--workdir {tmp_path}/w", "C": f"--config {write(tmp_path, '')}", "M": f"--config {mixture}"}
    for arguments, *words in (
        ("", "--workdir is required"),
        ("W", "has no config.toml yet", "--config"),
        ("W C --model.num-layerz 2", "option --model.num-layerz", "did you mean --model."),
        ("W C --num-steps 2", "unknown option --num-steps", "did you mean --training.num-steps?"),
        ("W C --model.num-heads 2 --model.num_heads=2", "--model.num-heads is given twice"),
        ("W C --tokenizer.joint maybe", 'tokenizer.joint: must be True or False, got "maybe"'),
        ("W stray", 'unexpected argument "stray"'),
        ("W C --model.dropout-rate x", 'model.dropout_rate: must be a number, got "x"'),
        ("W C --training.num-steps 5 --training.num-epochs 2", "num_epochs must be given, got 5"),
        ("W M --data.mixture.2.weight 2", "--data.mixture.2", "can be added has the number 1"),
        ("W M --data.mixture.0.wait 2", "unknown option", "did you mean --data.mixture.0.weight?"),
    ):
        with pytest.raises(UserError) as error:
            resolve_config(" ".join(names.get(word, word) for word in arguments.split()).split())
        check_sentence(error, words)
        assert not (tmp_path / "w").exists()


def resolved(tmp_path, text, *options):
    """Returns the config of a command line with a file of this text, which reads back equal after it was written."""
    argv = ["--config", str(write(tmp_path, text)), "--workdir", str(tmp_path / "w"), *options]
    config, command = resolve_config(argv)
    assert command.workdir == tmp_path / "w"
    assert read_config(write(tmp_path, to_toml(config))) == config
    return config


def test_a_config_is_known_by_its_name_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in packaged_configs():
        Path(name).mkdir()
        assert read_config(Path(name)) == read_config(packaged_configs()[name])
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match=r"^mine: cannot read the config \(Is a directory\); the configs known by name"):
        read_config(Path("mine"))


def test_command_line_overrides_file_which_overrides_defaults(tmp_path):
    text = "[training]\nnum_steps = 7\nseed = 3\n[devices]\nmesh = {data = 1}"
    options = ("--training.num_steps", "9", "--tokenizer.joint", "False", "--model.tied-embeddings", "none")
    config = resolved(tmp_path, text, *options, "--data.directory", "somewhere")
    assert (config.training.num_steps, config.training.seed, config.training.log_every) == (9, 3, 50)
    assert config.devices.mesh.data == 1
    assert config.tokenizer.joint is False
    assert config.data.directory == Path.cwd() / "somewhere"


def test_length_and_warm_up_given_last_win_in_either_unit(tmp_path):
    for section, in_file, option, expected in (
        ("training", "", [], (10000, None)),
        ("training", "num_epochs = 0.1", ["--training.num-steps", "12"], (12, None)),
        ("training", "num_steps = 7", ["--training.num_epochs=0.5"], (None, 0.5)),
        ("training", "num_epochs = 0.1", ["--training.num-epochs", "2"], (None, 2.0)),
        ("optimizer", "warmup_share = 0.1", ["--optimizer.warmup-steps", "12"], (12, None)),
        ("optimizer", "warmup_steps = 7", ["--optimizer.warmup_share=0.5"], (None, 0.5)),
    ):
        own = getattr(resolved(tmp_path, f"[{section}]\n{in_file}", *option), section)
        assert tuple(getattr(own, name) for name in own.alternatives) == expected


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


def test_a_mixture_is_read_extended_made_absolute_and_written(tmp_path):
    options = ["--data.mixture.1.weight", "0.5", "--data.mixture.2.train-source", "c.jsonl"]
    options += ["--data.mixture.3.name", "phrasebook", "--data.mixture.2.tag-source", "True"]
    config = resolved(tmp_path, MIXED, *options)
    mixture = config.data.mixture
    assert [entry.name for entry in mixture] == ["text", "phrasebook", "text", "phrasebook"]
    assert [config.data.weight, *(entry.weight for entry in mixture)] == [2.5, 1.0, 0.5, 1.0, 1.0]
    assert config.data.target_languages == ["fr", "de"]
    assert (mixture[0].train_source, mixture[0].train_target) == (Path.cwd() / "a.en", Path.home() / "a.de")
    assert (mixture[2].train_source, mixture[2].tag_source) == (Path.cwd() / "c.jsonl", True)
    assert hash(config)


def changes(saved, new):
    return refused_changes(as_json(saved), new, "in the workdir")


def test_a_resumed_run_may_move_the_files_of_a_mixture_but_not_change_it(tmp_path):
    saved = read_config(write(tmp_path, MIXED))
    moved = MIXED.replace("a.en", "/b/c.en").replace("~/a", "/b/c")
    assert changes(saved, read_config(write(tmp_path, moved))) == []
    other = MIXED.replace("weight = 4", "weight = 3").replace('"de"', '"es"').replace("2.5", "2")
    assert changes(saved, read_config(write(tmp_path, other))) == [
        "data.weight: 2.5 in the workdir, now 2.0",
        "data.mixture.0.target_language: de in the workdir, now es",
        "data.mixture.1.weight: 4.0 in the workdir, now 3.0",
    ]
    fewer = read_config(write(tmp_path, MIXED.split("[[data.mixture]]\nname")[0]))
    assert changes(saved, fewer) == ["data.mixture: 2 entries in the workdir, now 1 entries"]


def test_a_resumed_run_may_change_length_logging_devices_and_paths_only():
    allowed = {
        "data": {"directory": "/elsewhere", "train_source": "/a", "cache_directory": "/b"},
        "tokenizer": {"model_file": "/c"},
        "model": {"attention": "plain"},
        "training": dict.fromkeys(
            ["num_steps", "patience", "log_every", "eval_every", "checkpoint_every", "keep_checkpoints"], 5
        ),
        "evaluation": {"tokenize": "char"},
        "devices": {"precision": "bfloat16", "mesh": {"data": 2}},
    }
    assert changes(Config(), Config.model_validate(allowed)) == []
    refused = {"data": {"name": "text"}, "model": {"num_heads": 8}, "training": {"seed": 2}}
    assert changes(Config(), Config.model_validate(refused)) == [
        "data.name: phrasebook in the workdir, now text",
        "model.num_heads: 4 in the workdir, now 8",
        "training.seed: 1 in the workdir, now 2",
    ]


OPTIONS = {name: field for name, field in all_fields(Config) if section_of(field) is None}


def test_every_option_is_documented_and_has_a_default():
    assert OPTIONS.keys() >= {"training.num_steps", "devices.mesh.data", "data.mixture.#.weight"}
    assert [name for name, field in OPTIONS.items() if not field.description or field.is_required()] == []


def bounds_of(field):
    """Returns pydantic's bounds, which may belong to a part of the type, as in Annotated[int, Field(ge=1)] | None."""
    parts = [extra for part in get_args(field.annotation) for extra in getattr(part, "__metadata__", ())]
    metadata = [*field.metadata, *(bound for extra in parts for bound in getattr(extra, "metadata", []))]
    return [each for each in metadata if any(hasattr(each, relation) for relation in ("ge", "gt", "le", "lt"))]


def test_numbers_out_of_range_are_refused_with_name_value_and_bound(tmp_path):
    """Every number has two bounds, except the axes of a mesh."""
    counts = {name: len(bounds_of(field)) for name, field in OPTIONS.items() if bounds_of(field)}
    assert counts.keys() >= {"training.num_steps", "optimizer.peak_lr", "model.num_heads"}
    assert {name for name, count in counts.items() if count < 2} == {f"devices.mesh.{axis}" for axis in MESH}
    for text, bound in (
        ("model.num_heads = 0", "greater than or equal to 1"),
        ("optimizer.peak_lr = 0.0", "greater than 0"),
        ("data.augment.upper_case = 1.1", "less than or equal to 1"),
        ("optimizer.beta1 = 1.0", "less than 1"),
    ):
        name, value = text.split(" = ")
        with pytest.raises(UserError, match=f"/c.toml: {name}: input should be {bound}, got {value}$"):
            read_config(write(tmp_path, text))
    with pytest.raises(UserError, match="length_penalty: input should be less than or equal to 4, got 100"):
        validated(DecodingOptions, {"length_penalty": 100.0})  # which would overflow float32
