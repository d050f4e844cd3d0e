"""What is mended and what is left out: examples, slow references, and faults planted in Multi30k."""

from __future__ import annotations

import json
import math
import random
import re
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from lingua_flax.data.cleaning import lexical_scores, pipeline
from lingua_flax.data.cleaning.corpus_filters import (
    UNRELATED,
    Shift,
    correlation,
    deviations,
    digests,
    find_shifts,
    occurrences,
)
from lingua_flax.data.cleaning.lexical_scores import find_cut, train
from lingua_flax.data.cleaning.pair_filters import (
    STEPS,
    Expected,
    find_fault,
    frequent_language,
    frequent_scripts,
    known_language,
    mend,
)
from lingua_flax.data.cleaning.readers import Row
from lingua_flax.data.cleaning.report import alignment_warnings
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import CleaningOptions
from tests.data.planted_faults import LEFT_OUT, MENDED, cleaned, measure, read_multi30k

OPTIONS = CleaningOptions()

# Mending.


@pytest.mark.parametrize(
    ("text", "mended", "changed"),
    [
        ("schÃ¶n", "schön", ["mojibake"]),
        ("“ﬁne” … ｆｕｌｌ", "“ﬁne” … ｆｕｌｌ", []),  # quotes, ligatures and widths are no faults
        ("Tom &amp; Jerry &#8211; &eacute;t&#xe9;", "Tom & Jerry – été", ["entities"]),
        ("AT&T, R&D; x &unknown; &copy", "AT&T, R&D; x &unknown; &copy", []),
        ('<p>a<br/>b <b class="x">c</b>d</p>', "a b cd", ["tags", "whitespace"]),
        ('if a < b: <x id="1"/> <name>', 'if a < b: <x id="1"/> <name>', []),
        ("a\x02b\u200bc\u00add\ufeff", "abcd", ["control_characters"]),
        ("می\u200cخواهم", "می\u200cخواهم", []),
        (" a\u00a0\u2028b\tc\nd ", "a b c d", ["whitespace"]),
        ("e\u0301", "é", ["normalize"]),
        ("&lt;b&gt;Ã©&lt;/b&gt;", "é", ["mojibake", "entities", "tags"]),
    ],
)
def test_mending(text, mended, changed):
    assert mend(text, OPTIONS) == (mended, changed)
    assert mend(text, OPTIONS.model_copy(update=dict.fromkeys(STEPS, False))) == (text, [])
    for name in changed:
        assert name not in mend(text, OPTIONS.model_copy(update={name: False}))[1]


# Pairs by themselves.

EXPECTED = Expected(OPTIONS, ["en", "de"], [frequent_scripts(["latin"]), frequent_scripts(["größer"])])
UNKNOWN = Expected(OPTIONS, ["", ""], [frozenset()] * 2)
GOOD = Pair("The cat sat on the old mat in 1999.", "Die Katze saß 1999 auf der alten Matte.")
FAULTY = {
    "empty": Pair("", "Die Katze"),
    "undecodable": Pair("The cat is nice", "Die K\ufffdtze ist nett"),
    "max_length": Pair("The cat " * 300, "Die Katze"),
    "min_letters": Pair("10 % (20)", "10 % von 20"),
    "identical": Pair("Hello World", "hello world"),
    "script": Pair("The cat sat on the mat", "Кот сидел на коврике"),
    "swapped": Pair("Die Katze saß auf der alten Matte.", "The cat sat on the old mat."),
    "language": Pair("The cat sat on the old mat.", "Le chat était assis sur le vieux tapis."),
    "numbers": Pair("The cat sat there in 1999 and 2001.", "Die Katze saß dort 1989 und 1990."),
    "addresses": Pair("See https://www.example.org/en for more.", "Siehe http://example.com/de für mehr."),
}


@pytest.mark.parametrize(("fault", "pair"), FAULTY.items())
def test_faults_of_pairs(fault, pair):
    assert find_fault(pair, EXPECTED) == fault
    if fault in CleaningOptions.model_fields and fault not in ("language", "script"):
        off = EXPECTED._replace(options=OPTIONS.model_copy(update={fault: 0}))
        assert find_fault(pair, off) != fault


