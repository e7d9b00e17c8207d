# make demo   runs the main job on the embedded simulated cluster (own venv, no Kubernetes needed)
# make test   runs every suite (own venv; builds a real control plane once into a cache)
# make check  lint, types, layers and unit tests, in under a minute
# make full   the long suites with the whole numbers that are promised (hours)
# make explore  the random tests with new seeds and in a new order, once more at full effort
# make lock   pins what the image installs, to the hash, in .ci/; after a change of dependencies
# make lowest unit tests with the oldest dependencies that pyproject.toml allows
# make sbom   what is installed, as CycloneDX (an image tells it, too: docker run IMAGE version --sbom)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
EFFORT ?= 0.2
# every process the tests start would compile the package again without its bytecode
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv venv-run demo test check explore full lint unit controlplane bench wheel lock sbom lowest clean

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
	@DEFRAGD_EFFORT=$(EFFORT) $(BIN)/pytest -q -n 3 -m "not slow and not controlplane" tests

# both at once: types are checked on one core while the tests share the other
check: venv
	@$(MAKE) --no-print-directory -j2 -Oline lint unit

explore: venv
	@DEFRAGD_EXPLORE=1 $(BIN)/pytest -q -n 2 -m "not controlplane" tests $(ARGS)

test: check controlplane
	@$(BIN)/python -m tests.require $(ARGS)

full: venv controlplane
	@DEFRAGD_FULL=1 $(BIN)/python -m tests.require $(ARGS)

bench: venv
	@$(BIN)/python -m tests.bench $(ARGS)

lock: UV = $(VENV)-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
lock:
	@test -x $(VENV)-lock/bin/uv || { $(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet uv; }
	@$(UV) pyproject.toml -o .ci/requirements.lock
	@echo hatchling | $(UV) - -o .ci/build.lock

sbom: venv-run
	@mkdir -p dist && $(BIN)/defragd version --sbom > dist/sbom.cdx.json && echo dist/sbom.cdx.json

lowest:
	@test -x $(VENV)-lock/bin/uv || { $(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet uv; }
	@$(PYTHON) -m venv --clear $(VENV)-lowest
	@$(VENV)-lock/bin/uv pip compile --quiet --resolution lowest-direct pyproject.toml -o $(VENV)-lowest/lowest.txt
	@$(VENV)-lowest/bin/python -m pip install --quiet -r $(VENV)-lowest/lowest.txt
	@$(VENV)-lowest/bin/python -m pip install --quiet -c $(VENV)-lowest/lowest.txt -e '.[dev]'
	@DEFRAGD_EFFORT=$(EFFORT) $(VENV)-lowest/bin/python -m pytest -q -n 3 -m "not slow and not controlplane" tests/unit

wheel: venv
	@$(BIN)/python -m pip wheel --quiet --no-deps -w dist .

clean:
	rm -rf $(VENV) $(VENV)-lock $(VENV)-lowest dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
