"""lingua-flax export --format transformers: what that library computes, in an environment that holds nothing else."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lingua_flax.data.corpora import open_corpus
from lingua_flax.export.description import model_card, write_readme
from lingua_flax.export.transformers_model import write_transformers
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.exportable import obstacles
from lingua_flax.options.schema import DataConfig, ModelConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.translator import Translator
from tests.helpers.networks import forward_pass, random_translator, small_tokenizer

SCRIPT = Path(__file__).parent / "scripts" / "translate_with_transformers.py"
ODD_LINES = ["one two three.", "</s> two <s> three.", "Zoé  naïve 𝄞", "2 >> 1 <<", "<unk> <pad>"]


@pytest.fixture(scope="module")
def in_environment(tmp_path_factory):
    """Runs Python with transformers, torch and sentencepiece, installed unless LINGUA_TRANSFORMERS names a Python."""
    python = os.environ.get("LINGUA_TRANSFORMERS")
    if not python:
        environment = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        python = environment / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "transformers", "torch", "sentencepiece"], check=True)

    def run_in(folder, *command, text=""):
        options = {"cwd": folder, "input": text, "env": os.environ | {"HF_HUB_OFFLINE": "1"}}
        done = subprocess.run([python, *command], capture_output=True, text=True, check=False, **options)
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
@pytest.mark.parametrize("options", [{}, {"norm": "post", "activation": "gelu"}, {"num_heads": 1, "embed_dim": 18}])
def test_random_network_computes_the_same_logits(in_environment, tmp_path, options):
    translator = random_translator(num_decoder_layers=2, **options)
    write_transformers(translator, DataConfig(), tmp_path)
    results = json.loads(in_environment(tmp_path, SCRIPT, "1", text="\n".join(ODD_LINES)))
    assert [result["source"] for result in results] == translator.tokenizer.encode_source(ODD_LINES)
    check_logits(translator, results)


@pytest.mark.slow
def test_exported_run_translates_as_the_run_does(in_environment, trained, run, tmp_path):
    folder = tmp_path / "exported"
    result = run("export", "--workdir", trained[0], "--format", "transformers", "--output", folder)
    assert result.returncode == 0, result.stderr
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


def test_what_transformers_cannot_represent_is_refused(tmp_path):
    for options, obstacle in (
        ({"positions": "rotary"}, "has rotary positions"),
        ({"positions": "learned"}, "has learned positions"),
        ({"position_base": 50.0}, "positions of another base"),
        ({"qk_norm": "self"}, "normalizes queries and keys"),
        ({"tied_embeddings": "decoder"}, "several matrices of embeddings"),
    ):
        with pytest.raises(UserError, match=f"transformers cannot represent a network that .*{obstacle}"):
            write_transformers(random_translator(**options), DataConfig(), tmp_path)
        assert len(obstacles("transformers", ModelConfig(**options))) == 1
        assert obstacles("safetensors", ModelConfig(**options)) == []
    assert not list(tmp_path.iterdir())


def test_tags_of_languages_are_named_as_its_tokenizer_reads_them(tmp_path):
    """MarianTokenizer takes >>fr<< at the beginning of a text for one piece; <2fr> would be characters."""
    tagged = small_tokenizer(("<2de>", "<2fr>"), vocab_size=80).with_source_tag("<2fr>")
    translator = dataclasses.replace(random_translator(), tokenizer=tagged)
    usage = write_transformers(translator, DataConfig(target_language="fr"), tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert ([vocabulary[">>fr<<"]], "<2fr>" in vocabulary) == (list(tagged.source_tags), False)
    assert list(vocabulary.values()) == list(range(tagged.source_vocab_size))
    assert 'tokenizer([">>fr<< ' in usage


def test_model_card_has_metadata_that_the_hub_reads(tmp_path):
    data = DataConfig(name="text", source_language="en", target_language="fr")
    signature = "nrefs:1|case:mixed"
    scores = {"bleu": 40.123, "bleu_signature": signature, "sentences": 3, "checkpoint_step": 7, "beam_size": 5}
    write_readme(tmp_path, random_translator(), data, "usage", scores, model_card(data, scores))
    before, head, text = (tmp_path / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = {name: json.loads(value) for name, value in (line.split(": ", 1) for line in head.splitlines())}
    assert before == ""
    assert text.startswith("\n# A translator from en to fr")
    assert (fields["language"], fields["pipeline_tag"]) == (["en", "fr"], "translation")
    (result,) = fields["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "bleu", "value": 40.12, "name": f"sacreBLEU {signature}"}]
    assert "model-index" not in model_card(data, None)
