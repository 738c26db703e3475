# make demo    a real model answers (PROMPT='...')          make lint    ruff and mypy
#              MODEL=mini: the small one of this repository, which needs no network
# make test    lint, then every test                        make bench   prompt and generation speed
# make kernels-all   every GPU kernel for every architecture, without a GPU
# make build   only install into .venv                      make clean   remove what these made
#
# Each step leaves a stamp in .venv and is done again only when something it depends on has changed.

PYTHON ?= python3
MODEL ?= smollm2
FETCHED := .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
ifeq ($(MODEL),mini)
FILE := models/strata-mini/strata-mini.gguf
PROMPT ?= What does “hacker” mean?
SAMPLING := --temperature 0.7 --top-p 0.9 --seed 1
else
FILE := $(FETCHED)
PROMPT ?= Why is the sky blue? Answer in two sentences.
endif
CHAT := <|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
NATIVE := pyproject.toml CMakeLists.txt $(shell find native -type f)

# An isolated build brings its own tools and starts from nothing. Once the developers' tools are in .venv, only what
# has changed is compiled.
ISOLATION = $(if $(wildcard .venv/.dev),--no-build-isolation)

# A process a processor tests already, and BLAS's own threads spin while they wait. Where Python is told to keep no bytecode,
# each of hundreds of processes would compile the package again.
TEST_ENV := OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: kernels-all demo test lint bench build clean

demo: build $(FILE)
	@printf '> %s\n' "$(PROMPT)"
	@printf '$(CHAT)' "$(PROMPT)" | $(BIN)/strata run --model $(FILE) --max-tokens 128 $(SAMPLING) -

test: lint $(FETCHED)
	$(TEST_ENV) $(BIN)/pytest --numprocesses auto --dist worksteal

lint: build .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

bench: build $(FILE)
	$(BIN)/strata benchmark --model $(FILE) --prompt-len 512 --gen-len 128

build: .venv/.built

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Strata needs Python 3.11 or newer: make PYTHON=python3.12")'
	@command -v $${CXX:-c++} > /dev/null || { echo "Strata needs a C++20 compiler: install g++ or clang, or set CXX"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

# Editable: Python sources are used where they lie, so only native changes need another build.
.venv/.built: .venv/.python $(NATIVE)
	$(PIP) install $(ISOLATION) --editable .
	@touch $@

# The build tools come from pyproject.toml too, so that a list stands in one place.
.venv/.dev: .venv/.built pyproject.toml
	$(BIN)/python scripts/requirements.py > .venv/dev.txt
	$(PIP) install --requirement .venv/dev.txt
	@touch $@

$(FETCHED): scripts/fetch_model.py | build
	$(BIN)/python scripts/fetch_model.py
	@touch $@

kernels-all: .venv/.dev
	PYTHONPATH=tests/emulate $(BIN)/python scripts/compile_kernels.py

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
