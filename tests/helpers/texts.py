"""Strategies and characters for texts that are known to break programs; every run tests the same examples."""

import time
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# Control characters, separators, right-to-left text, joined and combining characters, and the names of special pieces
# as a user might type them.
CONTROLS = ["\0", "\x1b[31m", "\ufeff", "\r", "\r\n", "\x85", "\v", "\f", "\t"]
SPACES = ["\u2028", "\u2029", "\u200b", "\u3000", " "]
SCRIPTS = ["\u202eabc", "שלום", "مرحبا", "👩‍👩‍👧", "🇫🇷", "e\u0301", "▁", "⁇", "\ufffd", "\U0010ffff", "ﬁ", "one", "."]
NASTY = [*CONTROLS, *SPACES, *SCRIPTS, "</s>", "<s>", "<pad>", "<unk>", "<2fr>", "<0x0A>"]
CHARACTERS = st.characters(exclude_categories=["Cs"])  # UTF-8 cannot encode a lone surrogate
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(CHARACTERS, max_size=9)), max_size=12).map("".join)
LINES = TEXTS.map(lambda text: text.replace("\n", ""))

# Of each script, a letter with and without case, and letters that change when they are composed or capitalized.
LETTERS = "abzßıİéñœΣσςΆдіЖაქאשبهیहकாตกໄកကአあイ漢字한ㅎŉǆﬁ"
MARKS = "\u0301\u093e\u0e49\u0303"
OTHERS = "  \t'-_.,!?019２½€\u200d\u00ad👍"


def assert_linear(function: Callable[[str], object], run: str) -> None:
    """Asserts that 10,000 characters of a text that begins with this, again and again, take at most 15 times 1,000."""

    def seconds(length: int) -> float:
        text = (run * (length // len(run) + 1))[:length]
        started = time.thread_time()
        function(text)
        return time.thread_time() - started

    assert any(seconds(10_000) < 15 * seconds(1000) for _ in range(100)), run[:20]
