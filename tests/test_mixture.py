"""Several corpora at once: shares, order, resuming, target languages, and a killed run with all of it."""

import hashlib
import json
import signal
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from commands.train import resolve_config
from data.corpora.corpus import Pair
from data.mixture import JoinedPairs, open_training_corpora
from data.packing import Planner
from data.subword_sampling import SampledPairs
from data.tokenized_pairs import tokenize
from data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from data.training_batches import TrainingBatches
from host.errors import UserError
from options.schema import DataConfig, TokenizerConfig
from options.special_ids import EOS_ID
from runs.checkpoint import saved_steps
from tests.conftest import ROOT
from tests.processes import digests, metrics, start, wait_for
from tests.test_data import PAIRS
from tests.test_training_batches import pairs_in
from tests.toy import ENGLISH, write_corpus
from training.preparation import prepare
from training.validation import ValidationSet, validate
from translation.translator import Translator

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def test_joined_pairs_are_all_pairs_in_order():
    parts = [PAIRS[:3], PAIRS[3:4], PAIRS[4:8]]
    joined = JoinedPairs(parts)
    assert len(joined) == 8
    assert list(joined) == [joined[i] for i in range(8)] == PAIRS[:8]
    with pytest.raises(IndexError):
        joined[8]


def sampled_mixture(folder: Path, kind: str) -> tuple[Planner, Tokenizer]:
    """Windows of 120 and of 80 pairs, drawn 2 to 1 and in other segmentations."""
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80, kind=kind)))
    parts = []
    for number, text in enumerate((PAIRS[:120], PAIRS[80:])):
        pairs = tokenize(text, f"{kind} {number}", tokenizer, folder)
        parts.append(SampledPairs(pairs, text, tokenizer, 0.2, 40))
    return Planner(parts, (2.0, 1.0), row_length=40, seed=3), tokenizer


def digest(planner: Planner, state: dict, processes: int) -> str:
    """Of the five batches from a position on."""
    with closing(TrainingBatches(planner, rows=4, processes=processes)) as batches:
        batches.restore(state)
        batches.start()
        return hashlib.sha256(b"".join(array.tobytes() for _ in range(5) for array in next(batches).rows)).hexdigest()


def restored(folder: Path, kind: str, state: str) -> str:
    return digest(sampled_mixture(folder, kind)[0], json.loads(state), processes=0)


def test_sampled_and_mixed_batches_are_the_same_after_restoring_here_and_in_other_processes(tmp_path):
    states, expected = {}, []
    for kind in ("unigram", "bpe"):
        planner = sampled_mixture(tmp_path, kind)[0]
        state = {"window": 1, "row": len(planner.window(1)) - 10}  # into the next window
        states[kind] = json.dumps(state)
        expected.append(digest(planner, state, processes=0))
        assert digest(planner, state, processes=2) == expected[-1]
    assert len(set(expected)) == 2
    code = (
        "import json, pathlib, sys; from tests.test_mixture import restored\n"
        "for kind, state in json.loads(sys.argv[2]).items():\n"
        "    print(restored(pathlib.Path(sys.argv[1]), kind, state))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), json.dumps(states)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_every_epoch_draws_other_segmentations_of_the_same_sentences(tmp_path):
    planner, tokenizer = sampled_mixture(tmp_path, "unigram")
    batches = TrainingBatches(planner, rows=4, processes=0)
    segmentations: dict[str, set] = {}
    for _ in range(100):
        for _, target in pairs_in(next(batches).rows):
            segmentations.setdefault(tokenizer.decode_target([target])[0], set()).add(target)
    assert segmentations.keys() == {pair.target for pair in PAIRS[:8]}
    assert all(len(found) > 3 for found in segmentations.values())


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("name = 'tex'", 'data.mixture.1.name: unknown corpus "tex" (did you mean "text"?)'),
        ("directory = 'x'", 'data.mixture.1.directory has no effect with data.mixture.1.name = "text"'),
        ("train_source = 'a.en'", "set data.mixture.1.train_target too"),
        ("", "set data.mixture.1.train_source and data.mixture.1.train_target"),
        ("name = 'phrasebook'\ntarget_language = 'de'", "not from en to de"),
    ],
)
def test_mistakes_in_an_entry_name_the_entry(toy, entry, words):
    data = tomllib.loads(toy.read_text(encoding="utf-8"))["data"]
    config = DataConfig(**data | {"mixture": [*data["mixture"], tomllib.loads(entry)]})
    with pytest.raises(UserError) as caught:
        open_training_corpora(config)
    assert words in str(caught.value)


MIXTURE = """
[tokenizer]
vocab_size = 62
sampling_alpha = 0.3

[data]
tag_target = true
weight = 2

[[data.mixture]]
train_source = "{folder}/more.en"
train_target = "{folder}/more.de"
target_language = "de"
"""


