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
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.export.description import model_card, write_readme
from lingua_flax.export.transformers_model import write_transformers
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.exportable import obstacles
from lingua_flax.options.schema import DataConfig, ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.translator import Translator
from tests.export.test_export_formats import forward_pass, random_translator
from tests.helpers.pairs import PAIRS

SCRIPT = Path(__file__).parent / "scripts" / "translate_with_transformers.py"
ODD_LINES = ["one two three.", "</s> two <s> three.", "Zoé  naïve 𝄞", "2 >> 1 <<", "<unk> <pad>"]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with transformers, torch and sentencepiece, installed unless LINGUA_TRANSFORMERS names one."""
    if given := os.environ.get("LINGUA_TRANSFORMERS"):
        return given
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "transformers", "torch", "sentencepiece"], check=True)
    return python


def translated(python, folder, lines, beams):
    """Returns what the library computes for each line."""
    options = {"cwd": folder, "input": "\n".join(lines), "env": os.environ | {"HF_HUB_OFFLINE": "1"}}
    done = subprocess.run([python, SCRIPT, str(beams)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert "MISSING" not in done.stderr + done.stdout
    return json.loads(done.stdout)


def logits_of(translator, result):
    """Returns the logits of the last token of a translation."""
    target = np.array([[BOS_ID, *result["target"][:-1]]])
    return np.asarray(forward_pass(translator.params, np.array([result["source"]]), target, translator.graphdef))[0, -1]


def check_logits(translator, results):
    for result in results:
        ours, theirs = logits_of(translator, result), np.array(result["logits"])
        np.testing.assert_allclose(*(np.delete(each, [PAD_ID, BOS_ID, UNK_ID]) for each in (theirs, ours)), atol=1e-4)
        assert (theirs[[PAD_ID, BOS_ID, UNK_ID]] < -1000).all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"norm": "post", "activation": "gelu"}, {"num_heads": 1, "embed_dim": 18}])
def test_random_network_computes_the_same_logits(python, tmp_path, options):
    translator = random_translator(num_decoder_layers=2, **options)
    write_transformers(translator, DataConfig(), tmp_path)
    results = translated(python, tmp_path, ODD_LINES, 1)
    assert [result["source"] for result in results] == translator.tokenizer.encode_source(ODD_LINES)
    check_logits(translator, results)


@pytest.mark.slow
def test_exported_run_translates_as_the_run_does(python, trained, run, tmp_path):
    folder = tmp_path / "exported"
    result = run("export", "--workdir", trained[0], "--format", "transformers", "--output", folder)
    assert result.returncode == 0, result.stderr
    translator = Translator.load(trained[0])
    corpus = open_corpus(read_workdir_config(trained[0]).data).split("validation")
    lines = [*ODD_LINES, *(pair.source for pair, _ in zip(corpus, range(100), strict=False))]

    def longest(line):
        return min(default_max_length(len(translator.tokenizer.encode_source([line])[0])), translator.max_length - 1)

    for beams in (1, 5):
        expected = translator.translate_sentences(lines, beam_size=beams, length_penalty=0.0, warn=False)
        results = translated(python, folder, lines, beams)
        check_logits(translator, results)
        compared = [
            (result["text"], translation.text)
            for result, translation in zip(results, expected, strict=True)
            if len(translation.hypotheses[0].tokens) < longest(translation.source)
        ]
        assert len(compared) > 25
        assert sum(theirs == ours for theirs, ours in compared) >= 0.99 * len(compared)
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({"positions": "rotary"}, "has rotary positions"),
        ({"positions": "learned"}, "has learned positions"),
        ({"position_base": 50.0}, "positions of another base"),
        ({"qk_norm": "self"}, "normalizes queries and keys"),
        ({"tied_embeddings": "decoder"}, "several matrices of embeddings"),
    ],
)
def test_what_transformers_cannot_represent_is_refused(tmp_path, options, obstacle):
    with pytest.raises(UserError, match=f"transformers cannot represent a network that .*{obstacle}"):
        write_transformers(random_translator(**options), DataConfig(), tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(obstacles("transformers", ModelConfig(**options))) == 1
    assert obstacles("safetensors", ModelConfig(**options)) == []


def test_tags_of_languages_are_named_as_its_tokenizer_reads_them(tmp_path):
    """MarianTokenizer takes >>fr<< at the beginning of a text for one piece; <2fr> would be characters."""
    model = train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2de>", "<2fr>"])
    tagged = parse_tokenizers(model).with_source_tag("<2fr>")
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
