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
EXAMPLES = json.loads((ROOT / "tests" / "worked_examples.json").read_text("utf-8"))
NUMBER = re.compile(r"-?\b\d+\.(\d+)|-?inf")
LINK = re.compile(r"\[`([^`]+)`\]\(https://github.com/lingua-flax/lingua-flax/blob/main/([\w/]+\.py)#L(\d+)\)")


def code_cells(page: str) -> list:
    return [cell for cell in read_notebook(COURSE / f"{page}.ipynb").cells if cell.cell_type == "code"]


def needs_network(cell) -> bool:
    return "network" in cell.metadata.get("tags", [])


def printed(cell) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


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


def test_course_has_seven_short_pages():
    assert [page[0] for page in PAGES] == list("1234567")
    for page in PAGES:
        cells = read_notebook(COURSE / f"{page}.ipynb").cells
        assert sum(len(cell.source.splitlines()) for cell in cells) < 250, page


@pytest.mark.parametrize("page", PAGES)
def test_outputs_are_stored_without_warnings(page):
    assert all(cell.execution_count for cell in code_cells(page))
    outputs = [output for cell in code_cells(page) for output in cell.outputs]
    assert len(outputs) > 5
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@pytest.mark.parametrize("page", PAGES)
def test_cells_import_what_exists(page, as_in_the_course):
    """In all cells, also in those that only a slow test runs."""
    statements = [node for cell in code_cells(page) for node in ast.parse(cell.source).body]
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    for node in imports:
        exec(ast.unparse(node), {})


@pytest.mark.parametrize("page", PAGES)
def test_outputs_match_the_code(page, as_in_the_course, capsys):
    """In the cells that need no network."""
    namespace: dict = {}
    for cell in code_cells(page):
        if not needs_network(cell):
            exec(compile(cell.source, cell.id, "exec"), namespace)
            out, stored = capsys.readouterr().out, printed(cell)
            found = [[float(number[0]) for number in NUMBER.finditer(line)] for line in out.splitlines()]
            assert [row for row in found if row] == numbers(stored, 1.01), cell.id
            assert [NUMBER.sub("", line).split() for line in out.splitlines()] == [
                NUMBER.sub("", line).split() for line in stored.splitlines()
            ], cell.id


def contexts(worked: dict) -> list:
    return [step["context"] for step in worked["steps"]]


@pytest.mark.parametrize(
    ("page", "cell", "example", "expected"),
    [
        ("1", "vectors-x", "parameter_free_self_attention", lambda worked: worked["X"]),
        ("1", "softmax-four", "softmax", lambda worked: [worked["weights"]]),
        ("1", "weighted-weights", "parameter_free_self_attention", lambda worked: worked["weights"]),
        ("1", "weighted-contexts", "parameter_free_self_attention", lambda worked: worked["output"]),
        ("1", "product", "parameter_free_self_attention", lambda worked: worked["weights"] + worked["output"]),
        ("2", "queries-qkv", "self_attention_i_play_football", lambda worked: worked["Q"] + worked["K"] + worked["V"]),
        ("2", "scores-table", "self_attention_i_play_football", lambda worked: worked["scores"]),
        ("2", "scaled-table", "self_attention_i_play_football", lambda worked: worked["scaled"]),
        ("2", "weights-table", "self_attention_i_play_football", lambda worked: worked["weights"]),
        ("2", "output-table", "self_attention_i_play_football", lambda worked: worked["output"]),
        ("2", "product", "self_attention_i_play_football", lambda worked: worked["weights"] + worked["output"]),
        ("2", "eats-weights", "self_attention_the_cat_eats_fish", lambda worked: worked["weights"]),
        ("2", "eats-output", "self_attention_the_cat_eats_fish", lambda worked: worked["output"]),
        (
            "2",
            "root-table",
            "scaling",
            lambda worked: [
                row
                for divisor, kind in ((1, "unscaled"), (2, "halved"))
                for row in (
                    [score / divisor for score in worked["scores"]],
                    worked[kind],
                    worked[f"jacobian_diagonal_{kind}"],
                )
            ],
        ),
        ("3", "infinity-weights", "masked_self_attention_write_a_poem", lambda worked: worked["weights"]),
        ("3", "infinity-product", "masked_self_attention_write_a_poem", lambda worked: worked["weights"]),
        (
            "4",
            "two-matrices",
            "multi_head_the_cat_sat",
            lambda worked: [
                [number for name in "QKV" for number in head[name][word]]
                for head in worked["heads"]
                for word in range(3)
            ],
        ),
        (
            "4",
            "two-scores",
            "multi_head_the_cat_sat",
            lambda worked: [row for head in worked["heads"] for row in head["scaled"]],
        ),
        (
            "4",
            "two-weights",
            "multi_head_the_cat_sat",
            lambda worked: [row for head in worked["heads"] for row in head["weights"]],
        ),
        ("4", "concatenated", "multi_head_the_cat_sat", lambda worked: worked["concatenated"]),
        ("4", "output", "multi_head_the_cat_sat", lambda worked: worked["output"]),
        ("4", "product", "multi_head_the_cat_sat", lambda worked: worked["output"]),
        (
            "5",
            "cross-contexts",
            "cross_attention_le_chat_mange",
            lambda worked: [step["weights"] for step in worked["steps"]] + contexts(worked),
        ),
        ("5", "cross-product", "cross_attention_le_chat_mange", contexts),
        (
            "5",
            "stream-added",  # each position has a stream of its own: the example's is right for the first word only
            "cross_attention_le_chat_mange",
            lambda worked: [
                worked["steps"][0]["hidden_after_residual"],
                *([0.1 + number for number in context] for context in contexts(worked)[1:]),
            ],
        ),
        ("5", "norm-rows", "layer_norm", lambda worked: worked["normalized"]),
        ("5", "norm-product", "layer_norm", lambda worked: worked["normalized"]),
        ("5", "positions-table", "positional_encoding_i_am_a_robot", lambda worked: worked["table"]),
        ("5", "positions-product", "positional_encoding_i_am_a_robot", lambda worked: worked["table"]),
        ("6", "loss-hand", "softmax", lambda worked: [worked["weights"], [0.1719, 3.1719, 6.1719, 2.1719]]),
    ],
)
def test_numbers_equal_those_worked_by_hand(page, cell, example, expected):
    (text,) = [printed(found) for name in PAGES if name[0] == page for found in code_cells(name) if found.id == cell]
    assert expected(EXAMPLES[example]) == numbers(text)


