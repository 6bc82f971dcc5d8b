"""Builds the tests of server, schedule, memory and kernels under the sanitizers, and runs them.

make sanitize                               asan (with UBSan), then tsan
make sanitize ARGS="--preset tsan"          one of the two
make sanitize ARGS="--tests spool journal"  those whose names hold one of the words

Before the tests of a preset run its controls: small programs with a mistake that the sanitizer has to report.

Which tests run where is the table below. Under tsan stand those that link no LibTorch: its threads (OpenMP, c10) are not
compiled with the sanitizer, which would report races where there are none. So the gang's ranks as threads, the engine and the
schedule's numbers run under asan alone, and gRPC's side of the server (server/rpc) under neither.

Exit status: 0 if every test passed and every control was reported, 1 if not, 2 for wrong use."""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

STORE = ("database_test", "journal_test", "journal_crash_test", "journal_damage_test", "spool_test", "spool_damage_test",
         "sync_test", "storage_test", "checkpoint_store_test", "checkpoint_crash_test")
SERVER = ("coordinator_test", "coordinator_state_test", "coordinator_parts_test", "request_table_test",
          "calibration_file_test", "calibration_flow_test", "calibration_test", "planner_test", "rank_plans_test",
          "placement_test", "group_split_test", "memory_choice_test", "mesh_ranking_test", "context_plans_test",
          "stage_plans_test")
COMMON = ("base_test", "mutex_test", "system_memory_test", "model_files_test", "trace_test", "loss_names_test", "cost_test",
          "normalization_test", "request_builder_test")
# The worker's parts that link no LibTorch.
PLAIN = ("wave_rows_test", "engine_thread_test", "step_fence_test", "residency_test", "host_arena_test", "slab_arena_test",
         "thread_copy_engine_test", "slab_order_test", "shards_test", "session_ready_file_test")
# Loops over raw pointers: the CPU's kernels, and the bodies of those for GPUs, which run on the host in their tests.
KERNELS = ("attention_loops_test", "attention_test", "vector_exp_test", "rowwise_test", "finite_test", "head_test", "qkv_test",
           "norm_test", "swiglu_test", "linear_test", "backends_test", "kernel_bodies_test", "cuda_attention_test")
# The worker's memory, and the schedule in C++, on LibTorch.
TORCH = ("offload_store_test", "adamw_test", "blocks_test", "tape_policy_test", "prefix_kv_test", "thread_communicator_test")

# Tests ask for more memory than there is: that is refused with a null pointer, as without sanitizer.
NO_MEMORY = "allocator_may_return_null=1"


@dataclasses.dataclass(frozen=True)
class Control:
    command: tuple  # in BUILD/tests
    said: str  # what the sanitizer writes


@dataclasses.dataclass(frozen=True)
class Preset:
    name: str
    tests: tuple
    controls: tuple
    environment: tuple  # (name, value)


TABLE = (
    Preset("asan", STORE + SERVER + COMMON + PLAIN + KERNELS + TORCH,
           (Control(("memory_control",), "AddressSanitizer: heap-buffer-overflow"),
            Control(("memory_control", "overflow"), "signed integer overflow")),
           (("ASAN_OPTIONS", f"{NO_MEMORY}:detect_stack_use_after_return=1:strict_string_checks=1"),
            ("UBSAN_OPTIONS", "print_stacktrace=1"))),
    Preset("tsan", STORE + SERVER + COMMON + PLAIN, (Control(("race_control",), "ThreadSanitizer: data race"),),
           # Engine threads of a generation that is over are left to the end of their process, in tests as in the worker.
           (("TSAN_OPTIONS", f"{NO_MEMORY}:second_deadlock_stack=1:report_thread_leaks=0"),)),
)


def control_problem(control, build, environment):
    """Why the control does not show that the sanitizer is on; nothing where it does."""
    done = subprocess.run([build / "tests" / control.command[0], *control.command[1:]], check=False, text=True,
                          env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode and control.said in done.stdout:
        return ""
    return f"{' '.join(control.command)} ended with {done.returncode} and without “{control.said}”"


def call(*command, environment=()):
    return subprocess.run(command, cwd=ROOT, check=False, env=os.environ | dict(environment)).returncode


def sanitize(preset, words, jobs):
    """What went wrong; empty: nothing."""
    tests = [test for test in preset.tests if not words or any(word in test for word in words)]
    if not tests:
        return []
    build, environment = ROOT / "build" / preset.name, dict(preset.environment)
    programs = tests + [control.command[0] for control in preset.controls]
    if call("cmake", "--preset", preset.name) or \
            call("cmake", "--build", "--preset", preset.name, "-j", str(jobs), "--target", *programs):
        return [f"{preset.name}: the build"]
    problems = [f"{preset.name}: {problem}" for control in preset.controls
                if (problem := control_problem(control, build, environment))]
    print(f"{preset.name}: {len(preset.controls) - len(problems)} of {len(preset.controls)} controls are reported", flush=True)
    if call("ctest", "--preset", preset.name, "-j", str(jobs), "--no-tests=error", "-R", f"^({'|'.join(tests)})$",
            environment=environment):
        problems.append(f"{preset.name}: tests")
    return problems


def main(arguments):
    parser = argparse.ArgumentParser(prog="make sanitize", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--preset", choices=[preset.name for preset in TABLE], help="this one alone")
    parser.add_argument("--tests", nargs="+", default=[], metavar="WORD", help="parts of the names of tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build, and tests at a time")
    options = parser.parse_args(arguments)
    presets = [preset for preset in TABLE if options.preset in (None, preset.name)]
    problems = [problem for preset in presets for problem in sanitize(preset, options.tests, options.jobs)]
    for problem in problems:
        print(f"sanitize: failed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
