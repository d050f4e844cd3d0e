"""The course, docs/understanding/*.ipynb: its numbers by hand, its code, links and exercises, and what it says."""

import ast
import json
import re
import shutil

import pytest

from docs import renew_outputs
from notebooks.execute import execute, read_notebook
from tests.conftest import ROOT

COURSE = ROOT / "docs" / "understanding"
PAGES = [path.stem for path in renew_outputs.COURSE]
NUMBER = re.compile(r"-?\b\d+\.(\d+)|-?inf")
LINK = re.compile(r"\[`([^`]+)`\]\(https://github.com/lingua-flax/lingua-flax/blob/main/([\w/]+\.py)#L(\d+)\)")


def cells(page: str, kind: str = "code") -> list:
    return [cell for cell in read_notebook(COURSE / f"{page}.ipynb").cells if cell.cell_type == kind]


def printed(cell) -> str:
    """Returns what a cell prints, or displays as text."""
    return "".join(output.text if "text" in output else f"{output.data['text/plain']}\n" for output in cell.outputs)


def numbers(text: str, units: float = 0.51) -> list[list]:
    """Returns the numbers with decimals in each line that has any, to be compared up to units of the last digit."""
    rows = [
        [pytest.approx(float(found[0]), abs=units * 10 ** -len(found[1] or "")) for found in NUMBER.finditer(line)]
        for line in text.splitlines()
    ]
    return [row for row in rows if row]


@pytest.fixture
def as_in_the_course(monkeypatch):
    """Lets cells import course.py, as notebooks in its folder do."""
    monkeypatch.syspath_prepend(COURSE)
    monkeypatch.chdir(COURSE)


@pytest.mark.parametrize("page", PAGES)
def test_outputs_are_stored_without_warnings_and_match_the_code(page, as_in_the_course, capsys):
    """Cells that need a network only have their imports checked; a slow test runs them."""
    namespace = {}
    for cell in cells(page):
        assert cell.execution_count, cell.id
        for output in cell.outputs:
            assert output.output_type != "error", cell.id
            assert output.get("name") != "stderr", cell.id
        if "network" in cell.metadata.get("tags", []):
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    exec(ast.unparse(node), {})
            continue
        exec(compile(cell.source, cell.id, "exec"), namespace)
        out, stored = capsys.readouterr().out, printed(cell)
        found = [[float(number[0]) for number in NUMBER.finditer(line)] for line in out.splitlines()]
        assert [row for row in found if row] == numbers(stored, 1.01), cell.id
        words = [[NUMBER.sub("", line).split() for line in text.splitlines()] for text in (out, stored)]
        assert words[0] == words[1], cell.id


EXAMPLES = json.loads((ROOT / "tests" / "worked_examples.json").read_text("utf-8"))
HEADS = EXAMPLES["multi_head_the_cat_sat"]["heads"]
STEPS = EXAMPLES["cross_attention_le_chat_mange"]["steps"]
CONTEXTS = [step["context"] for step in STEPS]
SCALING = EXAMPLES["scaling"]


def rows(example: str, *names: str) -> list[list[float]]:
    """Returns the rows of matrices of an example, worked by hand; a vector is one row."""
    found = [EXAMPLES[example][name] for name in names]
    return [row for matrix in found for row in (matrix if isinstance(matrix[0], list) else [matrix])]