def write_mixture(folder: Path) -> Path:
    """The toy corpus, and 300 pairs of English and German numbers, not reversed; returns the config's path."""
    config = write_corpus(folder)
    draw = np.random.default_rng(0)
    sentences = [draw.integers(10, size=draw.integers(1, 6)) for _ in range(300)]
    for words, name, end in ((ENGLISH, "more.en", "."), (GERMAN, "more.de", ".")):
        lines = [" ".join(words[n] for n in sentence) + end + "\n" for sentence in sentences]
        (folder / name).write_text("".join(lines), encoding="utf-8")
    ours = MIXTURE.format(folder=folder)
    text = config.read_text(encoding="utf-8").replace("[tokenizer]\nvocab_size = 45\n", ours.split("[data]")[0])
    data, entry = ours.split("[data]")[1].split("[[data.mixture]]")
    text = text.replace("[data]\n", f"[data]\n{data}").replace("num_steps = 240", "num_steps = 200\nema_decay = 0.9")
    config.write_text(f"{text}\n[[data.mixture]]{entry}", encoding="utf-8")
    return config


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def trained(toy, run, tmp_path_factory):
    """A workdir trained on a mixture with tags, sampling and averaging without a stop, and what the command printed."""
    workdir = tmp_path_factory.mktemp("runs") / "mixed"
    return workdir, run("train.py", "--config", toy, "--workdir", workdir)


def test_training_tells_what_is_in_the_mixture(trained):
    _, done = trained
    assert done.returncode == 0, done.stderr
    assert "data, text en-fr: kept 700 of 700 pairs, 0 longer than 32 tokens" in done.stderr
    assert "data, text en-fr: 66.7% of the training pairs drawn, each 0.95 times an epoch" in done.stderr
    assert "data.mixture.0, text en-de: kept 300 of 300 pairs" in done.stderr  # nothing held out
    assert "data.mixture.0, text en-de: 33.3% of the training pairs drawn, each 1.11 times an epoch" in done.stderr
    assert "held out" not in done.stderr


@pytest.mark.slow
def test_a_killed_run_with_mixture_sampling_and_averaging_goes_on_bit_for_bit(trained, toy, run, tmp_path):
    process = start(toy, tmp_path / "w")
    wait_for(process, lambda: 40 in saved_steps(tmp_path / "w" / "checkpoints"))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    done = run("train.py", "--config", toy, "--workdir", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert metrics(tmp_path / "w") == metrics(trained[0])
    assert digests(tmp_path / "w") == digests(trained[0])
    names = digests(trained[0])[1]
    assert (
        names["params['target_embedding']"] != names["training[4]['target_embedding']"]
    )  # the average, and its source


def test_the_data_report_shows_every_corpus_with_its_tags(trained, toy, run):
    done = run("train.py", "--workdir", trained[0], "--inspect-data")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines()]
    tagged = Translator.load(trained[0]).tokenizer
    for name, file, language in (("train", "train.en", "en"), ("data.mixture.0", "more.de", "de")):
        lines = (toy.parent / file).read_text(encoding="utf-8").splitlines()
        ids = tagged.encode_source(lines) if language == "en" else tagged.encode_target(lines)
        (row,) = [row for row in rows if row[1:3] == [name, language] and len(row) > 10]
        assert row[8] == f"{sum(map(len, ids)):,}"