@pytest.mark.parametrize(
    "pair",
    [
        GOOD,
        Pair("It costs 1,000.50 dollars.", "Es kostet 1.000,50 Dollar."),
        Pair("On 12/25/2019 at noon", "Am 25.12.2019 um 12 Uhr"),
        Pair("One hundred men", "100 Männer"),
        Pair("See www.example.org/en.", "Siehe https://example.org/de, bitte"),
        Pair("Yes", "Ja"),
        Pair("नमस्ते दुनिया", "Hallo Welt"),  # marks are a half of it
    ],
)
def test_good_pairs_have_no_fault(pair):
    expected = EXPECTED if pair.source.isascii() else UNKNOWN
    assert find_fault(pair, expected) == ""


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("About 1,500 people", "Unas 1500 personas"),
        ("About 250,000 people", "Rund 250000 Menschen"),
        ("About 1,500,000 people", "Rund 1 500 000 Menschen"),
        ("About 1,500,000 people", "लगभग 15,00,000 लोग"),
        ("It is 12.5 degrees", "Es sind 12,5 Grad"),
        ("On May 12 100 men came", "Am 12. Mai kamen 100 Männer"),
        ("Rooms 101,102,103", "Räume 101, 102 und 103"),
        ("请联系info@example.com了解", "write to info@example.com for"),
        ("See www.example.com for more", "www.example.com에서 자세히 보기"),
        ("See www.example.com/en for more", "További részletek a www.example.com-on"),
    ],
)
def test_numbers_and_addresses_are_the_same_in_every_notation(source, target):
    assert find_fault(Pair(source, target), UNKNOWN) == ""
    assert find_fault(Pair(target, source), UNKNOWN) == ""


def test_numbers_and_addresses_that_differ_are_told_in_every_notation():
    assert find_fault(Pair("About 1,500 people", "Unas 1800 personas"), UNKNOWN) == "numbers"
    assert find_fault(Pair("请联系info@example.com了解", "write to info@example.org for"), UNKNOWN) == "addresses"


def test_languages_and_scripts():
    assert [known_language(name) for name in ("en-GB", "NB", "zh_Hant", "tlh")] == ["en", "no", "zh", ""]
    assert frequent_language([GOOD.target] * 8 + [GOOD.source] * 2) == "de"
    assert frequent_language([GOOD.target] * 7 + [GOOD.source] * 3) == ""
    assert frequent_scripts(["123"]) == frozenset()


@pytest.mark.parametrize(
    ("corpus", "same", "other"),
    [
        (["これは日本語です", "漢字"], ["の", "字", "キャンセル", "ｷｬﾝｾﾙ", "ログイン OK"], ["word", "слово", "단어"]),
        (["안녕하세요"], ["단어"], ["word", "の"]),
        (["Straße", "größer"], ["Fuß", "Ｆｕßｂａｌｌ"], ["слово", "తెలుగు", "の"]),
        (["తెలుగు భాష", "Windows"], ["రద్దు", "word"], ["слово"]),
        (["ខ្ញុំស្រឡាញ់ភាសាខ្មែរខ្លាំងណាស់ហើយវាជាភាសាដ៏ស្រស់ស្អាត", "OK"], ["បោះបង់"], ["word", "తెలుగు"]),
        (["አማርኛ"], ["ሰርዝ"], ["word"]),
        (["བོད་སྐད"], ["ཡིག"], ["word"]),
    ],
)
def test_texts_in_other_scripts_are_told(corpus, same, other):
    expected = Expected(OPTIONS, ["", ""], [frequent_scripts(["word"]), frequent_scripts(corpus)])
    assert [find_fault(Pair("the word", text), expected) for text in same] == [""] * len(same)
    assert [find_fault(Pair("the word", text), expected) for text in other] == ["script"] * len(other)


def test_one_foreign_word_does_not_reject_a_corpus():
    rows = [Row(number, f"line {number}", f"పంక్తి సంఖ్య {number}") for number in range(20)]
    rows.append(Row(21, "Windows is here", "Windows ఇక్కడ ఉంది"))
    report = pipeline.clean(rows, CleaningOptions(language=False, duplicates="none"), ("en", "te"))
    assert report.kept == len(rows), report.left_out


# Pairs among others.


def test_occurrences_match_a_slow_reference():
    draw = random.Random(1)
    values = [draw.randrange(300) for _ in range(1000)]
    assert occurrences(np.array(values, np.uint64)).tolist() == [values[:i].count(v) for i, v in enumerate(values)]


