# Python 3.11 or newer and make are enough: everything else comes from PyPI, pinned in requirements.lock.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
unexport PYTHONDONTWRITEBYTECODE  # or each of some hundred processes of the tests compiles every module

.PHONY: help demo test slow lint types bench docs lock clean
help:           ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned dependencies into $(VENV)"
# uv takes a third of the time; pip, which knows its own settings, is asked where uv finds nothing.
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock >$(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --require-hashes -r $(VENV)/uv.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock \
	  || $(BIN)/python -m pip install --quiet --use-pep517 --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'from penstock.capture.decoder import warm_up; warm_up()'
	@touch $@

demo: $(READY)  ## an embedded PostgreSQL with a live shop, delivered to files
	@$(BIN)/penstock demo $(ARGS)

test: $(READY)  ## the tests, on real servers
	@$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

slow: $(READY)  ## the long runs
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(ARGS)

lint: $(READY)  ## format and check
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/lint-imports --no-cache && $(BIN)/python .ci/rooms.py

types: $(READY) ## mypy, strict
	@$(BIN)/mypy

bench: $(READY) ## all benchmarks; one: .venv/bin/python -m bench NAME [--json] [--rows N]
	@$(BIN)/python -m bench $(ARGS)

docs: $(READY)  ## the documentation, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "site/index.html"

lock: $(READY)  ## pin anew what pyproject.toml asks for
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header \
	  --python-version 3.11 --all-extras --output-file requirements.lock pyproject.toml $(ARGS)
	@for what in 'requirements --extra spark pyproject.toml' build; do set -- $$what; name=$$1; shift; \
	  $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --python-version 3.11 \
	    --constraint requirements.lock --output-file deploy/$$name.lock "$$@" deploy/$$name.in; done

clean:          ## remove the virtual environment and what runs left behind
	@rm -rf $(VENV) site .penstock .pytest_cache .mypy_cache .ruff_cache .hypothesis
