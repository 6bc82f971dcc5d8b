"""G19: one style in all helps, wrong words named with the nearest right one, empty lists that say so, one way to ask for
JSON, completion that cannot rot."""

import json
import random
import re
import shutil
import subprocess

import pytest
from command_line import commands, options, output, run
from e2e.errors.server import Cluster

SEED = 5_519
PLACEHOLDERS = {"FILE", "DIR", "MODEL", "HOST:PORT", "N", "X", "SECONDS", "BYTES", "ID", "NAME", "MODE", "LENGTHS",
                "MESH"}


@pytest.fixture(scope="module")
def all_commands():
    return dict(commands())


def test_g19_helps_have_one_style(all_commands):
    for path, text in all_commands.items():
        for name, placeholder in options(text):
            words = re.fullmatch(r"[a-z0-9_]+(\|[a-z0-9_]+)+", placeholder)
            assert placeholder in PLACEHOLDERS | {""} or words, f"{path} {name}: {placeholder}"
        assert not re.search(r"REQUIRED|POSITIVE|Env:|; default|=\d", text.split("Examples:")[0]), text
        for match in re.findall(r"(?m)^  \S.{26,}?  +(\S.*)$|^ {28,}(\S.*)$", text.split("Examples:")[0]):
            assert not "".join(match).endswith("."), f"{path}: {match}"


def test_g19_what_is_required_and_what_stands_in_its_place_is_said(all_commands):
    assert "Address of the server (required, or in STEMMA_SERVER)" in all_commands["replay",]
    assert "(default: 30)" in all_commands["replay",] and "(default: table)" in all_commands["status",]


def misspelt(word, chance):
    letters = list(word)
    i = chance.randrange(3, len(letters) - 1)
    if chance.random() < 0.5:
        letters[i], letters[i + 1] = letters[i + 1], letters[i]
    else:
        letters[i] = "z"
    return "".join(letters)


def test_g19_an_unknown_option_names_the_command_and_the_nearest(all_commands):
    chance = random.Random(SEED)
    for path, text in all_commands.items():
        for name, _ in options(text):
            wrong = misspelt(name, chance) if len(name) >= 6 else name
            if wrong == name:
                continue
            result = run(*path, f"{wrong}=1")
            command = " ".join(["stemma", *path])
            assert result.returncode == 2 and not result.stdout
            assert result.stderr.startswith(f'{command}: unknown option "{wrong}=1"; did you mean --'), result.stderr
            suggested = re.search(r"did you mean (--[\w-]+)\?", result.stderr)[1]
            assert suggested in [option for option, _ in options(text)], f"seed {SEED}: {result.stderr}"
            assert f"`{command} --help`" in result.stderr and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("arguments, said", [
    (["replai", "x"], 'stemma: unknown command "replai"; did you mean replay?'),
    (["trace", "chek", "x"], 'stemma trace: unknown command "chek"; did you mean check?'),
    (["zebra"], 'stemma: unknown command "zebra" ('),
    ([], "stemma: say which command: local, replay, "),
    (["trace"], "stemma trace: say which command: make, check, stat"),
    (["trace", "stat", "a", "b"], 'stemma trace stat: unexpected argument "b"'),
    (["replay", "--limt", "3"], 'stemma replay: unknown option "--limt"; did you mean --limit?'),
    (["replay"], "stemma replay: "),
    (["export", "x", "--export-dtype", "fp32"], 'stemma export: unknown option "--export-dtype"')])
def test_g19_wrong_words_are_named(arguments, said):
    result = run(*arguments)
    assert result.returncode == 2 and not result.stdout and result.stderr.startswith(said), result.stderr


@pytest.mark.parametrize("program, wrong, right", [("stemma-server", "--lisen", "--listen"),
                                                   ("stemma-worker", "--sever", "--server")])
def test_g19_server_and_worker_answer_alike(program, wrong, right):
    result = run(wrong, "x", program=program)
    assert result.returncode == 2
    assert result.stderr.startswith(f'{program}: unknown option "{wrong}"; did you mean {right}?'), result.stderr


