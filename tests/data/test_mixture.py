"""Training on a mixture of corpora: shares, order, resuming, target languages, and a killed run with all of these."""

import hashlib
import itertools
import json
import shutil
import signal
import tomllib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from lingua_flax.commands.train import resolve_config
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.mixture import JoinedPairs, open_training_corpora
from lingua_flax.data.packing import Planner
from lingua_flax.data.subword_sampling import samplers_of
from lingua_flax.data.tokenized_pairs import tokenize
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.data.training_batches import TrainingBatches
from lingua_flax.data.varied_pairs import VariedPairs
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import AugmentConfig, DataConfig, MixtureConfig, TokenizerConfig
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.training.preparation import prepare
from lingua_flax.training.validation import ValidationSet, validate
from lingua_flax.translation.translator import Translator
from tests.data.test_data import PAIRS
from tests.data.test_training_batches import pairs_in
from tests.processes import digests, metrics, start, wait_for
from tests.toy import ENGLISH, FRENCH, write_corpus

STEPS = 160
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def test_joined_pairs_are_all_pairs_in_order():
    parts = [PAIRS[:3], PAIRS[3:4], PAIRS[4:8]]
    joined = JoinedPairs(parts)
    assert len(joined) == 8
    assert list(joined) == [joined[i] for i in range(8)] == PAIRS[:8]
    with pytest.raises(IndexError):
        joined[8]


SHORT = [Pair(*(" ".join(side.split()[:3]) for side in pair)) for pair in PAIRS]  # so that sampling is fast


def sampled_mixture(folder: Path, *kinds: str) -> tuple[Planner, Tokenizer]:
    """Returns a planner that draws from two corpora, 2 to 1, in sampled segmentations, and the first one's tokenizer.

    The corpora have 120 and 80 pairs, and tokenizers of these kinds.
    """
    tokenizers = [parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80, kind=kind))) for kind in kinds]
    parts, varied = [], []
    for number, text, tokenizer in zip(range(2), (SHORT[:120], SHORT[80:]), tokenizers, strict=True):
        parts.append(tokenize(text, f"{kinds} {number}", tokenizer, folder))
        varied.append(VariedPairs(parts[-1], text, tokenizer, 40, dict(AugmentConfig()), samplers_of(tokenizer, 0.2)))
    return Planner(parts, (2.0, 1.0), row_length=40, seed=3, varied=varied), tokenizers[0]


def digest(planner: Planner, state: dict, processes: int) -> str:
    """Returns the SHA-256 of the five batches from a position on."""
    with closing(TrainingBatches(planner, rows=4, processes=processes)) as batches:
        batches.restore(state)
        batches.start()
        return hashlib.sha256(b"".join(array.tobytes() for _ in range(5) for array in next(batches).rows)).hexdigest()


def digest_after_restart(folder: Path, state: str) -> str:
    """Returns the same digest as a process that prepares everything again."""
    return digest(sampled_mixture(folder, "unigram", "bpe")[0], json.loads(state), processes=0)


