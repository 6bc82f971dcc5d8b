"""D4: what would be refused is refused before anything runs: by `trace check` as by the server, a report that cannot be
written, numbers that are none, a second YAML document."""

import json
import random
import re

import pytest
from command_line import commands, options, output, run
from e2e.errors.good_request import Request, refusal
from e2e.errors.server import MODEL, Cluster

SEED = 41_370  # with the number of the request, in every failure
REQUESTS = 80
NUMBERS = [-1, 0, 1, 1.5, 0.999, -0.25, 1e-300, 1e30, 1e300]


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running


def spoil_header(header, chance):
    section = chance.choice(["loss", "adam"])
    key = chance.choice(sorted(header[section]))
    if chance.random() < 0.3:
        del header[section][key]
    elif isinstance(header[section][key], str):
        header[section][key] = "nothing" if key != "weight_decay_scope" else "WEIGHT_DECAY_SCOPE_UNSPECIFIED"
    else:
        header[section][key] = chance.choice(NUMBERS)


def spoil_steps(header, chance):
    key, value = chance.choice([("ppo_mini_batch_size", 0), ("ppo_mini_batch_size", 1), ("ppo_epochs", 0), ("seed", 3),
                                ("ppo_epochs", 5000), ("shuffle", True)])
    header[key] = value


def spoil_source(header, chance):
    which = chance.choice(["old", "ref"])
    header[which] = chance.choice([{"from": "ROLLOUT"}, {"from": "WEIGHTS"}, {"from": "WEIGHTS", "weights": "policy"},
                                   {"from": "CLIENT", "weights": "policy"}])
    if chance.random() < 0.3:
        del header[which]


def spoil_rollout(groups, chance):
    group = chance.choice(groups)
    rollout = chance.choice(group["rollouts"])
    field = chance.choice(["old_log_probs", "ref_log_prob", "rollout_log_probs", "token_advantages", "loss_weights"])
    change = chance.randrange(5)
    if change == 0:
        rollout.pop(chance.choice(["old_log_probs", "ref_log_prob", "advantage"]), None)
    elif change == 1:
        if field == "token_advantages":
            rollout.pop("advantage", None)  # the client refuses both before it sends anything
        rollout[field] = [chance.choice([-1.0, 3.0, 1e30])] * chance.choice([1, 2, 3, 4])
    elif change == 2:
        rollout["response_tokens"] = [5, chance.choice([7, 100_000]), 7]
    elif change == 3:
        rollout["rollout_id"] = chance.choice(["g0/0", "", "x" * 300])
    else:
        group[chance.choice(["uid", "stat_group"])] = chance.choice(["g0", "", "s" * 300])


def spoilt(number):
    chance, request = random.Random(SEED * 1000 + number), Request()
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        chance.choice([lambda: spoil_header(request.header, chance), lambda: spoil_steps(request.header, chance),
                       lambda: spoil_source(request.header, chance), lambda: spoil_rollout(request.groups, chance)])()
    return request


def problems_by_line(stderr):
    """{line: fields}, of what `trace check` said."""
    found = {}
    for line, text in re.findall(r": line (\d+): (.*)", stderr):
        field = re.match(r"[a-z_]+(\[\d+\]|\.[a-z0-9_]+)*(?=: )", text)
        found.setdefault(int(line), set()).add(field[0].replace("header", "update", 1) if field else text)
    return found


def server_fields(stub, request):
    """Fields of the server's refusal, its reason where it names none; empty: it takes the request."""
    request.header["request"]["validate_only"] = True
    try:
        request.send(stub)
        return set()
    except Exception:  # noqa: BLE001  sent again for its details
        error = refusal(lambda: request.send(stub))
        return set(error.fields) or {error.reason}


def test_d4_trace_check_refuses_what_the_server_refuses(cluster, tmp_path):
    requests = [spoilt(i) for i in range(REQUESTS)]
    lines = [json.dumps({"header": r.header, "groups": r.groups}) for r in requests]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(['{"schema": "stemma.trace.v1"}', *lines]) + "\n")
    result = run("trace", "check", trace, "--model", MODEL, "-o", "json")
    assert result.returncode == 2, result.stderr
    told = problems_by_line(result.stderr)
    refused = 0
    for i, request in enumerate(requests):
        wanted = server_fields(cluster.stub, request)
        found = told.get(i + 2, set())
        refused += bool(wanted)
        what = f"seed {SEED}, request {i}: the server {wanted}, trace check {found}"
        if any(field.startswith(("update", "groups")) for field in wanted):
            assert found == wanted, what
        else:  # a limit: named by its reason
            assert bool(found) == bool(wanted), what
    assert REQUESTS // 4 < refused < REQUESTS, "the cases should be mixed"


def test_d4_a_good_trace_has_no_problem_and_one_id_twice_has(tmp_path):
    trace = tmp_path / "good.jsonl"
    output("trace", "make", trace, "--vocab", 64, "--steps", 3, "--kl-coef", 0.01)
    assert json.loads(output("trace", "check", trace, "-o", "json"))["problems"] == 0
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    for line in lines[1:]:
        line["header"]["request"] = {"request_id": "same"}
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("trace", "check", trace)
    assert result.returncode == 2 and result.stderr.count('"same" is line 2\'s too') == 2, result.stderr