def test_softmax_of_three_scores():
    """By hand: the exponentials of 3, 1 and -2 are 20.0855, 2.7183 and 0.1353, and their sum is 22.9391."""
    (text,) = [printed(cell) for cell in code_cells(PAGES[0]) if cell.id == "softmax-steps"]
    assert numbers(text) == [
        [3, 1, -2],
        [20.0855, 2.7183, 0.1353],
        [20.0855 / 22.9391, 2.7183 / 22.9391, 0.1353 / 22.9391],
        [22.9392],
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_the_lines_that_they_quote(page):
    text = (COURSE / f"{page}.ipynb").read_text("utf-8")
    cells = [cell.source for cell in read_notebook(COURSE / f"{page}.ipynb").cells if cell.cell_type == "markdown"]
    links = LINK.findall("\n".join(cells))
    assert len(links) == text.count("/blob/main/") > 0
    assert any(file.startswith("model/") for _, file, _ in links)
    for quoted, file, line in links:
        assert quoted in (ROOT / file).read_text("utf-8").splitlines()[int(line) - 1], (quoted, file)


# What a reader works out without a computer, or with a pocket calculator.
ANSWERS = {
    "1": ["0.25, 0.25, 0.5", "2.1972", "0.25, 0.25, 0.25, 0.25"],
    "2": ["0.9833, 0.2167", "2", "0.25"],
    "3": ["21", "25", "0.5, 0.5, 0"],
    "4": ["1048576", "1048576", "2.8426"],
    "5": ["-1, 1", "1.55, 1.25, 1.25", "62.8319"],
    "6": ["1.3863", "0.102", "une"],
    "7": ["7.824", "1.5", "1"],
}


@pytest.mark.parametrize("page", PAGES)
def test_three_exercises_have_the_right_answers(page):
    cells = code_cells(page)[-6:]
    assert [cell.id for cell in cells] == [f"{kind}-{n}" for n in (1, 2, 3) for kind in ("exercise", "answer")]
    assert all(cell.source.startswith("mine = None  # ") for cell in cells[::2])
    assert [printed(cell) for cell in cells[1::2]] == [f"the answer: {answer}\n" for answer in ANSWERS[page[0]]]


def test_answers_are_checked(as_in_the_course, capsys):
    from course import check

    for mine, answer in [([0.33, 0.67], [1 / 3, 2 / 3]), (2.2, 2.1972), (21, 21), ("une", "une")]:
        check(mine, answer)
        assert capsys.readouterr().out == "right\n", mine
    for mine, answer in [([0.33, 0.66], [1 / 3, 2 / 3]), (2.1, 2.1972), ([21], 21), (20, 21), ("la", "une")]:
        check(mine, answer)
        assert capsys.readouterr().out == "not yet\n", mine


@pytest.mark.slow
def test_course_holds_for_networks_trained_here(run, tmp_path):
    """Hidden cells check what the text says about the networks."""
    workdir = tmp_path / "checkpoints" / "tiny"
    assert run("train", "--config", "configs/tiny.toml", "--workdir", workdir, timeout=2 * 3600).returncode == 0
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    folder = shutil.copytree(COURSE, tmp_path / "docs" / "understanding")
    for page in PAGES:
        executed = execute(
            read_notebook(folder / f"{page}.ipynb"), folder, {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        )
        assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code"), page
        outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
        assert not [output for output in outputs if output.get("name") == "stderr"], page