RESTARTED = """
import pathlib, sys
from tests.data.test_mixture import digest_after_restart
print(digest_after_restart(pathlib.Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.slow
def test_restored_batches_are_the_same_in_any_process(run, tmp_path):
    """In this process, in worker processes, and in a process of its own; all batches are mixed and sampled."""
    planner, _ = sampled_mixture(tmp_path, "unigram", "bpe")
    state = {"window": 1, "row": len(planner.window(1)) - 10}  # five batches reach into the next window
    expected = digest(planner, state, processes=0)
    assert digest(planner, state, processes=2) == expected
    assert digest(planner, state | {"row": state["row"] - 1}, processes=0) != expected
    script = tmp_path / "restarted.py"
    script.write_text(RESTARTED)
    restarted = run(script, tmp_path, json.dumps(state))
    assert restarted.stdout == f"{expected}\n", restarted.stderr


def test_every_epoch_samples_new_segmentations_of_the_same_sentences(tmp_path):
    planner, tokenizer = sampled_mixture(tmp_path, "unigram", "unigram")
    batches = TrainingBatches(planner, rows=4, processes=0)
    segmentations: dict[str, set] = {}
    for _ in range(100):
        for _, target in pairs_in(next(batches).rows):
            segmentations.setdefault(tokenizer.decode_target([target])[0], set()).add(target)
    assert segmentations.keys() == {pair.target for pair in SHORT[:8]}
    assert all(len(targets) > 3 for targets in segmentations.values())


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
def test_error_in_mixture_entry_names_the_entry(toy, entry, words):
    data = tomllib.loads(toy.read_text(encoding="utf-8"))["data"]
    config = DataConfig(**data | {"mixture": [*data["mixture"], tomllib.loads(entry)]})
    with pytest.raises(UserError) as caught:
        open_training_corpora(config)
    assert words in str(caught.value)


@pytest.mark.parametrize("given", [[], ["validation"], ["validation", "test"]])
def test_mixture_must_not_train_on_held_out_pairs(tmp_path, given):
    """Both directions of a corpus whose validation or test pairs are held out of its training pairs."""
    for language in ("en", "fr"):
        (tmp_path / f"a.{language}").write_text("".join(f"{language} {n}\n" for n in range(40)), encoding="utf-8")
    files = (tmp_path / "a.en", tmp_path / "a.fr")
    splits = dict(zip([f"{name}_{side}" for name in given for side in ("source", "target")], 2 * files, strict=False))
    reverse = MixtureConfig(
        source_language="fr", target_language="en", train_source=tmp_path / "." / "a.fr", train_target=files[0]
    )
    config = DataConfig(name="text", train_source=files[0], train_target=files[1], mixture=(reverse,), **splits)
    missing = " and ".join(f"data.{split}_source" for split in ("validation", "test") if split not in given)
    if not missing:
        assert len(open_training_corpora(config)) == 2
        return
    with pytest.raises(UserError, match=f"data.mixture.0 has the training pairs of data, .*; set {missing}$"):
        open_training_corpora(config)


def write_mixture(folder: Path) -> Path:
    """Writes the toy corpus, and 300 pairs of English and German numbers, not reversed. Returns the config's path."""
    path = write_corpus(folder)
    draw = np.random.default_rng(0)
    sentences = [draw.integers(10, size=draw.integers(1, 6)) for _ in range(300)]
    for words, name in ((ENGLISH, "more.en"), (GERMAN, "more.de")):
        lines = [" ".join(words[n] for n in sentence) + ".\n" for sentence in sentences]
        (folder / name).write_text("".join(lines), encoding="utf-8")
    entry = {"train_source": f"{folder}/more.en", "train_target": f"{folder}/more.de", "target_language": "de"}
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    config["tokenizer"] |= {"vocab_size": 62, "sampling_alpha": 0.3}
    config["data"] |= {"tag_target": True, "weight": 2, "mixture": [entry]}
    config["training"] |= {"num_steps": STEPS, "eval_every": STEPS, "ema_decay": 0.9}
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def trained(toy, run, tmp_path_factory):
    """Returns a workdir trained on a mixture with tags, sampling and averaging, and the completed command."""
    workdir = tmp_path_factory.mktemp("runs") / "mixed"
    return workdir, run("train", "--config", toy, "--workdir", workdir)


def test_training_reports_pairs_and_share_of_each_corpus(trained):
    _, result = trained
    assert result.returncode == 0, result.stderr
    assert "data, text en-fr: kept 700 of 700 pairs, 0 longer than 32 tokens" in result.stderr
    assert "data, text en-fr: 66.7% of the training pairs drawn, each 0.95 times an epoch" in result.stderr
    assert "data.mixture.0, text en-de: kept 300 of 300 pairs" in result.stderr
    assert "data.mixture.0, text en-de: 33.3% of the training pairs drawn, each 1.11 times an epoch" in result.stderr
    assert "held out" not in result.stderr


@pytest.mark.slow
def test_killed_run_with_mixture_sampling_and_averaging_resumes_bit_for_bit(trained, toy, run, tmp_path):
    process = start(toy, tmp_path / "w")
    wait_for(process, lambda: 40 in saved_steps(tmp_path / "w" / "checkpoints"))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    result = run("train", "--config", toy, "--workdir", tmp_path / "w")
    assert result.returncode == 0, result.stderr
    assert "resuming from step" in result.stderr
    assert metrics(tmp_path / "w") == metrics(trained[0])
    assert digests(tmp_path / "w") == digests(trained[0])
    arrays = digests(trained[0])[1]
    average, trained_params = (arrays[f"{item}['target_embedding']"] for item in ("params", "training[4]"))
    assert average != trained_params


