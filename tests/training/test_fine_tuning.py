"""Fine-tuning: lingua-flax train with the initial parameters of another run."""

import dataclasses
import re
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from lingua_flax.commands.train import resolve_config
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config, DataConfig, MeshConfig, ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.runs.new_workdir import new_metadata, run_files, write_network
from lingua_flax.training.fine_tuning import matching_params
from lingua_flax.training.learner import Learner
from lingua_flax.training.preparation import prepare
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed
from tests.helpers.networks import forward_pass, random_translator, small_tokenizer
from tests.helpers.pairs import PAIRS
from tests.helpers.translation import decisive_translator
from tests.processes import digests, metrics

OPTIONS = ["--optimizer.name", "adafactor", "--optimizer.peak-lr", 1e-3]
OPTIONS += ["--training.eval-every", 0, "--training.num-steps", 6]


def tune(run, toy, workdir) -> str:
    """Fine-tunes the run in the folder "origin" beside the workdir with another optimizer."""
    options = ["--init-from", workdir.with_name("origin"), *OPTIONS]
    return succeed(run, "train", "--config", toy, "--workdir", workdir, *options).stderr


def test_run_starts_from_another_one_and_then_does_not_need_it(trained, toy, run, tmp_path):
    """Its first loss is that of the original run; that of a new network is log(45) = 3.8. It is saved before its first
    step, from where it can be resumed."""
    workdir, origin = tmp_path / "w", tmp_path / "origin"
    shutil.copytree(trained[0], origin)
    said = tune(run, toy, workdir)
    tuned, saved = metrics(workdir), digests(workdir)
    last = np.mean([line["loss"] for line in metrics(trained[0]) if "loss" in line][-20:])
    assert tuned[0]["loss"] == pytest.approx(last, abs=0.25)
    assert metrics(trained[0])[0]["loss"] > last + 2
    counts = r"(\d+) of \1 arrays \(([\d,]+) of \2 parameters\)"
    assert re.search(rf"{counts} are taken from {origin}, step \d+; optimizer", said)
    assert (workdir / "tokenizer.model").read_bytes() == (trained[0] / "tokenizer.model").read_bytes()
    assert read_config(workdir / "config.toml").training.init_from == origin
    shutil.rmtree(origin)
    shutil.rmtree(workdir / "checkpoints" / "6")
    said = tune(run, toy, workdir)
    assert "resuming from step 0" in said
    assert "training.init_from is not read again" in said
    assert "are taken from" not in said
    assert (metrics(workdir), digests(workdir)) == (tuned, saved)


def prepared(toy, tmp_path, *options):
    """Returns the preparation of a run in tmp_path / "w"."""
    config, command = resolve_config(["--config", str(toy), "--workdir", str(tmp_path / "w"), *map(str, options)])
    return prepare(config, command.workdir)


def test_fitting_arrays_are_taken_and_all_others_are_reported(trained, toy, tmp_path, caplog):
    caplog.set_level("INFO")
    original = Translator.load(trained[0]).params
    wider = ["--model.mlp-dim", 96, "--model.num-encoder-layers", 2, "--model.positions", "learned"]
    taken = prepared(toy, tmp_path, "--init-from", trained[0], *wider).inherited
    np.testing.assert_array_equal(taken["target_embedding"], original["target_embedding"])
    assert not [name for name in taken if name.startswith(("encoder.1", "position_embedding"))]
    assert not [name for name in taken if "feed_forward" in name and name.endswith("kernel")]
    assert f"{len(taken)} of " in caplog.text
    assert re.search(r"newly initialized \(not in that run\): .*encoder\.1 \(\d+ arrays\)", caplog.text)
    assert re.search(r"newly initialized \(different shape\): .*decoder\.0 \(\d+ arrays\)", caplog.text)
    other_file = shutil.copy(trained[0] / "tokenizer.model", tmp_path / "other.model")
    same = prepared(toy, tmp_path, "--init-from", trained[0], "--tokenizer.model-file", other_file)
    assert len(same.inherited) == len(jax.tree.leaves(original))
    other = prepared(toy, tmp_path / "bpe", "--tokenizer.kind", "bpe")
    taken = matching_params(trained[0], other.config, other.tokenizer)
    assert set(same.inherited) - set(taken) == {"target_embedding"}
    assert "newly initialized (different vocabulary): target_embedding" in caplog.text


def test_no_embedding_of_another_vocabulary_is_taken_even_if_its_size_is_the_same(monkeypatch, tmp_path):
    original = decisive_translator(max_length=128, output_bias=True)
    monkeypatch.setattr(Translator, "load", lambda *_, **__: original)
    config = Config(model=original.config)
    same, other = (small_tokenizer(vocab_size=60, kind=kind) for kind in ("unigram", "bpe"))
    left_out = set(matching_params(tmp_path, config, same)) - set(matching_params(tmp_path, config, other))
    assert left_out == {"source_embedding", "target_embedding", "output_embedding", "output_bias"}