def test_d4_the_numbers_of_the_issue_are_named(tmp_path):
    trace = tmp_path / "bad.jsonl"
    output("trace", "make", trace, "--vocab", 64)
    first, line = trace.read_text().splitlines()
    spoilt_line = json.loads(line)
    spoilt_line["header"]["loss"]["temperature"] = -1
    spoilt_line["header"]["adam"].update(beta1=1.5, learning_rate=-1)
    del spoilt_line["groups"][0]["rollouts"][1]["old_log_probs"]
    trace.write_text(f"{first}\n{json.dumps(spoilt_line)}\n")
    said = run("trace", "check", trace).stderr
    for field in ("header.loss.temperature", "header.adam.beta1", "header.adam.learning_rate",
                  "groups[0].rollouts[1].old_log_probs"):
        assert f"{trace}: line 2: {field}: " in said, said
    assert "4 problems" in said


def test_d4_the_limits_of_a_run_yaml_count(tmp_path):
    trace, config = tmp_path / "trace.jsonl", tmp_path / "run.yaml"
    output("trace", "make", trace, "--vocab", 64, "--groups", 4)
    config.write_text("limits:\n  groups: 3\n")
    result = run("trace", "check", trace, "--config", config)
    assert result.returncode == 2 and "limits.groups" in result.stderr, result.stderr
    config.write_text("limits:\n  groups: 4\n")
    output("trace", "check", trace, "--config", config)


@pytest.mark.parametrize("place", ["a directory", "no such folder", "below a file", "in /proc"])
def test_d4_a_report_into_nowhere_fails_before_the_first_step(cluster, tmp_path, place):
    trace, taken = tmp_path / "trace.jsonl", tmp_path / "file"
    output("trace", "make", trace, "--vocab", 16, "--prompt-len", "fixed:4", "--response-len", "fixed:4")
    taken.write_text("mine")
    report = {"a directory": tmp_path, "no such folder": tmp_path / "no/report.json", "below a file": taken / "report.json",
              "in /proc": "/proc/report.json"}[place]
    step = cluster.model().step
    result = run("replay", trace, "--server", cluster.address, "--report", report)
    assert result.returncode == 2 and "--report" in result.stderr and str(report) in result.stderr, result.stderr
    assert cluster.model().step == step and taken.read_text() == "mine"


def test_d4_a_report_is_written_over_the_last_one_and_not_left_empty(cluster, tmp_path):
    trace, report = tmp_path / "trace.jsonl", tmp_path / "report.json"
    output("trace", "make", trace, "--vocab", 16, "--prompt-len", "fixed:4", "--response-len", "fixed:4")
    nobody = run("replay", trace, "--server", "127.0.0.1:1", "--connect-timeout", 0.2, "--report", report)
    assert nobody.returncode == 3 and not report.exists()
    report.write_text("x" * 100_000)
    nobody = run("replay", trace, "--server", "127.0.0.1:1", "--connect-timeout", 0.2, "--report", report)
    assert nobody.returncode == 3 and report.read_text() == "x" * 100_000
    output("replay", trace, "--server", cluster.address, "--report", report)
    assert json.loads(report.read_text())["requests_submitted"] == 1


def test_d4_no_option_takes_a_number_that_is_none():
    tried = 0
    for path, text in commands():
        if "Subcommands:" in text:
            continue
        for name, placeholder in options(text):
            if placeholder not in ("N", "X", "SECONDS", "BYTES"):
                continue
            if path == ("local",):  # passed on to the server, which is asked below
                continue
            for value in ("nan", "1e999") + (("inf", "-inf") if placeholder in ("X", "SECONDS") else ()):
                result = run(*path, f"{name}={value}")
                tried += 1
                assert result.returncode == 2, f"{path} {name}={value}: {result.returncode}"
                assert name in result.stderr and value in result.stderr, f"{path} {name}={value}: {result.stderr}"
    assert tried > 100
    for name in ("--memory-budget", "--threads", "--wave-suffixes", "--prefix-block-rows", "--host-memory"):
        result = run(f"{name}=nan", "--model", MODEL, "--check-config", program="stemma-server")
        assert result.returncode == 2 and name in result.stderr, result.stderr


@pytest.mark.parametrize("rest", ["model: other\n", "", "limits:\n  groups: 1\n"])
def test_d4_a_second_yaml_document_is_refused(tmp_path, rest):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {MODEL}\n---\n{rest}")
    result = run("--config", config, "--check-config", program="stemma-server")
    assert result.returncode == 2 and "a second YAML document" in result.stderr and str(config) in result.stderr, result.stderr
    config.write_text(f"---\nmodel: {MODEL}\n...\n")
    assert run("--config", config, "--check-config", program="stemma-server").returncode == 0
