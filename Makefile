# Every command here works from a fresh clone; the environment is made at first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests at a time: some start several processes of their own, so more than the cores gain nothing.
JOBS ?= 2
# A machine with several Pythons: take the one that is supported.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))

.PHONY: demo test quick lint types env clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@for tool in g++ make cmake; do command -v $$tool >/dev/null || { \
	    echo "error: $$tool is missing: apt-get install g++ make cmake" >&2; exit 1; }; done
	@$(PYTHON) -c '$(SUPPORTED)' || { \
	    echo "error: $(PYTHON) is not Python 3.11 or 3.12: set PYTHON, for example make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: $(PYTHON) cannot make environments: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[dev]' -c constraints.txt
	@touch $@

demo: $(STAMP)  ## tune the smallest case on the embedded worker: default against tuned
	$(BIN)/pfatune tune --case pfa_fp8_b2_s1_1_s2_1k --trials 16

test: lint types  ## everything
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile

quick: lint  ## the tests that need neither compiler nor torch nor half a second, with fewer examples
	$(BIN)/python -m pytest -m 'not sim and not torch and not slow' --hypothesis-profile quick \
	    --numprocesses $(JOBS) --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Over the installed wheel: what a user of the package would see.
types: $(STAMP)
	@rm -rf build/types && mkdir -p build/types
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/types .
	$(BIN)/python -m pip install --quiet --no-deps --target build/types/site build/types/*.whl
	cd build/types/site && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p pfatune

clean:
	rm -rf $(VENV) build *.egg-info
