"""The sentence in which the page marks words that the network was never trained on, drawn by Deno without a browser."""

import json
import subprocess
from pathlib import Path

from deno import find_deno_bin

SCRIPT = Path(__file__).parent / "scripts" / "mark_unknown.js"
CASES = [
    {"text": "I like 👍 pizza and ananas.", "unknown_words": [[9, 14], [19, 25]], "mostly_unknown": False},
    {"text": "mag ich", "unknown_words": [[0, 3], [4, 7]], "mostly_unknown": True},
    {"text": "I like it.", "unknown_words": [], "mostly_unknown": False},
]


def mark(word):
    return {"tag": "mark", "attributes": {"title": "not in the training text"}, "children": [word]}


def test_unknown_words_are_marked_at_their_places_and_their_consequence_is_told():
    command = [find_deno_bin(), "run", "--allow-read", "--no-lock", SCRIPT]
    done = subprocess.run(command, input=json.dumps(CASES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    some, most, none = json.loads(done.stdout)
    assert some[0]["children"] == ["I like 👍 ", mark("pizza"), " and ", mark("ananas"), "."]
    assert some[1]["children"] == [
        "The network was never trained on the marked words; what it makes of them is a guess."
    ]
    assert most[0]["children"] == [mark("mag"), " ", mark("ich")]
    assert most[1]["children"] == [
        "The network was never trained on most words of this sentence, the marked ones: its translation is a guess."
    ]
    assert none == []
