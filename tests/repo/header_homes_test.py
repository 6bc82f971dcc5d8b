"""Where headers of libraries may be included, what the folders that only decide are free of, and which containers stand
where strangers name things."""

import re

import source_tree

_TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
_GRPC = re.compile(r"(grpc|grpcpp|grpc\+\+)/|.*\.grpc\.pb\.h$")
_CUDA = re.compile(r"(cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvml|nvtx)|.*/cuda/|.*/nccl")
_SQLITE = re.compile(r"sqlite3(ext)?\.h$")
_C10D = re.compile(r"torch/csrc/distributed/|gloo/")
_ABSL_LOCKS = re.compile(r"absl/synchronization/mutex\.h$")  # which TSan does not see: common/base/mutex.h says why
_THREADS = re.compile(r"(thread|mutex|shared_mutex|condition_variable|future|atomic|semaphore|barrier|latch|stop_token|"
                      r"pthread\.h)$|absl/synchronization/")
_CLOCKS = re.compile(r"(chrono|ctime|time\.h|sys/time\.h|absl/time/clock\.h|common/base/clock\.h)$")

# name, which headers, where they may be included
_HOMES = (
    ("LibTorch", _TORCH, re.compile(r"(worker|tests)/")),
    ("gRPC", _GRPC, re.compile(r"(server|worker|common)/rpc/|client/|tests/")),
    ("CUDA or NCCL", _CUDA, re.compile(r"worker/(parallel|memory|backend)/|tests/")),
    ("SQLite", _SQLITE, re.compile(r"(tests/)?server/store/")),
    ("c10d or Gloo", _C10D, re.compile(r"(tests/)?worker/parallel/")),
    ("absl::Mutex", _ABSL_LOCKS, re.compile(r"(?!)")),
)
_PURE_FOLDERS = ("common/admission/", "common/cost/", "server/protocol/", "server/planner/", "worker/schedule/", "worker/memory/residency/")
_NOT_PURE = (("LibTorch", _TORCH), ("gRPC", _GRPC), ("threads", _THREADS), ("a clock", _CLOCKS))


def strays(tree):
    return [f"{path}:{number}: {name} has no place here: {line}"
            for path, text in tree.items() if source_tree.is_cpp(path)
            for number, included, line in source_tree.includes(text)
            for name, headers, home in _HOMES if headers.match(included) and not home.match(path)]


def impure(tree):
    """Offences in the folders that only decide, and in every header of ours that they read."""
    todo = [p for p in tree if source_tree.is_cpp(p) and p.startswith(_PURE_FOLDERS)]
    seen, found = set(todo), []
    while todo:
        path = todo.pop()
        for number, included, line in source_tree.includes(tree[path]):
            found += [f"{path}:{number}: {name} in what {' and '.join(_PURE_FOLDERS)} read: {line}"
                      for name, headers in _NOT_PURE if headers.match(included)]
            if included in tree and included not in seen:
                seen.add(included)
                todo.append(included)
    return sorted(found)


# Hashes by a function that everybody knows, so whoever chooses the names makes them collide: n of them cost n * n.
_GUESSABLE = re.compile(r"std::unordered_(?:multi)?(?:map|set)\b")
_NAMED_BY_STRANGERS = ("server/", "common/")


def guessable(tree):
    return [f"{path}:{number}: a stranger can make its names collide, take absl::flat_hash_map or flat_hash_set: {line.strip()}"
            for path, text in tree.items() if source_tree.is_cpp(path) and path.startswith(_NAMED_BY_STRANGERS)
            for number, line in enumerate(source_tree.cpp_code(text).split("\n"), 1) if _GUESSABLE.search(line)]


def test_headers_of_libraries_are_at_home():
    source_tree.assert_none(strays(source_tree.repository()))


def test_the_folders_that_decide_are_free_of_torch_grpc_threads_and_clocks():
    source_tree.assert_none(impure(source_tree.repository()))


def test_no_hash_that_a_stranger_can_guess():
    source_tree.assert_none(guessable(source_tree.repository()))


def test_a_hash_that_a_stranger_can_guess_is_noticed():
    for line in ("std::unordered_map<std::string, int> a;", "const std::unordered_set<std::string>& b = c;",
                 "using D = std::unordered_multimap<std::string, int>;"):
        for path in ("server/protocol/a.h", "common/admission/a.cc"):
            assert len(guessable({path: line})) == 1, line
        assert not guessable({"worker/model/a.cc": line, "server/a.md": line, "common/a.cc": f"// {line}"})
    assert not guessable({"server/a.cc": "absl::flat_hash_map<std::string, int> a;"})


def test_a_stray_header_is_noticed():
    for path, included in (("common/a.h", "ATen/ops/mm.h"), ("server/rpc/a.cc", "torch/torch.h"),
                           ("server/main/a.cc", "grpcpp/server.h"), ("worker/engine/a.h", "grpc/support/time.h"),
                           ("server/planner/a.h", "stemma/v1/training.grpc.pb.h"), ("worker/ops/a.cc", "cuda_runtime.h"),
                           ("worker/engine/a.cc", "ATen/cuda/CUDAContext.h"), ("client/cli/a.cc", "c10/util/Exception.h"),
                           ("worker/engine/a.cc", "torch/csrc/distributed/c10d/TCPStore.hpp"),
                           ("server/coordinator/a.cc", "sqlite3.h"), ("tests/server/coordinator/a.cc", "sqlite3.h"),
                           ("server/rpc/a.h", "absl/synchronization/mutex.h")):
        assert len(strays({path: f"#include <{included}>\n"})) == 1, path
    for path, included in (("worker/ops/a.cc", "ATen/ops/mm.h"), ("server/rpc/a.cc", "grpcpp/server.h"),
                           ("client/cli/a.h", "stemma/v1/training.grpc.pb.h"), ("worker/backend/a.cc", "cuda_runtime.h"),
                           ("server/store/a.cc", "sqlite3.h"), ("tests/server/store/a_test.cc", "sqlite3.h"),
                           ("worker/parallel/a.cc", "torch/csrc/distributed/c10d/TCPStore.hpp"),
                           ("server/planner/a.h", "stemma/v1/training.pb.h"),
                           ("tests/worker/a.cc", "absl/synchronization/notification.h")):
        assert not strays({path: f"#include <{included}>\n"}), path


def test_a_thread_or_a_clock_where_decisions_are_made_is_noticed():
    for included in ("thread", "mutex", "atomic", "absl/synchronization/mutex.h", "chrono", "absl/time/clock.h",
                     "common/base/clock.h", "ATen/core/Tensor.h", "grpcpp/grpcpp.h"):
        for folder in _PURE_FOLDERS:
            assert impure({f"{folder}a.cc": f"#include <{included}>\n"}), included
    assert not impure({"server/planner/a.cc": "#include <map>\n", "server/rpc/a.cc": "#include <mutex>\n"})
    assert not impure({"server/planner/a.cc": '#include "absl/time/time.h"\n'})


def test_a_thread_behind_a_shared_header_is_noticed():
    tree = {"server/planner/a.h": '#include "common/b.h"\n', "common/b.h": "#include <mutex>\n"}
    assert len(impure(tree)) == 1
    tree["server/planner/a.h"] = "#include <map>\n"
    assert not impure(tree)
