"""Exports of networks: CTranslate2, the network in NumPy, and transformers compute what the network here does.

That library computes in an environment that holds nothing else.
"""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import ctranslate2
import numpy as np
import pydantic
import pytest

from lingua_flax.data import tokenizer as data_tokenizer
from lingua_flax.data.corpora import open_corpus
from lingua_flax.export import ctranslate2_model, numpy_translator, safetensors_model, transformers_model
from lingua_flax.export.description import Export, model_card
from lingua_flax.export.numpy_translator import Network, beam_search
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.export_formats import obstacles, summary
from lingua_flax.options.schema import ModelConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed
from tests.helpers.networks import (
    LINES,
    encoded,
    forward_pass,
    log_probabilities,
    log_probability_of,
    random_translator,
    small_tokenizer,
)

ROTARY = {"positions": "rotary", "rotary_cross_attention": False}
BIASED = {"activation": "silu", "attention_bias": True, "output_bias": True, "norm_epsilon": 0.01}
MARIAN = BIASED | {"norm": "post", "norm_epsilon": 1e-5}
SCRIPT = Path(__file__).parent / "scripts" / "translate_with_transformers.py"
ODD_LINES = ["one two three.", "</s> two <s> three.", "Zoé  naïve 𝄞", "2 >> 1 <<", "<unk> <pad>"]


def test_the_exported_program_replaces_the_line_breaks_that_this_repository_replaces():
    """It imports nothing from it. U+2028 is a line break for str.splitlines, but not for readers of lines."""
    text = "a\nb\r\nc\u2028d"
    assert text.translate(numpy_translator.LINE_BREAKS) == text.translate(data_tokenizer.LINE_BREAKS) == "a b  c\u2028d"


def numpy_scores(translator, folder):
    safetensors_model.write(Export(translator, "safetensors"), folder)
    network = Network(folder)
    scores = []
    for source, target in zip(*encoded(translator), strict=True):
        memory = network.encode(source)
        logits = [network.logits(memory, [BOS_ID, *target[:length]]) for length in range(len(target))]
        scores.append(log_probability_of(logits, target))
    return scores


def ctranslate2_scores(translator, folder):
    ctranslate2_model.write(Export(translator, "ctranslate2"), folder)
    sources, targets = encoded(translator)
    results = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(
        [translator.tokenizer.source_pieces(ids) for ids in sources],
        [translator.tokenizer.target_pieces(ids[:-1]) for ids in targets],
    )
    return [sum(result.log_probs) for result in results]


@pytest.mark.parametrize(
    ("joint", "options"),
    [
        (True, {}),
        (True, {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "decoder"}),
        (False, {"tied_embeddings": "none", "qk_norm": True, "num_heads": 1, "position_base": 100.0}),
        (True, ROTARY | BIASED | {"qk_norm": "self", "norm": "post", "position_base": 50.0}),
        (True, {"positions": "rotary", "qk_norm": True, "norm": "post"}),  # only in NumPy
    ],
)
def test_exports_compute_the_same_probabilities(tmp_path, joint, options):
    translator = random_translator(joint, **options)
    expected = pytest.approx(log_probabilities(translator), abs=1e-3)
    assert numpy_scores(translator, tmp_path) == expected
    if not obstacles("ctranslate2", translator.config):
        assert ctranslate2_scores(translator, tmp_path) == expected


def test_numpy_search_finds_what_the_compiled_one_finds(tmp_path):
    translator = random_translator()
    safetensors_model.write(Export(translator, "safetensors"), tmp_path)
    network, sources = Network(tmp_path), encoded(translator)[0]
    found = translator.translate_sentences(LINES, beam_size=3, length_penalty=0.6, warn=False)
    for source, (best, *_) in zip(sources, (own.hypotheses for own in found), strict=True):
        tokens, score = beam_search(network, source, beams=3, alpha=0.6)
        assert tokens == list(best.tokens[: len(tokens)])
        assert score == pytest.approx(best.score, abs=1e-3)


def test_what_a_format_cannot_represent_is_logged_and_refused():
    translator = random_translator(positions="rotary", position_base=50.0, qk_norm=True, tied_embeddings="decoder")
    rotation, norm = "rotary_cross_attention = True (known: False)", "qk_norm = True (known: self, False)"
    sinusoids = "positions = rotary (known: sinusoidal), model.position_base = 50.0 (known: 10000.0)"
    others = "qk_norm = True (known: False), model.tied_embeddings = decoder (known: all)"
    assert summary(translator.config) == [
        "can be exported to safetensors, html, workdir",
        f"not to ctranslate2: model.{rotation}, model.{norm}",
        f"not to transformers: model.{sinusoids}, model.{others}",
    ]
    with pytest.raises(UserError) as error:
        Export(translator, "ctranslate2")
    sentence = f"ctranslate2 cannot represent a network with model.{rotation} and model.{norm}: "
    sentence += (
        "train with the values in parentheses; safetensors, html, workdir and --engine jax can represent this one"
    )
    assert str(error.value) == sentence