def test_digests_ignore_what_they_should():
    first, second = digests(Pair("A cat, 1!", "Eine Katze")), digests(Pair("a cat 2", "eine katze."))
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert digests(Pair("1", "a"))[1] != digests(Pair("2", "a"))[1]  # without letters, digits count
    assert digests(Pair("ab", "c"))[:2] != digests(Pair("a", "bc"))[:2]


def test_deviations_find_only_unusual_ratios():
    draw = np.random.default_rng(1)
    source = draw.integers(10, 200, 5000)
    target = np.maximum(1, source * 1.2 + draw.normal(0, 1, 5000) * np.sqrt(source) * 1.5).astype(int)
    target[:100] *= 3
    found = np.flatnonzero(deviations(np.stack([source, target], axis=1)) > 6)
    assert set(found) <= set(range(100))
    assert len(found) > 85


def lengths_of(target_shift, count=6000, seed=1):
    """Returns lengths of pairs of which target line i + shift(i) belongs to source line i."""
    draw = np.random.default_rng(seed)
    source = np.exp(draw.normal(4, 0.5, count))
    target = source * np.exp(draw.normal(0, 0.25, count))
    return np.stack([source, target[[np.clip(i - target_shift(i), 0, count - 1) for i in range(count)]]], axis=1)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("shift", [-3, -1, 1, 2])
def test_shifts_are_found_where_they_begin_and_end(shift, seed):
    found = find_shifts(lengths_of(lambda i: shift if 2000 <= i < 4000 else 0, seed=seed))
    assert [part.by for part in found] == [shift]
    assert abs(found[0].first - 2001) <= 20
    assert abs(found[0].last - 4000) <= 20
    assert find_shifts(lengths_of(lambda i: 0, seed=seed)) == []


@pytest.mark.parametrize("dirt", [0.1, 0.3, 0.5])
def test_a_shift_is_found_among_pairs_that_do_not_match(dirt):
    lengths = lengths_of(lambda i: 1 if i >= 3000 else 0)
    draw = np.random.default_rng(1)
    lines = draw.random(len(lengths)) < dirt
    lengths[lines, 1] = draw.permutation(lengths[lines, 1])
    (part,) = find_shifts(lengths)
    assert part.by == 1
    assert abs(part.first - 3001) <= 50


def test_few_pairs_are_not_shifted_by_chance():
    for seed in range(100):
        assert find_shifts(np.random.default_rng(seed).integers(1, 50, (8, 2))) == []
    assert find_shifts(lengths_of(lambda i: 1))[0][:2] == (1, 6000)


def test_unrelated_parts_and_corpora():
    lengths = lengths_of(lambda i: 0)
    lengths[3000:, 1] = np.random.default_rng(2).permutation(lengths[3000:, 1])
    (part,) = find_shifts(lengths)
    assert part.by == UNRELATED
    assert abs(part.first - 3001) <= 20
    lengths[:, 1] = np.random.default_rng(2).permutation(lengths[:, 1])
    assert find_shifts(lengths) == []
    (warning,) = alignment_warnings(len(lengths), correlation(lengths), [])
    assert "hardly correlated" in warning
    assert correlation(np.ones((5, 2))) is None
    assert list(alignment_warnings(6000, 0.9, [])) == []
    (warning,) = alignment_warnings(6000, 0.1, [Shift(4001, 6000, -1)])
    assert warning.startswith("lines 4,001 to 6,000 are misaligned: the source side is 1 line behind; near line 4,001")


# Words.


def model_1(pairs, iterations):
    """IBM Model 1 as in the paper, without NumPy: the probability of each target word given each source word."""
    p = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = Counter(), Counter()
        for source, target in pairs:
            for t in target:
                norm = sum(p[s, t] for s in source)
                for s in source:
                    counts[s, t] += p[s, t] / norm
                    totals[s] += p[s, t] / norm
        p = {key: count / totals[key[0]] for key, count in counts.items()}
    return p, totals


def words_of(text):
    return list(dict.fromkeys(word[:5] for word in re.findall(r"\w+", text.casefold())))


