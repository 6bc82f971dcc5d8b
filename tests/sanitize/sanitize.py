"""Builds the programs, and the tests of server, schedule, memory and kernels, under the sanitizers, and runs them.

make sanitize                               asan (with UBSan), then tsan
make sanitize ARGS="--preset tsan"          one of the two
make sanitize ARGS="--tests spool journal"  those whose names hold one of the words; "e2e_" takes processes

Before the tests of a preset run its controls: small programs with a mistake that the sanitizer has to report.

Which tests run where is the table below. Under tsan stand those that link no LibTorch: its threads (OpenMP, c10) are not
compiled with the sanitizer, which would report races where there are none. So the gang's ranks as threads, the engine and the
schedule's numbers run under asan alone. Under tsan real servers and workers of the build run behind them, with tests in Python, which
show races between threads that these programs made themselves. What a process reports fails the preset, whatever the test says.
Races with a thread that gRPC made are seen by nothing here: gRPC of the system is not compiled with TSan, hands objects on by
atomics that it does not see, and a report that such a thread is in is suppressed. So is one of whose accesses any lies in a
library of others that the suppressions name: two threads that append to one string by absl::StrAppend are not seen, and those
that assign to it are.

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

# Tests in Python whose servers and workers are those of the build. Left out are those that bound a process's memory, or what
# takes a time that a sanitizer multiplies.
PROCESSES = ("e2e_bad_input", "e2e_gang", "e2e_export", "e2e_pass_weights", "python_client_e2e_test")
PROGRAMS = ("stemma", "stemma-server", "stemma-worker", "fake_worker")

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
    processes: tuple = ()  # tests in Python
    options: tuple = ("", "")  # (name, value) of the variable that processes get; they write reports to files

    def reports(self):
        return ROOT / "build" / self.name / "reports"

    def of_processes(self):
        """Their environment: a test's own verdict stays what it is, and reports go to files."""
        name, value = self.options
        return {name: f"{value}:log_path={self.reports() / 'report'}", "OMP_NUM_THREADS": "1"}


TABLE = (
    Preset("asan", STORE + SERVER + COMMON + PLAIN + KERNELS + TORCH,
           (Control(("memory_control",), "AddressSanitizer: heap-buffer-overflow"),
            Control(("memory_control", "overflow"), "signed integer overflow")),
           (("ASAN_OPTIONS", f"{NO_MEMORY}:detect_stack_use_after_return=1:strict_string_checks=1"),
            ("UBSAN_OPTIONS", "print_stacktrace=1"))),
    Preset("tsan", STORE + SERVER + COMMON + PLAIN, (Control(("race_control",), "ThreadSanitizer: data race"),),
           # Engine threads of a generation that is over are left to the end of their process, in tests as in the worker.
           (("TSAN_OPTIONS", f"{NO_MEMORY}:second_deadlock_stack=1:report_thread_leaks=0"),),
           PROCESSES,
           ("TSAN_OPTIONS", f"{NO_MEMORY}:second_deadlock_stack=1:report_thread_leaks=0:exitcode=0:"
                            f"suppressions={ROOT}/tests/sanitize/tsan_suppressions.txt")),
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


def run_tests(preset, tests, jobs, environment):
    """Whether one failed."""
    return call("ctest", "--preset", preset.name, "-j", str(jobs), "--no-tests=error", "-R", f"^({'|'.join(tests)})$",
                environment=environment)


def take_reports(preset):
    """The reports of processes so far, each with its first lines; they are removed."""
    reports = sorted(preset.reports().glob("report*"))
    texts = ["\n".join([f"{preset.name}: {path.name}:", *path.read_text(errors="replace").splitlines()[:40]]) for path in reports]
    for path in reports:
        path.unlink()
    return texts


def sanitize_processes(preset, tests, jobs):
    """What went wrong where processes of the build are tested, one at a time: they are slow. The control's report has to come."""
    preset.reports().mkdir(parents=True, exist_ok=True)
    take_reports(preset)
    problems = []
    for control in preset.controls[:1]:
        call(ROOT / "build" / preset.name / "tests" / control.command[0], environment=preset.of_processes().items())
        if not any(control.said in text for text in take_reports(preset)):
            problems.append(f"{preset.name}: {control.command[0]} as a process is not reported")
    if run_tests(preset, tests, 1, preset.of_processes().items()):
        problems.append(f"{preset.name}: tests of processes")
    return problems + take_reports(preset)


def sanitize(preset, words, jobs):
    """What went wrong; empty: nothing."""
    def chosen(names):
        return [name for name in names if not words or any(word in name for word in words)]

    tests, processes = chosen(preset.tests), chosen(preset.processes)
    if not tests and not processes:
        return []
    build, environment = ROOT / "build" / preset.name, dict(preset.environment)
    programs = tests + [control.command[0] for control in preset.controls] + list(PROGRAMS if processes else ())
    if call("cmake", "--preset", preset.name) or \
            call("cmake", "--build", "--preset", preset.name, "-j", str(jobs), "--target", *programs):
        return [f"{preset.name}: the build"]
    problems = [f"{preset.name}: {problem}" for control in preset.controls
                if (problem := control_problem(control, build, environment))]
    print(f"{preset.name}: {len(preset.controls) - len(problems)} of {len(preset.controls)} controls are reported", flush=True)
    if tests and run_tests(preset, tests, jobs, environment.items()):
        problems.append(f"{preset.name}: tests")
    return problems + (sanitize_processes(preset, processes, jobs) if processes else [])


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