def test_fields_and_values_that_an_implementation_does_not_know_are_refused(tmp_path):
    """So whoever adds one to ModelConfig, and forgets an implementation, gets an error rather than wrong numbers."""
    listed = {name for name, own in ModelConfig.model_fields.items() if own.annotation not in (int, float)}
    configs = {name: ModelConfig().model_copy(update={name: "other"}) for name in listed - {"attention"}}
    extended = pydantic.create_model("Extended", __base__=ModelConfig, invented=(int, 0))
    for field, config in {"invented": extended(), **configs}.items():
        refusal = f"{field} = {getattr(config, field)}"
        translator = dataclasses.replace(random_translator(), config=config)
        for name in ("ctranslate2", "safetensors", "transformers", "html"):  # before they write
            with pytest.raises(UserError, match=f"{name} cannot represent a network with model.{refusal}"):
                Export(translator, name)
        (tmp_path / "config.json").write_text(json.dumps({"model": dict(config)}))
        with pytest.raises(ValueError, match=f"this program does not know {refusal}"):
            Network(tmp_path)


def test_ctranslate2_runs_on_with_its_defaults(tmp_path):
    """It decodes up to 256 tokens and reads up to 1,024, and fails where a table of positions ends."""
    for options in ({}, ROTARY):
        translator = random_translator(**options)
        usage = ctranslate2_model.write(Export(translator, "ctranslate2"), tmp_path)
        source = translator.tokenizer.source_pieces(encoded(translator)[0][0] * 100)[:1000]
        (result,) = ctranslate2.Translator(str(tmp_path), intra_threads=1).translate_batch(
            [source], min_decoding_length=256
        )
        assert len(result.hypotheses[0]) == 256
        assert "longer sentences are not refused" in usage
    export = Export(random_translator(positions="learned"), "ctranslate2")
    assert "longer sentences are an error" in ctranslate2_model.write(export, tmp_path)


@pytest.fixture(scope="module")
def in_environment(python_with_transformers):
    """Runs a program there."""

    def run_in(folder, *command, text=""):
        options = {"cwd": folder, "input": text, "env": os.environ | {"HF_HUB_OFFLINE": "1"}}
        done = subprocess.run(
            [python_with_transformers, *command], capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, done.stderr
        assert "MISSING" not in done.stderr + done.stdout
        return done.stdout

    return run_in


def check_logits(translator, results):
    """Compares the logits of the last token of each translation."""
    for result in results:
        logits = forward_pass(translator, [result["source"]], [[BOS_ID, *result["target"][:-1]]])
        ours, theirs = logits[0, -1], np.array(result["logits"])
        np.testing.assert_allclose(*(np.delete(each, [PAD_ID, BOS_ID, UNK_ID]) for each in (theirs, ours)), atol=1e-4)
        assert (theirs[[PAD_ID, BOS_ID, UNK_ID]] < -1000).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"norm": "post", "activation": "gelu"}, {"num_heads": 1, "embed_dim": 18}, MARIAN]
)
def test_random_network_computes_the_same_logits(in_environment, tmp_path, options):
    translator = random_translator(num_decoder_layers=2, **options)
    transformers_model.write(Export(translator, "transformers"), tmp_path)
    results = json.loads(in_environment(tmp_path, SCRIPT, "1", text="\n".join(ODD_LINES)))
    assert [result["source"] for result in results] == translator.tokenizer.encode_source(ODD_LINES)
    check_logits(translator, results)


@pytest.mark.slow
def test_exported_run_translates_as_the_run_does(in_environment, trained, run, tmp_path):
    folder = tmp_path / "exported"
    succeed(run, "export", "--workdir", trained[0], "--format", "transformers", "--output", folder)
    translator = Translator.load(trained[0])
    corpus = open_corpus(read_workdir_config(trained[0]).data).split("validation")
    lines = [*ODD_LINES, *(pair.source for pair in corpus)]
    for beams in (1, 5):
        expected = translator.translate_sentences(lines, beam_size=beams, length_penalty=0.0, warn=False)
        results = json.loads(in_environment(folder, SCRIPT, str(beams), text="\n".join(lines)))
        check_logits(translator, results)
        compared = []
        for theirs, ours in zip(results, expected, strict=True):
            limit = min(default_max_length(len(theirs["source"])), translator.max_length - 1)
            if len(ours.hypotheses[0].tokens) < limit:
                compared.append(theirs["text"] == ours.text)
        assert len(compared) > 25
        assert sum(compared) >= 0.99 * len(compared)
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    in_environment(folder, "-c", code)


def test_tags_of_languages_are_named_as_its_tokenizer_reads_them(tmp_path):
    """MarianTokenizer takes >>fr<< at the beginning of a text for one piece; <2fr> would be characters."""
    tagged = small_tokenizer(("<2de>", "<2fr>")).with_source_tag("<2fr>")
    translator = dataclasses.replace(random_translator(), tokenizer=tagged)
    usage = transformers_model.write(Export(translator, "transformers"), tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert ([vocabulary[">>fr<<"]], "<2fr>" in vocabulary) == (list(tagged.source_tags), False)
    assert list(vocabulary.values()) == list(range(tagged.source_vocab_size))
    assert 'tokenizer([">>fr<< ' in usage


def test_model_card_has_metadata_that_the_hub_reads():
    scores = {"bleu": 40.123, "bleu_signature": "nrefs:1"}
    before, head, after = model_card(("en", "fr"), "text", scores).split("---\n")
    fields = {name: json.loads(value) for name, value in (line.split(": ", 1) for line in head.splitlines())}
    assert (before, after) == ("", "\n")
    assert (fields["language"], fields["pipeline_tag"]) == (["en", "fr"], "translation")
    (result,) = fields["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "bleu", "value": 40.12, "name": "sacreBLEU nrefs:1"}]
    assert "model-index" not in model_card(("en", "fr"), "text", None)