def test_what_is_validated_is_what_is_saved(trained, toy):
    """The average, not the parameters that it follows."""
    sides = [(toy.parent / f"validation.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "fr")]
    translator = Translator.load(trained[0], "last")
    found = validate(translator, ValidationSet.of(list(zip(*sides, strict=True)), translator.tokenizer))
    last = metrics(trained[0])[-1]
    assert last["validation_loss"] == pytest.approx(found.loss, rel=1e-5)
    assert last["validation_bleu"] == pytest.approx(found.bleu)


def test_translations_are_in_the_language_that_is_asked_for(trained, run):
    def words(*options, text="two four three.\n\none one.\n"):
        done = run("translate.py", "--workdir", trained[0], *options, input=text)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n")[1] == ""  # an empty line has no tag to translate
        return set(done.stdout.replace(".", " ").split())

    french, german = words(), words("--target-language", "de", text="<2fr> two four.\n\none.\n")
    assert french & {"deux", "quatre", "trois", "un"}
    assert german & {"zwei", "vier", "eins"}
    assert not french & set(GERMAN)
    assert "!" not in german
    with pytest.raises(UserError, match="no tag <2es> for a target language; it has <2fr>, <2de>"):
        Translator.load(trained[0], target_language="es")


def test_evaluate_scores_the_test_split_of_data_and_any_of_the_languages(trained, toy, run, tmp_path):
    source, target = tmp_path / "test.en", tmp_path / "test.de"
    source.write_text("one two three four.\n" * 3, encoding="utf-8")
    target.write_text("eins zwei drei vier.\n" * 3, encoding="utf-8")
    german = ["--data.target-language", "de", "--data.test-source", source, "--data.test-target", target]
    scores = {}
    for name, options in (("fr", []), ("de", german)):
        file = tmp_path / f"{name}.json"
        done = run("evaluate.py", "--workdir", trained[0], "--json", file, "--output", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        scores[name] = json.loads(file.read_text())
    assert (scores["fr"]["sentences"], scores["de"]["sentences"]) == (37, 3)
    assert scores["fr"]["chrf"] > 25
    assert set((tmp_path / "de").read_text().replace(".", "").split()) <= set(GERMAN)


def test_a_run_without_tags_is_asked_for_no_language(trained, tmp_path):
    (tmp_path / "config.toml").write_text("[data]\ntarget_language = 'fr'")
    (tmp_path / "tokenizer.model").write_bytes((trained[0] / "tokenizer.model").read_bytes())
    with pytest.raises(UserError, match=r"tags \(data.tag_target\), so de cannot be selected: it translates into fr"):
        Translator.load(tmp_path, target_language="de")


def test_a_run_goes_on_with_the_same_mixture_only(trained, toy, run, tmp_path):
    moved = write_mixture(tmp_path).parent
    files = ["--data.mixture.0.train-source", moved / "more.en", "--data.mixture.0.train-target", moved / "more.de"]
    same = run("train.py", "--workdir", trained[0], *files)
    assert same.returncode == 0, same.stderr
    assert "finished: 200 of 200 steps" in same.stdout
    (moved / "more.de").write_text((moved / "more.de").read_text().replace("eins", "ein"))
    changed = run("train.py", "--workdir", trained[0], "--training.num-steps", 300, *files)
    assert changed.returncode == 2
    assert "made with a different corpus" in changed.stderr
    with pytest.raises(UserError, match=r"data.mixture.0.weight: 1.0 in the workdir, now 2.0"):
        resolve_config(["--workdir", str(trained[0]), "--data.mixture.0.weight", "2"])


@pytest.mark.parametrize("alpha", ["0", "0.1"])
def test_a_given_tokenizer_needs_the_tags(toy, tmp_path, alpha):
    model = tmp_path / "m.model"
    argv = ["--config", str(toy), "--workdir", str(tmp_path / "w"), "--tokenizer.model-file", str(model),
            "--tokenizer.sampling-alpha", alpha]  # fmt: skip
    config, command = resolve_config(argv)
    model.write_bytes(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["fr"])[0])
    with pytest.raises(UserError, match=r"no tag <2de> .* it has <2fr>; train it with --control_symbols=<2fr>,<2de>"):
        prepare(config, command.workdir)
    model.write_bytes(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["de", "fr"])[0])
    assert prepare(config, command.workdir).tokenizer.source_tag == 5


@pytest.mark.parametrize("options", [{}, {"kind": "bpe"}, {"joint": False}, {"byte_fallback": True, "vocab_size": 350}])
def test_a_typed_tag_is_text(options):
    (pairs, config) = (
        [*PAIRS, Pair("<2fr> a tag", "<2fr> in the corpus")],
        TokenizerConfig(**{"vocab_size": 60, **options}),
    )
    plain = parse_tokenizers(train_tokenizer(pairs, config, ["fr", "de"]))
    tagged = plain.with_source_tag("fr")
    tag = plain.source.piece_to_id("<2fr>")
    assert tag in (4, 5)
    lines = ["a dog", "<2fr> a dog", "", "   "]
    ids = plain.encode_source(lines)
    assert all(tag not in line for line in ids)
    assert tagged.encode_source(lines) == [[tag, *ids[0]], [tag, *ids[1]], [EOS_ID], [EOS_ID]]
    assert tagged.fingerprint == plain.fingerprint


def test_several_languages_without_a_tag_are_warned_of(toy, tmp_path, caplog):
    config, command = resolve_config(["--config", str(toy), "--workdir", str(tmp_path), "--data.tag-target", "False",
        "--tokenizer.vocab-size", "60"])  # fmt: skip
    prepare(config, command.workdir)
    assert "nothing tells the model which of fr and de to translate into" in caplog.text


def test_tokens_with_another_tag_are_never_served_from_the_old_copy(tmp_path):
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["fr", "de"]))
    ways = [tokenizer, tokenizer.with_source_tag("fr"), tokenizer.with_source_tag("de")]
    firsts = [int(tokenize(PAIRS, "f", way, tmp_path)[0][0][0]) for way in ways]
    assert firsts == [tokenizer.encode_source([PAIRS[0].source])[0][0], 4, 5]
