"""Networks of transformers become workdirs that compute the same.

`python -m tests.importing.test_marian`, where transformers and torch are installed, stores what transformers computes
with a folder of tests/helpers/marian.py.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentencepiece import SentencePieceNormalizer
from sentencepiece import sentencepiece_model_pb2 as proto

from lingua_flax.commands.export import export
from lingua_flax.commands.import_ import import_
from lingua_flax.commands.train import train
from lingua_flax.export import html_file
from lingua_flax.export.marian_names import BIAS_OF_LOGITS, their_numbers
from lingua_flax.host.errors import UserError
from lingua_flax.importing import hub
from lingua_flax.importing.marian_folder import POSITIONS
from lingua_flax.importing.sentencepiece_ids import with_plain_punctuation
from lingua_flax.options.config_files import ORIGIN_NAME, read_workdir_config
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.serving.languages import languages
from lingua_flax.translation.translator import Translator
from tests.helpers.marian import LINES, write_folder
from tests.helpers.networks import forward_pass

STORED = Path(__file__).with_name("marian.json")
SCRIPT = Path(__file__).parent / "scripts" / "marian_with_transformers.py"
TARGETS = ["ling in üß", "a", "nil", "in", "fün mil", "k", "l", "hi"]
TAGS = (">>deu<<", ">>fra<<")
SEARCHES = [[1, 1.0], [5, 1.0]]
ASKED = {"lines": LINES, "targets": TARGETS, "tag": ">>fra<< ", "searches": SEARCHES}


def ask(asked: dict, python: str | Path = sys.executable) -> list[dict]:
    """Returns what transformers computes."""
    options: dict[str, Any] = {"input": json.dumps(asked), "capture_output": True, "text": True, "check": False}
    done = subprocess.run([python, SCRIPT], env=os.environ | {"HF_HUB_OFFLINE": "1"}, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def imported(folder: Path, workdir: Path, *options) -> Translator:
    """Returns the network of a folder, imported."""
    import_([str(folder), "--workdir", str(workdir), *map(str, options)])
    return Translator.load(workdir)


def check(translator: Translator, folder: Path, results: list[dict], tolerance: float = 1e-4) -> None:
    """Compares ids, logits and translations; another one is right only if its score is higher."""
    origin = json.loads((folder / ORIGIN_NAME).read_text(encoding="utf-8"))
    theirs = their_numbers(origin["ids"])
    ours = {number: own for own, number in reversed(list(enumerate(theirs)))}
    sources, targets = translator.tokenizer.encode_source(LINES), translator.tokenizer.encode_target(TARGETS)
    compared = 0
    texts = {beams: translator.translate_sentences(LINES, beam_size=beams, warn=False) for beams, _ in SEARCHES}
    for number, (source, target, result) in enumerate(zip(sources, targets, results, strict=True)):
        assert (source, target) == tuple([ours[i] for i in result[side]] for side in ("source", "target"))
        logits = forward_pass(translator, [source], [[BOS_ID, *target[:-1]]])[0, -1]
        expected = np.array(result["logits"])[theirs]
        np.testing.assert_allclose(np.delete(logits, [0, 2]), np.delete(expected, [0, 2]), atol=tolerance)
        for beams, found in texts.items():
            wanted, best = result["beams"][str(beams)], found[number].hypotheses[0]
            if beams > 1 and len(wanted["tokens"]) == min(2 * len(source) + 10, translator.max_length):
                continue  # transformers scores an end token that it enforces as certain
            compared += 1
            if list(best.tokens) != [ours[i] for i in wanted["tokens"]]:
                assert beams > 1
                assert best.score > wanted["score"] + 1e-5
            else:
                assert found[number].text.strip() == wanted["text"].strip()
    assert compared >= len(results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("marian") / "opus-mt-en-de_fr", tags=TAGS)


def test_network_computes_what_it_does_in_transformers(folder, tmp_path):
    translator = imported(folder, tmp_path / "w", "--target-language", "fra")
    check(translator, tmp_path / "w", json.loads(STORED.read_text(encoding="utf-8")))


def test_workdir_has_licence_origin_and_defaults_of_the_search(folder, tmp_path):
    translator = imported(folder, tmp_path / "w", "--source-language", "en")
    assert (translator.languages, translator.decoding.beam_size) == (("en", "deu"), 4)
    assert (translator.decoding.length_penalty, translator.decoding.length_penalty_form) == (1.0, "length")
    assert not translator.tokenizer.unknown_words(translator.tokenizer.protect("words never seen")).places
    origin = json.loads((tmp_path / "w" / ORIGIN_NAME).read_text(encoding="utf-8"))
    assert (origin["name"], origin["license"], len(origin["sha256"])) == ("opus-mt-en-de_fr", "cc-by-4.0", 64)
    assert read_workdir_config(tmp_path / "w").model.norm_epsilon == 1e-5


def test_all_languages_are_served_and_the_workdir_is_not_trained_on(folder, tmp_path):
    imported(folder, tmp_path / "w", "--target-language", "fra")
    english, *others = languages(read_workdir_config(tmp_path / "w").data)
    assert (english.code, english.name, english.targets) == ("eng", "English", ["fra", "deu"])
    assert [other.name for other in others] == ["French", "German"]
    with pytest.raises(UserError, match=r"nothing to resume.*--init-from"):
        train(["--workdir", str(tmp_path / "w"), "--config", "fine_tune"])


def test_placeholders_begin_as_the_mean_and_change_nothing_else(folder, tmp_path):
    plain = imported(folder, tmp_path / "plain")
    more = imported(folder, tmp_path / "more", "--placeholders", 3)
    assert len(more.tokenizer.placeholders) == 3
    for name in ("target_embedding", "output_bias"):
        old, new = plain.params[name], more.params[name]
        np.testing.assert_array_equal(new[: len(old)], old)
        np.testing.assert_allclose(new[len(old) :], [np.mean(old[4:], axis=0)] * 3, rtol=1e-5)
    assert plain.tokenizer.encode_source(LINES) == more.tokenizer.encode_source(LINES)


def test_marks_are_read_as_plain_ones_if_asked(folder, tmp_path):
    plain = imported(folder, tmp_path / "w").tokenizer
    read = imported(folder, tmp_path / "plain", "--plain-punctuation").tokenizer
    for text, as_one_types in (("ａ “bad” ca，b… １９", 'ａ "bad" ca,b... 19'), ("a「b」。  c", 'a"b". c')):
        for own, other in ((read.source, plain.source), (read.target, plain.target)):
            assert own.normalize(text) == other.normalize(as_one_types) != other.normalize(text)
    # Rules that a model has remain.
    nfkc = proto.ModelProto.FromString((folder / "source.spm").read_bytes())
    own = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec()
    nfkc.normalizer_spec.CopyFrom(proto.NormalizerSpec.FromString(own))
    extended = SentencePieceNormalizer(model_proto=with_plain_punctuation(nfkc.SerializeToString()))
    assert extended.Normalize("ﬁ “e\u0301”") == '\u2581fi\u2581"é"'


def test_export_gives_the_folder_back(folder, tmp_path):
    imported(folder, tmp_path / "w", "--placeholders", 2)
    export(["--workdir", str(tmp_path / "w"), "--format", "transformers", "--output", str(tmp_path / "out")])
    old, new = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "out"))
    assert {name for name in new if name not in old} == set(POSITIONS)
    for name, array in old.items():
        kept = new[name][:, : array.shape[1]] if name == BIAS_OF_LOGITS else new[name][: len(array)]
        np.testing.assert_array_equal(np.where(kept > -1000, kept, array), array)  # what is lower is never predicted
    vocabularies = [json.loads((each / "vocab.json").read_text("utf-8")) for each in (folder, tmp_path / "out")]
    assert list(vocabularies[1].items())[:-2] == list(vocabularies[0].items())
    configs = [json.loads((each / "config.json").read_text("utf-8")) for each in (folder, tmp_path / "out")]
    others = ("decoder_vocab_size", "vocab_size", "max_position_embeddings", "forced_eos_token_id")
    for name in configs[0].keys() & configs[1].keys() - set(others):
        assert configs[0][name] == configs[1][name], name
    readme = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert 'license: "cc-by-4.0"' in readme
    assert "| began as | opus-mt-en-de_fr, licence: cc-by-4.0 |" in readme


@pytest.mark.parametrize("name", ["safetensors", "ctranslate2", "html", "workdir"])
def test_exports_translate_as_the_workdir(folder, tmp_path, name, capfd):
    """The command compares them itself, and fails if they differ."""
    imported(folder, tmp_path / "w")
    (tmp_path / "lines").write_text("\n".join(LINES), encoding="utf-8")
    where = ["--workdir", tmp_path / "w", "--output", tmp_path / "out", "--verify", tmp_path / "lines"]
    export([str(each) for each in ["--format", name, "--quantization", "float32", *where]])
    assert " 8 " in capfd.readouterr().out


def test_html_file_that_is_too_large_to_be_mailed_is_refused(folder, tmp_path, monkeypatch):
    imported(folder, tmp_path / "w")
    how = ["--workdir", str(tmp_path / "w"), "--format", "html", "--output", str(tmp_path / "out.html")]
    monkeypatch.setattr(html_file, "MAX_BYTES", 100_000)
    with pytest.raises(UserError, match=r"would have 0\.\d MB, and more than 0\.1 MB cannot be mailed"):
        export(how)
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "m2m_100"}, "model_type is m2m_100, but a network here can only have marian"),
        (
            {"activation_function": "gelu"},
            "activation_function is gelu, but .* only have relu or swish or silu or gelu_new",
        ),
        ({"scale_embedding": False}, "scale_embedding is False"),
        ({"normalize_before": True}, "normalize_before is True"),
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings is False"),
        ({"decoder_attention_heads": 4}, "encoder_attention_heads is 2"),
        ({"d_model": "16"}, "d_model is 16, but must be a whole number"),
        ({"vocab_size": 9, "decoder_vocab_size": 9}, "not those from 0 to 8"),
        ({"encoder_layers": 3}, "it has no model.encoder.layers.2.self_attn.q_proj.weight"),
        ({"encoder_layers": 1}, "it has model.encoder.layers.1.fc1.bias, for which a network here has no place"),
        (
            {"encoder_ffn_dim": 23, "decoder_ffn_dim": 23},
            r"down.kernel would have the shape \(24, 16\) instead of \(23, 16\)",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, change, words):
    folder = write_folder(tmp_path / "folder", **change)
    with pytest.raises(UserError, match=words):
        imported(folder, tmp_path / "w")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is 3, but a network here can only have 0"),
        ({"bad_words_ids": [[3, 4]]}, r"bad_words_ids has \[3, 4\]"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id is 5, but a network here can only have nothing"),
    ],
)
def test_searches_that_cannot_be_expressed_are_refused(tmp_path, change, words):
    path = write_folder(tmp_path / "folder") / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=words):
        imported(path.parent, tmp_path / "w")


def test_damaged_and_missing_files_are_refused(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "folder")
    for name, content, words in (
        ("model.safetensors", b"x", "not a file of weights that can be read"),
        ("source.spm", b"x", "not a SentencePiece model"),
        ("vocab.json", b"{", "not valid JSON"),
        ("config.json", b"[]", "not a JSON object"),
        ("config.json", None, "cannot be read"),
        ("model.safetensors", None, "neither model.safetensors nor pytorch_model.bin"),
    ):
        kept = (folder / name).read_bytes()
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}.*{words}" if content else words):
            imported(folder, tmp_path / "w")
        (folder / name).write_bytes(kept)
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    missing = tmp_path / "none"
    for arguments, words in (
        ([missing], "there is no such folder"),
        (["some/network"], r"pip install .*\[hub\]"),
        ([missing, "--verify", tmp_path / "lines"], "lines: no such file"),  # before anything is read
    ):
        with pytest.raises(UserError, match=words):
            import_([*map(str, arguments), "--workdir", str(tmp_path / "w")])


def test_banned_words_are_never_written_and_hardly_change_the_loss(tmp_path):
    path = write_folder(tmp_path / "folder") / "generation_config.json"
    vocabulary = json.loads((path.parent / "vocab.json").read_text(encoding="utf-8"))
    content = json.loads(path.read_text())
    content["bad_words_ids"] += [[vocabulary["ü"]], [vocabulary["ün"]]]
    path.write_text(json.dumps(content))
    translator = imported(path.parent, tmp_path / "w")
    assert not re.search("ü", "".join(each.text for each in translator.translate_sentences(LINES, warn=False)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "heads", "activation", "dtype", "pickled"),
    [(16, 4, "swish", "float32", False), (24, 3, "relu", "float16", False), (32, 1, "swish", "float32", True)],
)
def test_folders_that_transformers_writes(python_with_transformers, tmp_path, width, heads, activation, dtype, pickled):
    if pickled:
        pytest.importorskip("torch")
    changes = {"d_model": width, "activation_function": activation}
    changes |= {f"{stack}_attention_heads": heads for stack in ("encoder", "decoder")}
    folder, saved = (
        write_folder(tmp_path / "made", seed=heads, width=width, end=4.0, tags=TAGS, **changes),
        tmp_path / "saved",
    )
    asked = ASKED | {"folder": str(folder), "save": str(saved), "dtype": dtype, "pickled": pickled}
    results = ask(asked, python_with_transformers)
    translator = imported(saved, tmp_path / "w", "--target-language", "fra", "--source-language", "eng")
    check(translator, tmp_path / "w", results)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        answers = ask(ASKED | {"folder": str(write_folder(Path(scratch) / "folder", tags=TAGS))})
    STORED.write_text("[\n" + ",\n".join(map(json.dumps, answers)) + "\n]\n", encoding="utf-8")
