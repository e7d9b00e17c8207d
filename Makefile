# make demo   runs the main job on the embedded simulated cluster (own venv, no Kubernetes needed)
# make test   runs every suite (own venv; builds a real control plane once into a cache)
# make check  lint, types, layers and unit tests, in under a minute
# make explore  the random tests with new seeds and in a new order, once more at full effort
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
EFFORT ?= 0.2
# every process the tests start would compile the package again without its bytecode
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv venv-run demo test check explore lint unit controlplane bench wheel clean

help:
	@sed -n 's/^# //p' $(firstword $(MAKEFILE_LIST))

$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "defragd needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing defragd into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run pyproject.toml
	@echo "installing the test tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

venv-run: $(VENV)/.run
venv: $(VENV)/.dev

demo: venv-run
	@$(BIN)/defragd demo $(ARGS)

controlplane: venv
	@$(BIN)/python -m tests.ground.build

lint: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: venv
	@DEFRAGD_EFFORT=$(EFFORT) $(BIN)/pytest -q -n 2 -m "not slow and not controlplane" tests

# both at once: types are checked on one core while the tests share the other
check: venv
	@$(MAKE) --no-print-directory -j2 -Oline lint unit

explore: venv
	@DEFRAGD_EXPLORE=1 $(BIN)/pytest -q -n 2 -m "not controlplane" tests $(ARGS)

test: check controlplane
	@$(BIN)/python -m tests.require $(ARGS)

bench: venv
	@$(BIN)/python -m tests.bench $(ARGS)

wheel: venv
	@$(BIN)/python -m pip wheel --quiet --no-deps -w dist .

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
