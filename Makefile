# Targets first install what they need: in a fresh clone, `make train` and `make test` work right away.

PYTHON ?= python3
BIN := .venv/bin
PAGE := lingua_flax/page/static
SCRIPTS := $(PAGE) lingua_flax/export/browser
WORKDIR ?= checkpoints/tiny
SHIPPED := checkpoints/phrasebook
CONFIG ?= configs/tiny.toml
KILLS ?= 5
# Versions to install; empty for the newest ones that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
# pip is silent while it unpacks hundreds of megabytes: meanwhile, a dot every five seconds.
define INSTALL
@echo "installing $(1) into .venv: one to five minutes"
@(while sleep 5 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do printf .; done) & \
  $(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable '$(1)'; \
  status=$$?; kill $$!; echo; exit $$status
endef
# Of two cores, two processes leave a quarter idle; four need 7 GB. loadfile: the tests of a file share fixtures. The
# order stays, because otherwise files with a single long test come last.
TESTS_AT_ONCE ?= --numprocesses 4 --dist loadfile --no-loadscope-reorder

# Otherwise make deletes these files, which only other targets depend on.
.SECONDARY: .venv/installed-test .venv/installed-serve .venv/installed-docs .venv/installed-export
.PHONY: train phrasebook serve verify-resume docs docs-outputs pictures notebook lint test test-all coverage mutants lines install clean

install: .venv/installed

.venv/installed: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call INSTALL,.)
	touch $@

.venv/installed-%: .venv/installed
	$(call INSTALL,.[$*])
	touch $@

train: install
	$(BIN)/lingua-flax train --config configs/tiny.toml --workdir $(WORKDIR)
	$(BIN)/lingua-flax evaluate --workdir $(WORKDIR)
	$(BIN)/lingua-flax evaluate --workdir $(WORKDIR) --split contrast
	@printf 'I deposited my paycheck at the bank yesterday.\n' | $(BIN)/lingua-flax translate --workdir $(WORKDIR)
	@printf 'I swam across the river to get to the other bank.\n' \
	  | $(BIN)/lingua-flax translate --workdir $(WORKDIR) --attention $(WORKDIR)/attention.png

# Renews the network that is shipped from the run of `make train`: at most once an issue, since each adds 2.5 MB to the
# history.
phrasebook: train .venv/installed-export
	rm -rf $(SHIPPED)
	$(BIN)/lingua-flax evaluate --workdir $(WORKDIR) --json $(WORKDIR)/scores.json
	$(BIN)/lingua-flax export --workdir $(WORKDIR) --format workdir --output $(SHIPPED) --scores $(WORKDIR)/scores.json
	$(BIN)/lingua-flax evaluate --workdir $(SHIPPED) --json $(SHIPPED)/test.json
	$(BIN)/lingua-flax evaluate --workdir $(SHIPPED) --split contrast --json $(SHIPPED)/contrast.json
	printf 'Made by `make phrasebook` at commit %s. The files of the network have their digests in `manifest.json`.\n' \
	  "$$(git rev-parse --short HEAD)" > $(SHIPPED)/ORIGIN.md

serve: .venv/installed-serve
	$(BIN)/lingua-flax serve --workdir $(WORKDIR)

verify-resume: install
	$(BIN)/lingua-flax verify-resume --config $(CONFIG) --kills $(KILLS)

docs: .venv/installed-docs
	JAX_PLATFORMS=cpu $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html
	rm -f docs/_build/html/translator.html
	$(BIN)/lingua-flax export --workdir $(SHIPPED) --format html --output docs/_build/html/translator.html
	@echo "the documentation is in docs/_build/html/index.html"

docs-outputs: .venv/installed-test
	$(BIN)/python -m docs.renew_outputs

pictures: .venv/installed-test
	mkdir -p build/pictures
	LINGUA_PICTURES=$(abspath build/pictures) \
	  $(BIN)/python -m pytest tests/serving/test_page.py -k "accessible or one_screen or tour"
	cp build/pictures/weight-1400.png docs/pictures/page.png

notebook: .venv/installed-test
	$(BIN)/python -m notebooks.execute

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/deno fmt --quiet --config $(PAGE)/deno.json --check $(SCRIPTS)
	$(BIN)/deno lint --quiet $(SCRIPTS)
	$(BIN)/deno check --quiet --config $(PAGE)/deno.json $(addsuffix /*.js,$(SCRIPTS))

test: lint
	$(BIN)/python -m pytest $(TESTS_AT_ONCE)

test-all: lint
	$(BIN)/python -m pytest $(TESTS_AT_ONCE) -m 'slow or not slow'

coverage: .venv/installed-test
	$(BIN)/coverage erase
	status=0; $(BIN)/coverage run -m pytest $(TESTS_AT_ONCE) || status=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

mutants: .venv/installed-test
	$(BIN)/python -m tests.mutants

lines:
	@$(or $(wildcard $(BIN)/python),$(PYTHON)) tests/lines.py

clean:
	rm -rf .venv build *.egg-info
