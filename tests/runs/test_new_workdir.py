"""A workdir of a network that no run has trained."""

import dataclasses

import jax
import numpy as np
import pytest

from lingua_flax.options.schema import Config
from lingua_flax.runs.new_workdir import new_metadata, run_files, write_network
from lingua_flax.translation.translator import Translator
from tests.command_server import run_here
from tests.helpers.commands import succeed
from tests.helpers.networks import LINES, random_translator


@pytest.mark.slow
def test_network_from_elsewhere_is_translated_with_and_trained_further(tmp_path, toy):
    network = random_translator()
    model, tokenizer = {"model": network.config.model_dump()}, network.tokenizer
    data = {"name": "phrasebook", "source_language": "en", "target_language": "fr", "row_length": 64}
    config = Config.model_validate(model | {"data": data})
    models, params = [tokenizer.source.serialized_model_proto()], jax.tree.map(np.asarray, network.params)
    metadata = new_metadata(config, models, several_sentences=0.5)
    write_network(tmp_path / "w", run_files(config, models, tokenizer.words), params, metadata)
    loaded = Translator.load(tmp_path / "w")
    assert (loaded.step, loaded.one_sentence_per_line) == (0, True)
    as_loaded = dataclasses.replace(network, one_sentence_per_line=True)
    assert loaded.translate(LINES) == as_loaded.translate(LINES)
    said = succeed(run_here, "train", "--workdir", tmp_path / "w")
    assert "finished: it holds the network alone" in said.stdout
    options = ("--init-from", tmp_path / "w", "--training.num-steps", 1, "--training.eval-every", 0)
    said = succeed(run_here, "train", "--config", tmp_path / "w/config.toml", "--workdir", tmp_path / "v", *options)
    assert "arrays (" in said.stderr