WORKED: dict[str, dict[str, list]] = {
    "1": {
        "vectors-x": rows("parameter_free_self_attention", "X"),
        "softmax-four": rows("softmax", "weights"),
        # The exponentials of 3, 1 and -2, and their sum.
        "softmax-steps": [[3, 1, -2], [20.0855, 2.7183, 0.1353], [0.8756, 0.1185, 0.0059], [22.9392]],
        "weighted-weights": rows("parameter_free_self_attention", "weights"),
        "weighted-contexts": rows("parameter_free_self_attention", "output"),
        "product": rows("parameter_free_self_attention", "weights", "output"),
    },
    "2": {
        "queries-qkv": rows("self_attention_i_play_football", "Q", "K", "V"),
        "scores-table": rows("self_attention_i_play_football", "scores"),
        "scaled-table": rows("self_attention_i_play_football", "scaled"),
        "weights-table": rows("self_attention_i_play_football", "weights"),
        "output-table": rows("self_attention_i_play_football", "output"),
        "product": rows("self_attention_i_play_football", "weights", "output"),
        "eats-weights": rows("self_attention_the_cat_eats_fish", "weights"),
        "eats-output": rows("self_attention_the_cat_eats_fish", "output"),
        "root-table": [
            SCALING["scores"],
            *rows("scaling", "unscaled", "jacobian_diagonal_unscaled"),
            [score / 2 for score in SCALING["scores"]],
            *rows("scaling", "halved", "jacobian_diagonal_halved"),
        ],
    },
    "3": {
        "infinity-weights": rows("masked_self_attention_write_a_poem", "weights"),
        "infinity-product": rows("masked_self_attention_write_a_poem", "weights"),
    },
    "4": {
        "two-matrices": [head["Q"][word] + head["K"][word] + head["V"][word] for head in HEADS for word in range(3)],
        "two-scores": HEADS[0]["scaled"] + HEADS[1]["scaled"],
        "two-weights": HEADS[0]["weights"] + HEADS[1]["weights"],
        "concatenated": rows("multi_head_the_cat_sat", "concatenated"),
        "output": rows("multi_head_the_cat_sat", "output"),
        "product": rows("multi_head_the_cat_sat", "output"),
    },
    "5": {
        "cross-contexts": [step["weights"] for step in STEPS] + CONTEXTS,
        "cross-product": CONTEXTS,
        # Each position has a stream of its own: the example's is right for the first word only.
        "stream-added": [
            STEPS[0]["hidden_after_residual"],
            *([0.1 + number for number in context] for context in CONTEXTS[1:]),
        ],
        "norm-rows": rows("layer_norm", "normalized"),
        "norm-product": rows("layer_norm", "normalized"),
        "positions-table": rows("positional_encoding_i_am_a_robot", "table"),
        "positions-product": rows("positional_encoding_i_am_a_robot", "table"),
    },
    "6": {"loss-hand": [*rows("softmax", "weights"), [0.1719, 3.1719, 6.1719, 2.1719]]},
    "7": {
        "step-loss": [[5, 2, -1, 3], *rows("softmax", "weights"), [3.1719]],
        "step-gradient": [row * 2 for row in rows("training_step", "gradient")] + rows("training_step", "of_h") * 2,
        "step-update": rows("training_step", "updated", "logits", "probabilities", "loss"),
        "step-adam": rows("training_step", "signs"),
    },
}


@pytest.mark.parametrize("page", [page for page in PAGES if page[0] in WORKED])
def test_numbers_equal_those_worked_by_hand(page):
    texts = {cell.id: printed(cell) for cell in cells(page)}
    for cell, expected in WORKED[page[0]].items():
        assert expected == numbers(texts[cell]), cell


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_the_lines_that_they_quote(page):
    links = LINK.findall("\n".join(cell.source for cell in cells(page, "markdown")))
    assert len(links) == (COURSE / f"{page}.ipynb").read_text("utf-8").count("/blob/main/") > 0
    assert any(file.startswith("model/") for _, file, _ in links)
    for quoted, file, line in links:
        assert quoted in (ROOT / file).read_text("utf-8").splitlines()[int(line) - 1], (quoted, file)


def test_three_exercises_have_the_right_answers():
    """What a reader works out without a computer, or with a pocket calculator."""
    answers = {
        "1": ["0.25, 0.25, 0.5", "2.1972", "0.25, 0.25, 0.25, 0.25"],
        "2": ["0.9833, 0.2167", "2", "0.25"],
        "3": ["21", "25", "0.5, 0.5, 0"],
        "4": ["1048576", "1048576", "2.8426"],
        "5": ["-1, 1", "1.55, 1.25, 1.25", "62.8319"],
        "6": ["1.3863", "0.102", "une"],
        "7": ["0.0838", "0.8", "1"],
    }
    for page in PAGES:
        last = cells(page)[-6:]
        assert [cell.id for cell in last] == [f"{kind}-{n}" for n in (1, 2, 3) for kind in ("exercise", "answer")]
        assert all(cell.source.startswith("mine = None  # ") for cell in last[::2])
        assert [printed(cell) for cell in last[1::2]] == [f"{answer}\n" for answer in answers[page[0]]]
        for cell in last[1::2]:  # the answer is folded, and so is the code that computes it
            assert cell.outputs[0].data["text/html"].startswith("<details><summary>the answer</summary>")
            assert cell.source.startswith("# @title Answer\n")
            assert cell.metadata == {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["hide-input"]}


@pytest.mark.slow
def test_course_holds_for_networks_trained_here(run, tmp_path):
    """Hidden cells check what the text says about the networks."""
    workdir = tmp_path / "checkpoints" / "tiny"
    assert run("train", "--config", "configs/tiny.toml", "--workdir", workdir, timeout=2 * 3600).returncode == 0
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    folder = shutil.copytree(COURSE, tmp_path / "docs" / "understanding")
    for page in PAGES:
        environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        executed = execute(read_notebook(folder / f"{page}.ipynb"), folder, environment)
        assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code"), page
        outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
        assert not [output for output in outputs if output.get("name") == "stderr"], page