def test_options_of_a_tokenizer_that_is_not_trained_are_reported(trained, toy, tmp_path, caplog):
    """They are read from its model. One that the rest of the run depends on is refused."""
    model = trained[0] / "tokenizer.model"
    given = ["--tokenizer.model-file", model]
    prepared(toy, tmp_path / "same", *given, "--tokenizer.character-coverage", 1)
    special = ["--tokenizer.lowercase", "True", "--tokenizer.character-coverage", 0.9995, "--tokenizer.placeholders", 2]
    special += ["--tokenizer.normalization", "nfkc", "--tokenizer.kind", "bpe"]
    first = prepared(toy, tmp_path, *special)
    (tmp_path / "a.model").write_bytes(first.tokenizer_models[0])
    again = prepared(toy, tmp_path, *special, "--tokenizer.model-file", tmp_path / "a.model")
    assert again.tokenizer.digest == first.tokenizer.digest
    assert "has no effect" not in caplog.text
    others = ["--tokenizer.kind", "bpe", "--tokenizer.vocab-size", 99, "--tokenizer.normalization", "nfkc"]
    assert prepared(toy, tmp_path / "other", *given, *others).tokenizer.source_vocab_size == 45
    unused = "tokenizer.kind, vocab_size, normalization"
    assert f"the tokenizer is {model}, so this run's {unused} has no effect" in caplog.text
    with pytest.raises(UserError, match=r"tokenizer\.lowercase must be False with it, not True"):
        prepared(toy, tmp_path / "lower", *given, "--tokenizer.lowercase", "True")


OTHER: dict[str, Any] = {"num_encoder_layers": 2, "num_decoder_layers": 1}
OTHER |= {"embed_dim": 24, "num_heads": 3, "mlp_dim": 20}
OTHER |= {"activation": "silu", "attention_bias": True, "output_bias": True, "norm_epsilon": 0.1, "norm": "post"}
OTHER |= {"positions": "rotary", "rotary_cross_attention": False, "position_base": 50.0, "qk_norm": "self"}
OTHER |= {"max_length": 64, "tied_embeddings": "none", "dropout_rate": 0.0, "attention": "plain"}


def write_config(folder, more: str = ""):
    """Writes a config that names text files, and of the network no more than is given. Returns its path."""
    (folder / "p.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    config = f"[data]\nname = 'text'\ntrain_source = '{folder}/p.tsv'\n[training]\ntokens_per_batch = 128\n{more}"
    (folder / "c.toml").write_text(config, encoding="utf-8")
    return folder / "c.toml"


def write_network_of(workdir, model: ModelConfig) -> Translator:
    """Makes a workdir of a random network with a lower-case tokenizer, and returns it."""
    translator = random_translator(**dict(model))
    options: dict[str, Any] = {"vocab_size": 50, "lowercase": True}
    config = Config(data=DataConfig(row_length=32), model=model, tokenizer=TokenizerConfig(**options))
    tokenizer = small_tokenizer(**options)
    models = [tokenizer.source.serialized_model_proto()]
    assert tokenizer.source_vocab_size == translator.tokenizer.source_vocab_size
    params = jax.tree.map(np.asarray, translator.params)
    files = run_files(config, models, tokenizer.words, origin=b"{}")
    write_network(workdir, files, params, new_metadata(config, models))
    return Translator.load(workdir)


def test_a_network_that_differs_in_every_field_has_equal_logits_at_the_first_step(tmp_path):
    """Without a word of it in the config; even a tokenizer of lower case is inherited, and where it comes from."""
    assert [name for name, value in ModelConfig(**OTHER) if value == ModelConfig.model_fields[name].default] == []
    original = write_network_of(tmp_path / "origin", ModelConfig(**OTHER))
    run = prepared(write_config(tmp_path), tmp_path, "--init-from", tmp_path / "origin")
    learner = Learner(run, make_mesh(MeshConfig()))
    learner.initialize()
    assert run.config.model == original.config
    assert run.config.data.row_length == 32
    batch = [[5, 6, 7, 1]], [[BOS_ID, 8, 9, 10]]
    tuned = dataclasses.replace(learner.translator(), graphdef=original.graphdef)
    np.testing.assert_array_equal(forward_pass(tuned, *batch), forward_pass(original, *batch))
    assert run.tokenizer.lowercase
    assert run.origin == b"{}"


def test_a_config_that_says_something_else_of_the_network_is_refused(tmp_path):
    write_network_of(tmp_path / "origin", ModelConfig(**OTHER))
    config = write_config(tmp_path, "[model]\nnum_heads = 2\ndropout_rate = 0.3\n")
    given = ("--init-from", tmp_path / "origin")
    with pytest.raises(
        UserError, match=r"model.num_heads is 2 in the config, but 3 in .*origin.*give --model.num-heads 2"
    ):
        prepared(config, tmp_path, *given)
    model = prepared(config, tmp_path, *given, "--model.num-heads", 2).config.model
    assert (model.num_heads, model.dropout_rate, model.norm) == (2, 0.3, "post")


def test_unusable_original_runs_are_refused(trained, toy, tmp_path):
    for origin, options, words in (
        (tmp_path / "none", [], "none: not a workdir"),
        (trained[0], ["--tokenizer.joint", "False", "--model.tied-embeddings", "decoder"], "joint must be True with"),
        (trained[0], ["--model.embed-dim", 34], "none of its matrices fits into this network"),
    ):
        with pytest.raises(UserError, match=words):
            prepared(toy, tmp_path, "--init-from", origin, *options)
        assert not (tmp_path / "w").exists()
