"""docs/attention.md agrees with the code, the worked examples and the recorded results of the network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from docs.attention import EXAMPLES, check, page, row
from host.errors import RunError

DOCS = Path(__file__).parent.parent / "docs"
RECORDED = json.loads((DOCS / "attention.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "attention.md").read_text(encoding="utf-8")


def test_the_page_matches_the_code_and_the_recorded_network():
    check(RECORDED)
    assert page(RECORDED) == PAGE


@pytest.mark.parametrize(
    ("example", "name"),
    [
        ("parameter_free_self_attention", "weights"),
        ("self_attention_i_play_football", "weights"),
        ("self_attention_the_cat_eats_fish", "weights"),
        ("masked_self_attention_write_a_poem", "weights"),
        ("multi_head_the_cat_sat", "output"),
        ("positional_encoding_i_am_a_robot", "table"),
        ("layer_norm", "normalized"),
    ],
)
def test_the_page_has_the_worked_numbers(example, name):
    """The worked numbers are rounded to four places, so 0.995 may stand for a little more."""
    for values in EXAMPLES[example][name]:
        assert row(values) in PAGE or row(np.add(values, 4e-5)) in PAGE


def test_the_page_has_the_other_worked_numbers():
    for head in EXAMPLES["multi_head_the_cat_sat"]["heads"]:
        assert all(row(values) in PAGE for values in head["weights"])
    scaling = EXAMPLES["scaling"]
    for kind in ("unscaled", "halved"):
        line = f"{row(scaling[kind])}     {row(scaling[f'jacobian_diagonal_{kind}'])}"
        assert line in PAGE
    for step in EXAMPLES["cross_attention_le_chat_mange"]["steps"]:
        context, stream = row(step["context"]), row(step["hidden_after_residual"])
        assert f"{row(step['weights'])}   context {context}   stream {stream}" in PAGE
    for example in ("self_attention_i_play_football", "parameter_free_self_attention"):
        assert " ".join(row(EXAMPLES[example]["output"][0]).split()) in PAGE
    assert "2.19 5.12" in PAGE
    assert np.allclose(EXAMPLES["self_attention_the_cat_eats_fish"]["output"][2], [2.1932, 5.1174])


def test_all_pictures_of_the_page_exist_and_are_small():
    pictures = [line.split("(")[1].rstrip(")") for line in PAGE.splitlines() if line.startswith("![")]
    assert sorted(pictures) == sorted(path.name for path in DOCS.glob("*.png"))
    assert all((DOCS / name).stat().st_size < 200_000 for name in pictures)


def test_results_that_contradict_the_page_are_refused():
    other = json.loads(json.dumps(RECORDED))
    other["sentences"]["rive"]["looked_at"][0][0] = "the"
    with pytest.raises(RunError, match="rive looks at bank most"):
        check(other)


@pytest.mark.slow
def test_the_page_can_be_generated_for_another_network(run, tmp_path):
    """The claims of the page hold for a network trained here, although its numbers may differ.

    A machine that adds in another order may train a network that contradicts a claim; then the command names the claim.
    """
    workdir = tmp_path / "tiny"
    done = run("train.py", "--config", "configs/tiny.toml", "--workdir", workdir, timeout=2 * 3600)
    assert done.returncode == 0, done.stderr
    done = run("docs/attention.py", "--workdir", workdir, "--folder", tmp_path)
    if done.returncode:
        assert re.search(r"this network does not do what the page says: [\w ]+$", done.stderr.strip()), done.stderr
        assert not list(tmp_path.glob("attention.*"))
        return
    written = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    assert written.keys() == RECORDED.keys()
    assert (tmp_path / "attention.md").read_text(encoding="utf-8") == page(written)
    assert {path.name for path in DOCS.glob("*.png")} == {path.name for path in tmp_path.glob("*.png")}
