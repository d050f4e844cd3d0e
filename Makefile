# Everything sets itself up first: `make train` and `make test` are all that a fresh clone needs.

PYTHON ?= python3
BIN := .venv/bin
WORKDIR ?= checkpoints/tiny

.PHONY: train test test-all install clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable . --constraint constraints.txt
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[test]' --constraint constraints.txt
	touch $@

train: install
	$(BIN)/python train.py --config configs/tiny.toml --workdir $(WORKDIR)
	$(BIN)/python evaluate.py --workdir $(WORKDIR)
	$(BIN)/python evaluate.py --workdir $(WORKDIR) --split contrast
	@printf '\nI deposited my paycheck at the bank yesterday.\nI swam across the river to get to the other bank.\n' \
	  | $(BIN)/python translate.py --workdir $(WORKDIR)

test: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-all: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m 'slow or not slow'

clean:
	rm -rf .venv build *.egg-info