def test_data_report_shows_every_corpus_with_its_tags(trained, toy, run):
    result = run("train", "--workdir", trained[0], "--inspect-data")
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    tagged = Translator.load(trained[0]).tokenizer
    for name, file, language in (("train", "train.en", "en"), ("data.mixture.0", "more.de", "de")):
        lines = (toy.parent / file).read_text(encoding="utf-8").splitlines()
        ids = tagged.encode_source(lines) if language == "en" else tagged.encode_target(lines)
        (row,) = [row for row in rows if row[1:3] == [name, language] and len(row) > 10]
        assert row[8] == f"{sum(map(len, ids)):,}"


def words_of(text: str) -> set[str]:
    return set(text.replace(".", " ").split())


def test_validation_uses_the_saved_moving_average(trained, toy):
    """Without a target language, it translates into that of [data]."""
    sides = [(toy.parent / f"validation.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "fr")]
    translator = Translator.load(trained[0], "last")
    result = validate(translator, ValidationSet.of(list(zip(*sides, strict=True)), translator.tokenizer))
    last = metrics(trained[0])[-1]
    assert last["validation_loss"] == pytest.approx(result.loss, rel=1e-5)
    assert last["validation_bleu"] == pytest.approx(result.bleu)
    translated = words_of(" ".join(sample.translation for sample in result.samples))
    assert translated & set(FRENCH)
    assert not translated & set(GERMAN)


def test_translate_uses_the_requested_language(trained, run):
    result = run("translate", "--workdir", trained[0], "--target-language", "de", input="<2fr> two four.\n\none.\n")
    assert result.returncode == 0, result.stderr
    first, empty, last, _ = result.stdout.split("\n")
    assert empty == ""  # the tag is not added to an empty line
    assert words_of(first) <= set(GERMAN)
    assert words_of(last) <= set(GERMAN)
    assert {"zwei", "vier", "eins"} & words_of(result.stdout)
    with pytest.raises(UserError, match="no tag <2es>; it has <2fr>, <2de>"):
        Translator.load(trained[0], target_language="es")


def test_source_language_is_that_of_the_first_direction_into_the_target_language(trained, tmp_path):
    """By its rules, text is divided into sentences."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    config = tomllib.loads((workdir / "config.toml").read_text(encoding="utf-8"))
    config["data"]["mixture"][0]["source_language"] = "nl"
    (workdir / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    languages = [Translator.load(workdir, target_language=language).languages for language in (None, "fr", "de")]
    assert languages == [("en", "fr"), ("en", "fr"), ("nl", "de")]


def test_evaluate_scores_test_split_of_data_and_any_of_the_languages(trained, run, tmp_path):
    source, target = tmp_path / "test.en", tmp_path / "test.de"
    source.write_text("one two three four.\n" * 3, encoding="utf-8")
    target.write_text("eins zwei drei vier.\n" * 3, encoding="utf-8")
    german = ["--data.target-language", "de", "--data.test-source", source, "--data.test-target", target]
    scores = {}
    for name, options in (("fr", []), ("de", german)):
        file = tmp_path / f"{name}.json"
        evaluate = ["evaluate", "--workdir", trained[0], "--beam-size", 1, "--json", file]
        result = run(*evaluate, "--output", tmp_path / name, *options)
        assert result.returncode == 0, result.stderr
        scores[name] = json.loads(file.read_text())
    assert (scores["fr"]["sentences"], scores["de"]["sentences"]) == (37, 3)
    assert scores["fr"]["chrf"] > 25
    french = words_of((tmp_path / "fr").read_text(encoding="utf-8"))
    assert french & set(FRENCH)
    assert not french & set(GERMAN)
    assert words_of((tmp_path / "de").read_text(encoding="utf-8")) <= set(GERMAN)


def test_run_without_tags_refuses_a_target_language(trained, tmp_path):
    (tmp_path / "config.toml").write_text("[data]\ntarget_language = 'fr'")
    (tmp_path / "tokenizer.model").write_bytes((trained[0] / "tokenizer.model").read_bytes())
    with pytest.raises(UserError, match=r"tags \(data.tag_target\), so de cannot be selected: it translates into fr"):
        Translator.load(tmp_path, target_language="de")


def test_run_resumes_only_with_the_same_mixture(trained, toy, run, tmp_path):
    moved = write_mixture(tmp_path).parent
    files = ["--data.mixture.0.train-source", moved / "more.en", "--data.mixture.0.train-target", moved / "more.de"]
    same = run("train", "--workdir", trained[0], *files)
    assert same.returncode == 0, same.stderr
    assert f"finished: {STEPS} of {STEPS} steps" in same.stdout
    (moved / "more.de").write_text((moved / "more.de").read_text().replace("eins", "ein"))
    changed = run("train", "--workdir", trained[0], "--training.num-steps", STEPS + 100, *files)
    assert changed.returncode == 2
    assert "made with a different mixture" in changed.stderr
    with pytest.raises(UserError, match=r"data.mixture.0.weight: 1.0 in the workdir, now 2.0"):
        resolve_config(["--workdir", str(trained[0]), "--data.mixture.0.weight", "2"])


@pytest.mark.parametrize("alpha", ["0", "0.1"])
def test_given_tokenizer_must_have_the_tags(toy, tmp_path, alpha):
    model = tmp_path / "m.model"
    options = ["--tokenizer.model-file", str(model), "--tokenizer.sampling-alpha", alpha]
    config, command = resolve_config(["--config", str(toy), "--workdir", str(tmp_path / "w"), *options])
    model.write_bytes(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2fr>"])[0])
    with pytest.raises(UserError, match=r"no tag <2de>; it has <2fr>; train it with --control_symbols=<2fr>,<2de>"):
        prepare(config, command.workdir)
    model.write_bytes(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2de>", "<2fr>"])[0])
    assert prepare(config, command.workdir).tokenizer.source_tags == (5,)


@pytest.mark.parametrize("target_tags", [False, True])
def test_tagged_sources_begin_with_the_tag_but_translations_do_not(toy, tmp_path, target_tags):
    options = ["--data.mixture.0.tag-source", "True", "--data.tag-target", str(target_tags)]
    argv = ["--config", str(toy), "--workdir", str(tmp_path / "w"), "--tokenizer.sampling-alpha", "0", *options]
    config, command = resolve_config([*argv, "--tokenizer.vocab-size", "60"])
    prepared = prepare(config, command.workdir)
    piece_ids = {piece: prepared.tokenizer.source.piece_to_id(piece) for piece in ("<2fr>", "<2de>", "<bt>")}
    for pairs, expected in zip(prepared.planner.corpora, (["<2fr>"], ["<2de>", "<bt>"]), strict=True):
        tags = [piece_ids[piece] for piece in expected if target_tags or piece == "<bt>"]
        for source, _ in itertools.islice(pairs, 20):
            assert source[: len(tags)].tolist() == tags
            assert not np.isin(source[len(tags) :], [4, 5, 6][: 3 if target_tags else 1]).any()
    assert prepared.tokenizer.source_tags == ((piece_ids["<2fr>"],) if target_tags else ())


@pytest.mark.parametrize("options", [{}, {"kind": "bpe"}, {"joint": False}, {"byte_fallback": True, "vocab_size": 350}])
def test_typed_tag_is_treated_as_text(options):
    pairs = [*PAIRS, Pair("<2fr> a tag", "<2fr> in the corpus")]
    config = TokenizerConfig(**{"vocab_size": 60, **options})
    plain = parse_tokenizers(train_tokenizer(pairs, config, ["<2fr>", "<2de>"]))
    tagged = plain.with_source_tag("<2fr>")
    tag = plain.source.piece_to_id("<2fr>")
    assert tag in (4, 5)
    lines = ["a dog", "<2fr> a dog", "", "   "]
    ids = plain.encode_source(lines)
    assert all(tag not in line for line in ids)
    assert tagged.encode_source(lines) == [[tag, *ids[0]], [tag, *ids[1]], [EOS_ID], [EOS_ID]]
    assert tagged.fingerprint == plain.fingerprint


def test_several_languages_without_tags_cause_a_warning(toy, tmp_path, caplog):
    options = ["--data.tag-target", "False", "--tokenizer.vocab-size", "60"]
    config, command = resolve_config(["--config", str(toy), "--workdir", str(tmp_path), *options])
    prepare(config, command.workdir)
    assert "nothing tells the model which of fr and de to translate into" in caplog.text


def test_cached_tokens_with_another_tag_are_not_reused(tmp_path):
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2fr>", "<2de>"]))
    tokenizers = [tokenizer, tokenizer.with_source_tag("<2fr>"), tokenizer.with_source_tag("<2de>")]
    first_ids = [int(tokenize(PAIRS, "f", tagged, tmp_path)[0][0][0]) for tagged in tokenizers]
    assert first_ids == [tokenizer.encode_source([PAIRS[0].source])[0][0], 4, 5]