def test_scores_match_a_slow_model_1():
    """Every word of this corpus is frequent, so that there are no rare ones."""
    draw = random.Random(5)
    lexicon = {f"word{chr(97 + i)}": f"wort{chr(97 + i)}" for i in range(12)}
    pairs = []
    for _ in range(60):
        sources = draw.sample(list(lexicon), draw.randrange(2, 6))
        pairs.append(Pair(" ".join(sources), " ".join(lexicon[word] for word in sources)))
    model, trained, *_ = train(pairs)
    assert trained.tolist() == list(range(60))
    sides = [[words_of(text) for text in side] for side in zip(*pairs, strict=True)]
    new = [Pair("wordа wordb wordc", "wortb wortc wortd"), Pair("wordb worde", "wortb worte"), Pair("wordb", "wortc")]
    expected = np.zeros(len(new))
    for own, other in ((1, 0), (0, 1)):
        p, totals = model_1(list(zip(sides[other], sides[own], strict=True)), lexical_scores.ITERATIONS)
        frequency = Counter(word for text in sides[own] for word in text)
        share = {word: (count + 1) / (frequency.total() + len(frequency) + 1) for word, count in frequency.items()}
        unknown = 1 / (frequency.total() + len(frequency) + 1)
        for index, pair in enumerate(new):
            words, others = words_of(pair[own]), words_of(pair[other])
            for word in words:
                given = [p.get((s, word), 0) * totals[s] / (totals[s] + 0.5) if totals[s] else 0 for s in others]
                given = [each if each > share.get(word, unknown) else 0 for each in given]
                ratio = sum(given) / len(others) / share.get(word, unknown)
                expected[index] += math.log(0.9 * ratio + 0.1) / len(words) / 2
    np.testing.assert_allclose(model.score(new), expected, rtol=1e-5)


def test_texts_without_spaces_have_words():
    pairs = [Pair("the cat", "猫です"), Pair("a dog", "犬です")]
    assert [words.counts.tolist() for words in lexical_scores._hashed_words(pairs)] == [[2, 2], [3, 3]]


@pytest.mark.parametrize("share", [0, 0.05, 0.2])
def test_cut_loses_few_and_finds_most(share):
    draw = np.random.default_rng(3)
    mismatched = draw.normal(-1.2, 0.4, 10_000)
    good, bad = draw.normal(2, 0.6, 10_000), draw.normal(-1.1, 0.4, round(10_000 * share))
    cut = find_cut(np.concatenate([good, bad]), mismatched)
    assert np.mean(good < cut) < 0.005
    assert not len(bad) or np.mean(bad < cut) > 0.97


def test_there_is_no_cut_where_words_do_not_tell():
    draw = np.random.default_rng(3)
    assert find_cut(draw.normal(-1.2, 0.4, 1000), draw.normal(-1.2, 0.4, 1000)) is None
    assert find_cut(draw.normal(0.6, 0.9, 1000), draw.normal(-0.2, 0.9, 1000)) is None


# Whole corpora.

WORDS = [f"{a}{b}" for a in ("ban", "lor", "mit", "sul", "ten", "gor") for b in ("a", "ek", "im", "ost", "ur", "y")]


def made_up_rows(count, seed=1):
    """Returns rows of made-up languages in which word i is translated by word i, in the reverse order."""
    draw, rows = random.Random(seed), []
    for number in range(1, count + 1):
        chosen = [draw.choice(WORDS) for _ in range(draw.randrange(4, 12))]
        rows.append(Row(number, " ".join(chosen), " ".join(f"{word[::-1]}en" for word in reversed(chosen))))
    return rows


def run_pipeline(rows, **options):
    with tempfile.TemporaryDirectory() as folder:
        output, rejected = Path(folder) / "kept.jsonl", Path(folder) / "rejected.jsonl"
        options |= {"output": output, "rejected": rejected}
        report = pipeline.clean(rows, CleaningOptions(language=False), ("", ""), **options)
        return report, output.read_bytes(), rejected.read_bytes()


def test_result_depends_neither_on_processes_nor_on_chunks(monkeypatch):
    rows = made_up_rows(3000)
    rows[700] = rows[700]._replace(target=rows[1700].target)
    rows[800] = rows[800]._replace(target=rows[799].target, source=rows[799].source)
    whole = run_pipeline(rows)
    monkeypatch.setattr(pipeline, "CHUNK", 500)
    for processes in (1, 2):
        assert run_pipeline(rows, processes=processes) == whole
    report, kept, rejected = whole
    assert {name: found.pairs for name, found in report.left_out.items()} == {"misaligned": 1, "duplicates": 1}
    assert [json.loads(line)["line"] for line in rejected.splitlines()] == [701, 801]
    assert len(kept.splitlines()) == report.kept == 2998


