"""What a process reads from outside: options and environment in *_options.cc and the command line's command files, clocks
in common/base/clock.cc; tests reach their servers past the environment's proxies. options.txt holds the options of server and
worker, so that none appears or goes unseen; those of the command line stand in tests/client/cli/golden/help.txt."""

import re

import source_tree

_FLAGS = re.compile(r'#\s*include\s*["<]CLI/|\b(secure_)?getenv\b|\benviron\b|\bgetopt(_long)?\b')
_FLAG_FILES = re.compile(r".*_options\.cc$|client/cli/(commands/)?\w+_command\.cc$|tests/")
_CLOCKS = re.compile(r"\babsl::Now\b|\bGetCurrentTimeNanos\b|\b(system|steady|high_resolution|utc|file)_clock\b|"
                     r"\bclock_gettime\b|\bgpr_now\b|\bGPR_CLOCK_REALTIME\b|\bgettimeofday\b|\btime\((nullptr|NULL|0)\)|\bclock\(\)|"
                     r"\b(u|nano)?sleep\(|\bclock_nanosleep\b|\bSleepFor\b|\bsleep_(for|until)\b")
# Debian's Abseil holds the first to the machine's clock, and POSIX the others.
_WAITS = re.compile(r"\babsl::(Notification|CondVar)\b|\bsem_timedwait\b|\bpthread_\w+_timed\w*\b")
_CLOCK_FILE = "common/base/clock.cc"
_CHANNEL_FILE = "tests/e2e/own_loopback.py"
_OPTIONS = source_tree.ROOT / "tests" / "repo" / "options.txt"
_OPTION = re.compile(r'(?:(?:add_option|add_flag|set_version_flag)\w*(?:<[\w:]+>)?\(|AddNumber\(&\w+,)\s*"([^"]+)"')


def _lines_with(tree, pattern, at_home):
    for path, text in tree.items():
        if source_tree.is_cpp(path) and not at_home(path):
            lines = text.split("\n")
            for number, code in enumerate(source_tree.cpp_code(text).split("\n"), 1):
                # An include's name is a string, so it is looked for in the line itself.
                if pattern.search(lines[number - 1] if code.lstrip().startswith("#") else code):
                    yield f"{path}:{number}: {lines[number - 1].strip()}"


def stray_flags(tree):
    return list(_lines_with(tree, _FLAGS, _FLAG_FILES.match))


def stray_clocks(tree):
    return list(_lines_with(tree, _CLOCKS, lambda path: path == _CLOCK_FILE or path.startswith("tests/bench/")))


def stray_waits(tree):
    return list(_lines_with(tree, _WAITS, lambda path: path.startswith("tests/")))


def channels_through_a_proxy(tree):
    """Places where a test in Python opens a channel that a proxy of the environment may get between."""
    return [f"{path}:{number}: {line.strip()}" for path, text in tree.items()
            if path.startswith("tests/") and path.endswith(".py") and path not in (_CHANNEL_FILE, "tests/repo/process_inputs_test.py")
            for number, line in enumerate(text.split("\n"), 1) if "insecure_channel(" in line]


def options(tree):
    """`file option` of all that the programs take."""
    return sorted({f"{path} {name}" for path, text in tree.items()
                   if path.endswith("_options.cc") and path.startswith(("server/", "worker/"))
                   for name in _OPTION.findall(text)})


def test_flags_and_environment_are_read_in_one_kind_of_file():
    source_tree.assert_none(stray_flags(source_tree.repository()))


def test_clocks_are_read_and_slept_on_in_one_file():
    source_tree.assert_none(stray_clocks(source_tree.repository()))


def test_nothing_waits_by_a_clock_that_someone_may_set():
    source_tree.assert_none(stray_waits(source_tree.repository()))
    for line in ("absl::Notification stop_;", "absl::CondVar changed_;", "sem_timedwait(&answered, &until);",
                 "pthread_cond_timedwait(&changed, &mutex, &until);", "pthread_mutex_timedlock(&mutex, &until);"):
        assert stray_waits({"worker/rpc/session.cc": line}) and not stray_waits({"tests/a_test.cc": line})
    assert not stray_waits({"common/base/thread_stack.cc": "sem_clockwait(&answered, CLOCK_MONOTONIC, &until);"})


def test_no_proxy_of_the_environment_gets_between_a_test_and_its_server():
    source_tree.assert_none(channels_through_a_proxy(source_tree.repository()))
    line = "    with grpc.insecure_channel(cluster.address) as channel:"
    assert len(channels_through_a_proxy({"tests/users/a_test.py": line})) == 1
    assert not channels_through_a_proxy({_CHANNEL_FILE: line, "client/python/stemma/_connection.py": line})


def test_the_options_are_those_listed():
    found, listed = options(source_tree.repository()), _OPTIONS.read_text().split("\n")[:-1]
    source_tree.assert_none([f"{line}: not in tests/repo/options.txt" for line in found if line not in listed] +
                            [f"{line}: in tests/repo/options.txt, but no option" for line in listed if line not in found])


def test_a_stray_flag_is_noticed():
    for line in ('#include "CLI/CLI.hpp"', "#include <CLI/App.hpp>", 'const char* a = std::getenv("A");', "extern char** environ;"):
        for path in ("worker/ops/a.cc", "common/a.h", "server/main/server_main.cc", "client/cli/commands/a.cc"):
            assert stray_flags({path: line + "\n"}) == [f"{path}:1: {line}"]
        for path in ("server/main/server_options.cc", "client/cli/commands/plan_command.cc", "tests/bench/step_bench.cc"):
            assert not stray_flags({path: line + "\n"})
    assert not stray_flags({"common/a.cc": '// getenv is read elsewhere\nSay("getenv");\n'})


def test_a_stray_clock_is_noticed():
    for line in ("auto a = absl::Now();", "std::chrono::steady_clock::now();", "::usleep(5);", "sleep(1);",
                 "absl::SleepFor(a);", "std::this_thread::sleep_for(a);", "clock_gettime(CLOCK_REALTIME, &t);",
                 "gpr_timespec t = {.tv_sec = s, .clock_type = GPR_CLOCK_REALTIME};"):
        for path in ("worker/ops/a.cc", "common/base/process.cc", "server/rpc/a.cc", "tests/server/a_test.cc"):
            assert stray_clocks({path: f"int a;\n{line}\n"}) == [f"{path}:2: {line}"], line
        assert not stray_clocks({_CLOCK_FILE: line})
    for line in ("clock.Sleep(a);", "absl::Time now = clock.Now();", "// absl::Now is read elsewhere"):
        assert not stray_clocks({"server/rpc/a.cc": line})


def test_an_option_is_found_however_it_is_added():
    text = 'app.add_option("--a", b);\napp.add_flag(\n    "-q,--quiet", c);\napp.add_option_function<int>("--d", e);\n'
    assert [o.split(" ")[1] for o in options({"server/main/x_options.cc": text})] == ["--a", "--d", "-q,--quiet"]
    assert not options({"tests/bench/x_options.cc": text})