def test_g19_an_empty_list_says_so():
    with Cluster(fake=True) as cluster:
        table = run("requests", "list", "--server", cluster.address)
        lines = run("requests", "list", "--server", cluster.address, "-o", "json")
    assert (table.returncode, table.stdout, table.stderr) == (0, "", "no requests yet\n")
    assert (lines.returncode, lines.stdout) == (0, "")


def test_g19_json_is_asked_for_in_one_way(all_commands, tmp_path):
    for path, text in all_commands.items():
        names = [name for name, _ in options(text)]
        assert "--json" not in names and "jsonl" not in text.replace(".jsonl", ""), path
        assert ("--output", "table|json") in options(text) or "--output" not in names
    assert run("doctor", "-o", "jsonl", "--no-self-check").returncode == 2
    for line in output("doctor", "--no-self-check", "-o", "json").splitlines():
        json.loads(line)


def test_f10_dtypes_have_both_names_wherever_one_is_taken(tmp_path):
    for number, (name, stored) in enumerate([("bf16", "BF16"), ("bfloat16", "BF16"), ("fp32", "F32"), ("float16", "F16")]):
        output("model", "init", tmp_path / str(number), "--dtype", name)
        held = json.loads(output("model", "inspect", tmp_path / str(number), "-o", "json"))["tensors_by_dtype"]
        assert list(held) == [stored]
    assert output("model", "inspect", "qwen3-8b", "--fit", "--dtype", "bf16", "-o", "json") == \
        output("model", "inspect", "qwen3-8b", "--fit", "--dtype", "bfloat16", "-o", "json")
    with Cluster() as cluster:
        for number, name in enumerate(["bf16", "bfloat16"]):
            path = output("export", f"e{number}", "--dtype", name, "--server", cluster.address).strip()
            assert list(json.loads(output("model", "inspect", path, "-o", "json"))["tensors_by_dtype"]) == ["BF16"]
    result = run("export", "e", "--dtype", "int8", "--server", "127.0.0.1:1")
    assert result.returncode == 2 and "--dtype" in result.stderr and "int8" in result.stderr


BASH = """
eval "$(cat "$1")"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _stemma; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Words that bash offers for the last of the words given."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    folder = tmp_path_factory.mktemp("complete")
    script = folder / "stemma.bash"
    script.write_text(output("completion", "bash"))
    (folder / "trace.jsonl").touch()
    (folder / "models").mkdir()

    def ask(*words):
        result = subprocess.run(["bash", "-c", BASH, "-", str(script), "stemma", *words], capture_output=True, text=True,
                                cwd=folder, check=True)
        assert not result.stderr, result.stderr
        return result.stdout.split()
    return ask


def test_g19_completion_offers_every_command_and_option_of_the_help(all_commands, complete):
    for path, text in all_commands.items():
        children = {child[-1] for child in all_commands if len(child) == len(path) + 1 and child[:-1] == path}
        if children:
            assert set(complete(*path, "")) == children
        assert {word for word in complete(*path, "--")} == {name for name, _ in options(text)}, path


def test_g19_completion_knows_what_a_value_is(complete):
    assert complete("replay", "t") == ["trace.jsonl"]
    assert complete("replay", "trace.jsonl", "--schedule", "") == ["auto", "reuse", "dense"]
    assert complete("replay", "--schedule", "d") == ["dense"]
    assert complete("status", "-o", "j") == ["json"]
    assert complete("local", "--model", "m") == ["models"]
    assert complete("replay", "--limit", "") == []
    assert complete("tra") == ["trace"] and complete("trace", "ch") == ["check"]
    assert complete("completion", "") == ["bash", "zsh"]


def test_g19_completion_for_zsh_is_a_script_that_zsh_takes(tmp_path):
    script = output("completion", "zsh")
    assert script.startswith("#compdef stemma\n") and "@" not in script.replace('"$@"', "")
    if shutil.which("zsh"):
        (tmp_path / "_stemma").write_text(script)
        subprocess.run(["zsh", "-n", str(tmp_path / "_stemma")], check=True)
        load = ("compdef() { :; }; . ./_stemma; _stemma_options replay; _stemma_commands trace; "
                "_stemma_values replay --schedule")
        said = subprocess.run(["zsh", "-fc", load], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert "--limit" in said and "make check stat" in said and "auto reuse dense" in said
    assert run("completion", "fish").returncode == 2
