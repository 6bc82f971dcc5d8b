# The commands of this project; CMake does the building.
PRESET ?= release
BUILD := build/$(PRESET)

.PHONY: deps build test demo bench format lint

deps:
	@./cmake/deps.sh

build: deps
	@cmake --preset $(PRESET)
	@cmake --build --preset $(PRESET)

test: build
	@ctest --preset $(PRESET)

demo: build
	@third_party/venv/bin/python examples/demo.py --build $(BUILD)

bench: build
	@third_party/venv/bin/python tests/bench/bench.py --build $(BUILD)

# Debian 12's clang-format 14, by which make lint checks.
format:
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

lint: build
	@./cmake/lint.sh $(BUILD)