def test_pairs_beyond_the_sample_are_scored(monkeypatch):
    monkeypatch.setattr(pipeline, "SAMPLED_ALIGNMENTS", 1000)
    rows = made_up_rows(3000)
    wrong = set(range(10, 3000, 100))
    rows = [row._replace(target=rows[i - 5].target) if i in wrong else row for i, row in enumerate(rows)]
    report, _, rejected = run_pipeline(rows)
    found = {json.loads(line)["line"] - 1 for line in rejected.splitlines()}
    assert len(found & wrong) >= 28
    assert len(found - wrong) <= 15
    assert report.misaligned_below


def test_sources_with_many_targets_keep_the_first_ones():
    rows = [*made_up_rows(50), *(Row(51 + i, "bana lorek", f"mit{chr(97 + i)} sul") for i in range(15))]
    report, *_ = run_pipeline(rows)
    assert report.left_out["max_targets"].pairs == 5
    assert report.left_out["max_targets"].examples[0]["line"] == 61


def test_examples_and_counts_are_those_of_the_first_pairs():
    rows = [Row(i, f"bana  {WORDS[i]}", f"lorek {WORDS[-i]}", garbled="x" if i == 9 else "") for i in range(1, 10)]
    report, *_ = run_pipeline([*rows, Row(10, "raw", "", "torn")])
    assert report.mended["whitespace"].pairs == 9
    assert [example["line"] for example in report.mended["whitespace"].examples] == [1, 2, 3]
    assert report.mended["encoding"].examples == [{"line": 9, "before": "x", "after": f"{rows[8][1]} | {rows[8][2]}"}]
    assert report.left_out["unreadable"].examples == [{"line": 10, "source": "raw", "target": "", "detail": "torn"}]
    assert (report.pairs, report.kept) == (10, 9)


def test_shifts_have_the_lines_of_the_file():
    """Every row of this file begins two lines after the one before, on line 3."""
    texts = [("a" * max(1, int(s)), "b" * max(1, int(t))) for s, t in lengths_of(lambda i: i >= 1000, 2000)]
    rows = [Row(3 + 2 * number, *pair) for number, pair in enumerate(texts)]
    report, *_ = run_pipeline(rows)
    ((first, last, by),) = report.shifts
    assert abs(first - 2003) <= 40
    assert (last, by) == (rows[-1].line, 1)
    assert report.left_out["shifts"].examples[0]["line"] == first


def test_corpora_without_pairs_are_refused():
    for rows in ([], [Row(1, "x", "", "torn")]):
        with pytest.raises(UserError, match="has no pairs"):
            run_pipeline(rows)


# Faults planted in Multi30k; `python -m tests.data.planted_faults` measures all of it.


@pytest.mark.parametrize("language", ["de", "fr"])
def test_random_targets_are_found(multi30k, language):
    planted, found, others, lost = measure(read_multi30k(multi30k, language, 8000), language, "random target", 0.05, 31)
    assert found >= 0.95 * planted
    assert lost <= 0.01 * others


@pytest.mark.parametrize("kind", MENDED)
def test_mended_lines_are_as_before(multi30k, kind):
    planted, found, others, lost = measure(read_multi30k(multi30k, "de", 1500), "de", kind, 0.3, 31)
    assert found >= planted - 8  # misaligned and repeated ones among them are left out
    assert lost <= 0.01 * others


@pytest.mark.slow
@pytest.mark.parametrize("language", ["de", "fr"])
@pytest.mark.parametrize("seed", [41, 42])
@pytest.mark.parametrize(
    ("kind", "shares", "least"),
    [("random target", (0, 0.01, 0.05, 0.2), 0.95), ("swapped sides", (0.05,), 0.9), ("third language", (0.05,), 0.9)],
)
def test_planted_faults_are_found(multi30k, language, seed, kind, shares, least):
    corpus = read_multi30k(multi30k, language)
    for share in shares:
        planted, found, others, lost = measure(corpus, language, kind, share, seed)
        assert found >= least * planted
        assert lost <= 0.01 * others


def test_every_kind_of_fault_is_listed():
    assert not set(LEFT_OUT) & set(MENDED)
    assert cleaned([GOOD, ("", "x")], "de") == {0: GOOD}
