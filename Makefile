# `make train` and `make test` do their own set-up. Torch comes first and pinned, so that nothing
# else pulls another build; see scripts/setup.sh.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-slow lint format wheel clean

train: $(VENV)/.core
	@$(BIN)/penstock train examples/stdlib.toml

test: $(VENV)/.dev
	$(BIN)/python -m pytest

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m "slow and not gpu"

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(VENV)/.dev
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# Stamps: a second `make` with unchanged requirements installs nothing.
$(VENV)/.core: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV) ""
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV) "[dev]"
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) build dist src/*.egg-info
