"""What is mended in a pair, and the faults that it shows by itself."""

from lingua_flax.data.cleaning.pair_filters import (
    STEPS,
    Expected,
    find_fault,
    frequent_language,
    frequent_scripts,
    has_other_numbers,
    known_language,
    mend,
)
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.options.schema import CleaningOptions

OPTIONS = CleaningOptions()


def test_mending():
    for text, mended, changed in (
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
        ("&lt;b&gt;Ã©&lt;/b&gt;", "<b>é</b>", ["mojibake", "entities"]),  # text that explains a tag
    ):
        assert mend(text, OPTIONS) == (mended, changed)
        assert mend(text, OPTIONS.model_copy(update=dict.fromkeys(STEPS, False))) == (text, [])
        for name in changed:
            assert name not in mend(text, OPTIONS.model_copy(update={name: False}))[1]


# Faults.

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
    "addresses": Pair("See https://www.example.org/en for more.", "Siehe http://example.com/de für mehr."),
}


def test_untranslated_text_is_no_name():
    for text in ("Nestor spoke", "10 juta orang", "WE ARE ON OUR WAY", "是的"):
        assert find_fault(Pair(text, text), UNKNOWN) == "identical"


def test_faults_of_pairs():
    for fault, pair in FAULTY.items():
        assert find_fault(pair, EXPECTED) == fault
        if fault in CleaningOptions.model_fields and fault not in ("language", "script"):
            off = EXPECTED._replace(options=OPTIONS.model_copy(update={fault: 0}))
            assert find_fault(pair, off) != fault


def test_good_pairs_have_no_fault():
    """Whatever the notation of their numbers and addresses."""
    for source, target in (
        GOOD,
        ("It costs 1,000.50 dollars.", "Es kostet 1.000,50 Dollar."),
        ("On 12/25/2019 at noon", "Am 25.12.2019 um 12 Uhr"),
        ("One hundred men", "100 Männer"),
        ("Yes", "Ja"),
        ("नमस्ते दुनिया", "Hallo Welt"),  # marks are a half of it
        ("On May 12 100 men came", "Am 12. Mai kamen 100 Männer"),
        ("Rooms 101,102,103", "Räume 101, 102 und 103"),
        ("See www.example.org/en.", "Siehe https://example.org/de, bitte"),
        ("请联系info@example.com了解", "write to info@example.com for"),
        ("See www.example.com for more", "www.example.com에서 자세히 보기"),
        ("Néstor Kirchner (2003)", "Néstor Kirchner (2003)"),
        ("Write to info@example.com!", "Schreib info @ example.com!"),
        ("See http://example.com/en for more", "Siehe http: / / example.com / de"),
        ("See www.example.com/en for more", "További részletek a www.example.com-on"),
    ):
        for pair in (Pair(source, target), Pair(target, source)):
            assert find_fault(pair, UNKNOWN) == ""
            assert not has_other_numbers(pair)
    assert find_fault(GOOD, EXPECTED) == ""
    assert has_other_numbers(Pair("About 1,500 people", "Unas 1800 personas"))
    assert has_other_numbers(Pair("The cat sat there in 1999 and 2001.", "Die Katze saß dort 1989 und 1990."))
    assert find_fault(Pair("请联系info@example.com了解", "write to info@example.org for"), UNKNOWN) == "addresses"


def test_languages_and_scripts_are_told():
    codes = ("en-GB", "NB", "zh_Hant", "tlh", "por")
    assert [known_language(name) for name in codes] == ["en", "no", "zh", "", "pt"]
    assert frequent_language([GOOD.target] * 8 + [GOOD.source] * 2) == "de"
    assert frequent_language([GOOD.target] * 7 + [GOOD.source] * 3) == ""
    assert frequent_scripts(["123"]) == frozenset()
    for corpus, same, other in (
        (["これは日本語です", "漢字"], ["の", "字", "キャンセル", "ｷｬﾝｾﾙ", "ログイン OK"], ["word", "слово", "단어"]),
        (["안녕하세요"], ["단어"], ["word", "の"]),
        (["Straße", "größer"], ["Fuß", "Ｆｕßｂａｌｌ"], ["слово", "తెలుగు", "の"]),
        (["తెలుగు భాష", "Windows"], ["రద్దు", "word"], ["слово"]),
        (["ខ្ញុំស្រឡាញ់ភាសាខ្មែរខ្លាំងណាស់ហើយវាជាភាសាដ៏ស្រស់ស្អាត", "OK"], ["បោះបង់"], ["word", "తెలుగు"]),
        (["བོད་སྐད"], ["ཡིག"], ["word"]),
    ):
        expected = Expected(OPTIONS, ["", ""], [frequent_scripts(["word"]), frequent_scripts(corpus)])
        assert [find_fault(Pair("the word", text), expected) for text in same] == [""] * len(same)
        assert [find_fault(Pair("the word", text), expected) for text in other] == ["script"] * len(other)
