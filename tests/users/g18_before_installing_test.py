"""G18: what reuse saves, what fits, what a plan does, in words that people read; the first two before anything runs."""

import itertools
import json
import random
import re
import subprocess
import sys

import numpy
import pytest
import stemma
import torch
from command_line import BIN, output, run
from e2e.errors.server import MODEL, Cluster

SEED = 77_012
SIZES = {  # parameters, as the models' pages publish them
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688, "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264, "llama3.2-1b": 1_235_814_400, "llama3.2-3b": 3_212_749_824,
    "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560, "llama3.1-8b": 8_030_261_248, "llama3.1-70b": 70_553_706_496}


def random_groups(chance):
    return [(chance.choice([1, 2, 30, 700]), [chance.choice([0, 1, 5, 400]) for _ in range(chance.randrange(6))])
            for _ in range(chance.randrange(1, 6))]


def write_rollouts(path, groups, chance):
    """The same groups in each of the forms that a line may have, lines of several groups mixed."""
    lines = []
    for index, (prompt, responses) in enumerate(groups):
        group = chance.choice([index, f"q{index}"])
        tokens = chance.random() < 0.5
        shown = [7] * prompt if tokens else prompt
        if not responses or chance.random() < 0.4:
            lines.append({"group": group, "prompt": shown, "responses": responses, "reward": 1.0})
            continue
        for r in responses:
            lines.append({"group": group, "prompt": shown, "response": [3] * r if tokens else r})
    chance.shuffle(lines)
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")


def brute_force(groups, config):
    """Tokens and FLOPs row by row and key by key: (tokens dense, tokens reuse, FLOPs dense, FLOPs reuse)."""
    d, layers = config["hidden_size"], config["num_hidden_layers"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    projections = [(d, q), (d, kv), (d, kv), (q, d)]
    if "num_experts" in config:
        ffn, mlps = config["moe_intermediate_size"], config["num_experts_per_tok"]
        projections.append((d, config["num_experts"]))
    else:
        ffn, mlps = config["intermediate_size"], 1
    projections += [(d, ffn), (d, ffn), (ffn, d)] * mlps

    def row_flops(position, predicts):
        flops = 0
        for layer in range(layers):
            last_of_prefix = layer == layers - 1 and not predicts
            for rows, columns in [(d, kv), (d, kv)] if last_of_prefix else projections:
                flops += 3 * 2 * rows * columns              # forward, and twice as much backward
            if not last_of_prefix:
                for _ in range(position + 1):                # itself and every earlier token: scores and values
                    flops += 3 * 2 * 2 * q
        return flops + (3 * 2 * d * config["vocab_size"] if predicts else 0)

    totals = [0, 0, 0, 0]
    for prompt, responses in groups:
        prefix_counted = False
        for response in responses:
            if response == 0:
                continue
            for position in range(prompt - 1 + response):
                predicts = position >= prompt - 1
                flops = row_flops(position, predicts)
                totals[0], totals[2] = totals[0] + 1, totals[2] + flops
                if predicts or not prefix_counted:
                    totals[1], totals[3] = totals[1] + 1, totals[3] + flops
            prefix_counted = True
    return totals


TINY = {"model_type": "qwen3", "hidden_size": 6, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 10, "vocab_size": 17, "max_position_embeddings": 64}
EXPERTS = {"model_type": "qwen3_moe", "moe_intermediate_size": 5, "num_experts": 7, "num_experts_per_tok": 3}


@pytest.mark.parametrize("model", [TINY, TINY | EXPERTS], ids=["qwen3", "qwen3_moe"])
def test_g18_the_bound_is_what_counting_row_by_row_gives(tmp_path, model):
    chance = random.Random(SEED)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(model))
    for case in range(20):
        groups = [(chance.randrange(1, 9), [chance.randrange(6) for _ in range(chance.randrange(4))]) for _ in range(3)]
        bound = stemma.bound(groups, config)
        counted = [bound.tokens_dense, bound.tokens_reuse, bound.flops_dense, bound.flops_reuse]
        assert counted == brute_force(groups, model), f"seed {SEED}, case {case}: {groups}"


def agree(one, other, case):
    """Equal, but for the order in which doubles were added: 1e-12 of a sum of few terms."""
    assert list(one) == list(other), case
    for key, value in one.items():
        same = value == pytest.approx(other[key], rel=1e-12) if isinstance(value, float) else value == other[key]
        assert same, f"{case}: {key} is {value} and {other[key]}"


def test_g18_the_command_and_python_agree_on_random_lengths(tmp_path):
    chance = random.Random(SEED + 1)
    for case in range(10):
        groups, model = random_groups(chance), chance.choice([*SIZES, None])
        path = tmp_path / f"{case}.jsonl"
        write_rollouts(path, groups, chance)
        options = [] if model is None else ["--model", model]
        if not any(json.loads(line) for line in path.read_text().split("\n") if line.strip()):
            continue
        told = json.loads(output("bound", path, *options, "-o", "json"))
        agree(told, stemma.bound(path, model).as_dict(), f"seed {SEED + 1}, case {case}")
        agree(told, stemma.bound(groups, model).as_dict(), f"seed {SEED + 1}, case {case}")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral"])
def test_g18_both_read_the_same_of_what_a_config_leaves_out_or_has_as_null(tmp_path, family):
    path, rollouts, taken = tmp_path / "config.json", tmp_path / "rollouts.jsonl", 0
    rollouts.write_text('{"prompt": 3, "responses": [2, 0, 4]}\n')
    for key_heads, head_size in itertools.product((4, 3, None, "absent"), (8, 4, None, "absent")):
        config = {**TINY, **EXPERTS, "model_type": family, "hidden_size": 8, "num_key_value_heads": key_heads, "head_dim": head_size}
        path.write_text(json.dumps({name: size for name, size in config.items() if size != "absent"}))
        result = run("bound", rollouts, "--model", path, "-o", "json")
        if result.returncode == 0:
            agree(json.loads(result.stdout), stemma.bound(rollouts, path).as_dict(), config)
            taken += 1
        else:
            with pytest.raises(ValueError, match=f"^{path}: num_key_value_heads is {3 if key_heads == 3 else None}"):
                stemma.bound(rollouts, path)
    assert taken == (12 if family == "llama" else 8)


@pytest.mark.parametrize("changed", [
    {"model_type": "gpt2"}, {"model_type": None}, {"hidden_size": 0}, {"vocab_size": None}, {"intermediate_size": 1.5},
    {"num_hidden_layers": True}, {"num_attention_heads": "4"}, {"num_key_value_heads": -2}, {"num_attention_heads": 10, "head_dim": None},
    {"head_dim": 5}, {"head_dim": 1}, {"head_dim": 4098}, {"hidden_size": 2**20 + 8}, {"hidden_size": 10**300}, {"num_hidden_layers": 2**14 + 1},
    {"intermediate_size": 2**22 + 1}, {"vocab_size": 2**31}, {"num_attention_heads": 2**17}, {"max_position_embeddings": None},
    {"max_position_embeddings": 0}, {"hidden_act": "gelu"}, {"hidden_act": ["silu"]}, {"tie_word_embeddings": "no"},
    {"decoder_sparse_step": 2, "moe_intermediate_size": 5}, {"mlp_only_layers": [0], "moe_intermediate_size": 5},
    {"norm_topk_prob": 1, "moe_intermediate_size": 5}, {"output_router_logits": True, "moe_intermediate_size": 5},
    {"num_experts": 64, "num_hidden_layers": 4097}, {"moe_intermediate_size": None}, {"num_experts": 0}, {"num_experts": 4097}, {"num_experts_per_tok": 8}, {"num_experts_per_tok": None},
    {"num_local_experts": 1.0, "num_experts": None}, {"tie_word_embeddings": 0}, {"hidden_size": 2**20, "vocab_size": 2**31 - 1}], ids=lambda changed: str(changed)[:40])
def test_g18_a_model_that_cannot_be_counted_is_refused_by_both(tmp_path, changed):
    path, rollouts = tmp_path / "config.json", tmp_path / "rollouts.jsonl"
    experts = EXPERTS if any("expert" in name or "moe" in name for name in changed) else {}
    path.write_text(json.dumps({**TINY, **experts, **changed}))
    rollouts.write_text('{"prompt": 3, "responses": [2]}\n')
    assert run("bound", rollouts, "--model", path).returncode == 2
    with pytest.raises(ValueError, match=f"^{path}: {next(iter(changed))} is "):
        stemma.bound(rollouts, path)


@pytest.mark.parametrize("family, count_more", [("llama", 0), ("mistral", 0), ("qwen2", 6), ("qwen3", 4)])
@pytest.mark.parametrize("tied", [{}, {"tie_word_embeddings": None}, {"tie_word_embeddings": False}, {"tie_word_embeddings": True}])
def test_g18_both_count_a_model_of_up_to_2_to_the_50_parameters(tmp_path, family, count_more, tied):
    """The layer's matrices, norms and the last norm are 14 hidden_size; the embeddings' rows make 2^50 of it, but for a family's own
    norms or biases of so few."""
    path, rollouts = tmp_path / "config.json", tmp_path / "rollouts.jsonl"
    rollouts.write_text('{"prompt": 3, "responses": [2]}\n')
    embeddings = 1 if tied.get("tie_word_embeddings") else 2
    for rows_less in range(2):
        config = {**TINY, **tied, "model_type": family, "hidden_act": "silu", "hidden_size": 2**19 // embeddings, "num_hidden_layers": 1,
                  "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": 1, "sliding_window": None,
                  "vocab_size": 2**31 - 14 // embeddings - rows_less}
        path.write_text(json.dumps(config))
        result = run("bound", rollouts, "--model", path, "-o", "json")
        if rows_less or not count_more:
            assert result.returncode == 0, result.stderr
            agree(json.loads(result.stdout), stemma.bound(rollouts, path).as_dict(), config)
        else:
            assert result.returncode == 2 and "parameters" in result.stderr
            with pytest.raises(ValueError, match=f"^{path}: hidden_size is .*: the sizes make {2**50 + count_more} parameters"):
                stemma.bound(rollouts, path)


def test_g18_a_trace_is_read_by_both_and_as_a_module(tmp_path):
    trace = tmp_path / "trace.jsonl"
    for arrays in ([], ["--base64"]):
        trace.unlink(missing_ok=True)
        output("trace", "make", trace, "--vocab", 64, "--steps", 2, "--prompt-len", "fixed:33", "--response-len", "fixed:8",
               "--n", 4, "--groups", 1, *arrays)
        told = json.loads(output("bound", trace, "--model", MODEL, "-o", "json"))
        assert told["groups"] == 2 and told["token_ratio"] == 4 * (32 + 8) / (32 + 4 * 8)
        module = subprocess.run([sys.executable, "-W", "error", "-m", "stemma.bound", str(trace), "--model", str(MODEL), "-o",
                                 "json"], capture_output=True, text=True, check=True)
        agree(json.loads(module.stdout), told, arrays)
    for text in (output("bound", trace, "--model", "qwen3-8b"),
                 subprocess.run([sys.executable, "-m", "stemma.bound", str(trace), "--model", "qwen3-8b"],
                                capture_output=True, text=True, check=True).stdout):
        assert "2.50" in text and "qwen3-8b" in text and "FLOP" in text


def test_g18_importing_the_module_leaves_the_function():
    assert subprocess.run([sys.executable, "-c", "import stemma, stemma.bound; print(stemma.bound([(2, [3])]).tokens_dense)"],
                          capture_output=True, text=True, check=True).stdout == "4\n"


def test_g18_an_array_counts_by_its_length_however_long_it_is():
    """An array with one token id is no length; some libraries let it pass for a number."""
    counted = stemma.bound([(3, [1, 2])]).as_dict()
    for make in (list, tuple, numpy.array, torch.tensor, lambda x: numpy.array(x, dtype=numpy.uint8)):
        prompt, one, two = make([151, 152, 153]), make([151]), make([151, 152])
        rollouts = [stemma.Rollout(one), stemma.Rollout(two)]
        for group in ((prompt, [one, two]), stemma.Group("g", prompt, rollouts), stemma.Group("g", iter(prompt), iter(rollouts)),
                      stemma.Group("g", prompt, [{"response_tokens": one}, rollouts[1]]),
                      {"uid": "g", "prompt_tokens": prompt, "rollouts": [{"response_tokens": one}, rollouts[1]]}):
            assert stemma.bound([group]).as_dict() == counted, group
    for number in (numpy.int64, numpy.array, torch.tensor):
        assert stemma.bound([(number(3), [number(1), number(2)])]).as_dict() == counted


GROUP = stemma.Group("g", [1, 2], [stemma.Rollout([3])])


@pytest.mark.parametrize("groups, said", [
    (GROUP, "groups is one Group: pass a list, [group]"), ({"uid": "g"}, "groups is one dict: pass a list, [group]"),
    (5, "groups is 5: pass a path, or a list"), (None, "groups is None: pass a path"),
    ([{"prompt": 3, "responses": [1]}], "groups[0] lacks prompt_tokens"), ([(3, [1]), 5], "groups[1] is 5: pass a stemma.Group"),
    ([(3, [1], [2])], "groups[0] is (3, [1], [2]): pass a stemma.Group, or a pair"), ([None], "groups[0] is None"),
    ([(3, 1)], "groups[0]: responses is 1: pass a list"), (["ab"], "groups[0] is 'ab'"), (b"x", "groups[0] is 120"),
    ([stemma.Group("g", [1], stemma.Rollout([2]))], "groups[0]: rollouts is Rollout(1 tokens): pass a list"),
    ([stemma.Group("g", [1], 4)], "groups[0]: rollouts is 4: pass a list"),
    ([(torch.ones(1, 3), [1])], "groups[0]: prompt has shape (1, 3): must be"),
    ([(3, [numpy.ones((2, 2))])], "groups[0]: response 0 has shape (2, 2): must be"),
    ([(3, [1.5])], "groups[0]: response 0 is '1.5': must be"), ([(True, [1])], "groups[0]: prompt is True: must be"),
    ([{"prompt_tokens": [1], "rollouts": [5]}], "groups[0].rollouts[0] is '5': must be an object")])
def test_g18_what_is_no_list_of_groups_is_refused_by_its_place(groups, said):
    with pytest.raises(ValueError) as error:
        stemma.bound(groups)
    assert said in str(error.value)


@pytest.mark.parametrize("text, said", [
    ('{"group": 1, "prompt": 0, "response": 3}', ":1: prompt"),
    ('{"group": 1, "prompt": 5, "response": 3}\n{"group": 1, "prompt": 6, "response": 3}', ":2: group 1 has another prompt"),
    ('{"group": 1, "prompt": 5, "response": -1}', ":1: response"),
    ('{"group": 1, "prompt": 5, "response": 1.5}', ":1: response"),
    ('{"group": 1, "prompt": "What is 2 + 2?", "response": 3}', ":1: prompt"),
    ('{"prompt": 5, "response": 3}', ":1: group is missing"),
    ('{"group": 1, "response": 3}', ":1: prompt is missing"),
    ('{"group": 1, "prompt": 5}', ":1: must hold either"),
    ('{"group": 1, "prompt": 5, "response": 1, "responses": [1]}', ":1: must hold either"),
    ('{"group": 1, "prompt": 5, "responses": 3}', ":1: responses"),
    ('{"group": [1], "prompt": 5, "response": 3}', ":1: group is"),
    ("[1]", ":1: must be a JSON object"), ('{"group": 1', ":1: not JSON"),
    ('{"group": 1, "prompt": 5, "prompt": 6, "response": 3}', ':1: not JSON: key "prompt" appears twice'),
    ('{"group": 1, "prompt": 5, "response": 3, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", ":1: not JSON"),
    ('{"group": 1, "prompt": 5, "response": 3, "reward": NaN}', ":1: not JSON"),
    ('{"group": 1, "prompt": 5, "response": 3, "reward": 1e400}', ":1: not JSON"),
    ('{"group": 1, "prompt": 5, "response": 3, "reward": -1' + "0" * 309 + ".0}", ":1: not JSON"),
    ('{"group": 1, "prompt": 5, "response": 3, "reward": 1' + "0" * 210 + "e99}", ":1: not JSON"),
    ('{"group": 1, "prompt": 5, "response": 3, "reward": -1' + "0" * 309 + "}", ":1: not JSON"),
    ('{"group": "\\ud83d", "prompt": 5, "response": 3}', ":1: not JSON"),
    ('{"group": 123456789012345678901, "prompt": 5, "response": 3}', ":1: group is")])
def test_g18_broken_rollouts_are_refused_by_both_with_line_and_field(tmp_path, text, said):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(text + "\n")
    result = run("bound", path)
    assert result.returncode == 2 and f"{path}{said}" in result.stderr, result.stderr
    with pytest.raises(ValueError) as error:
        stemma.bound(path)
    assert f"{path}{said}" in str(error.value)


# What stands in a broken file: whole values, and what lies between them.
VALUES = ("1", "0", "-1", "5.0", "1e3", "1E400", "null", "true", '"a"', '"\\ud83d\\ude00"', '"\\udc00"', "NaN", "-Infinity",
          "00", "1.", "2147483648", "18446744073709551615", "-9223372036854775809", "-0", "[]", "[1, 2]", "{}", "[[1]]",
          '"\x00"', "[" * 40 + "]" * 40, '{"a": 1, "a": 1}', '"group"', '"prompt"', '"response"', '"responses"')
BETWEEN = (" ", "\t", "\n", "\r\n", "\x0b", "\ufeff", "\u2028", ",", "{", "}", "//")


def broken(chance):
    """A file of two groups with one to three of its values or signs changed."""
    tokens = re.findall(r'"[^"]*"|[^"]', '{"group":"a","prompt":5,"responses":[1,2]}\n{"group":1,"prompt":[1,2],"response":3}\n')
    for _ in range(chance.randint(1, 3)):
        values = [index for index, token in enumerate(tokens) if token.startswith('"') or token.isdigit()]
        kind = chance.choice(["value", "between", "gone"])
        if kind == "value" and values:
            tokens[chance.choice(values)] = chance.choice(VALUES)
        elif kind == "between":
            tokens.insert(chance.randrange(len(tokens) + 1), chance.choice(BETWEEN))
        else:
            del tokens[chance.randrange(len(tokens))]
    return "".join(tokens)


def test_g18_both_take_and_refuse_the_same_files(tmp_path):
    path, taken = tmp_path / "rollouts.jsonl", 0
    marked = '\ufeff{"group":"a","prompt":5,"responses":[1,2]}\n'  # as some editors write UTF-8
    for case in range(150):
        text = broken(random.Random(f"{SEED} {case}")) if case else marked
        path.write_bytes(text.encode())
        result = run("bound", path, "-o", "json")
        told = json.loads(result.stdout) if result.returncode == 0 else None
        try:
            ours = stemma.bound(path).as_dict()
        except ValueError:
            ours = None
        assert ours == told and (ours or case), (case, text, ours, result.stdout, result.stderr)
        taken += told is not None
    assert 3 < taken < 75  # both kinds were drawn


@pytest.mark.parametrize("line, said", [
    ("[]", ":2: must be a JSON object"), ('{"groups": []}', ":2: must hold a header"),
    ('{"header": {}, "groups": [1]}', "request 1: groups[0] is '1': must be an object"),
    ('{"header": {}, "groups": [{"prompt_tokens": 5}]}', "groups[0].prompt_tokens is '5'"),
    ('{"header": {}, "groups": [{"prompt_tokens": [1], "rollouts": [{"response_tokens": "x"}]}]}',
     "groups[0].rollouts[0].response_tokens is 'x'"), ("", "holds no request"),
    ('{"header": {}, "groups": [{"prompt_tokens": "AAAAAAA="}]}', "groups[0].prompt_tokens is 'AAAAAAA='"),  # of 5 bytes
    ('{"header": {}, "groups": [{"prompt_tokens": [1], "rollouts": 5}]}', "groups[0] is \"{'prompt_tokens': [1], 'rollouts': 5}\""),
    ('{"header": {}, "groups": [{"prompt_tokens": [1], "rollouts": {}}]}', "must be an object with prompt_tokens and a list of"),
    ('{"header": {}, "groups": [{"prompt_tokens": [1], "rollout": []}]}',
     ":2: groups[0].rollout: unknown field (did you mean rollouts?)"),
    ('{"header": {}, "groups": [{"prompt_tokens": [1], "rollouts": [{}, {"response_token": [1]}]}]}',
     ":2: groups[0].rollouts[1].response_token: unknown field (did you mean response_tokens?)"),
    ('{"header": {"loss": {"mod": "dapo"}}, "groups": []}', ":2: header.loss.mod: unknown field"),
    ('{"header": {}, "groups": [{"promptTokens": [1]}]}', ":2: groups[0].promptTokens: unknown field"),
    ('{"header": {}, "groups": [], "x": 1}', ":2: x: unknown field"),
    ('{"header": {}, "groups": [{"prompt_tokens": null}]}', ":2: groups[0].prompt_tokens is null: leave the field out")])
def test_g18_a_broken_trace_is_refused_by_both(tmp_path, line, said):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"schema": "stemma.trace.v1"}\n' + line + "\n")
    assert run("bound", path).returncode == 2
    with pytest.raises(ValueError) as error:
        stemma.bound(path)
    assert said in str(error.value)


def test_g18_published_sizes_have_the_published_parameters():
    for name, parameters in SIZES.items():
        text = output("model", "inspect", name, "--fit", "--dtype", "fp32", "-o", "json")
        state = json.loads(text.splitlines()[0])["state_bytes"]
        tables = state - 16 * parameters  # weights, gradients and two moments of four bytes
        assert 0 < tables <= 1 << 26, f"{name}: {tables}"
    result = run("bound", "/dev/null", "--model", "qwen3-8")
    assert result.returncode == 2 and "did you mean qwen3-8b?" in result.stderr
    with pytest.raises(ValueError, match="did you mean qwen3-8b"):
        stemma.bound([], "qwen3-8")


def plan_of(cluster, trace):
    result = run("plan", trace, "--server", cluster.address, "-o", "json")
    return json.loads(result.stdout) if result.returncode == 0 else result.stderr


def test_g18_what_fits_is_what_a_server_then_takes(tmp_path):
    model, trace = tmp_path / "model", tmp_path / "trace.jsonl"
    output("model", "init", model, "--hidden", 64, "--layers", 2, "--vocab", 128)
    output("trace", "make", trace, "--vocab", 128, "--groups", 1, "--n", 6, "--prompt-len", "fixed:900", "--response-len",
           "fixed:300")
    shape = ["--prompt", 900, "--response", 300, "--rollouts", 6, "--dtype", "fp32", "-o", "json"]
    needs = json.loads(output("model", "inspect", model, "--fit", *shape).splitlines()[0])
    assert needs["fits"] == "-" and needs["optimizer"] == "device"
    for kept in ("all_kept_bytes", "least_bytes"):
        budget = needs["state_bytes"] + needs[kept] + (1 << 16)  # room for what threads add, less than a way's difference
        device = budget + budget // 15  # a server leaves a sixteenth of a device to its runtime
        told = json.loads(output("model", "inspect", model, "--fit", "--device-memory", device, *shape).splitlines()[0])
        assert told["fits"] == ("yes" if kept == "all_kept_bytes" else "yes, by recomputing or offloading")
        flags = ("--dtype", "fp32", "--optimizer-residency", "device", "--memory-budget", str(budget), "--threads", "1")
        with Cluster(model=model, flags=flags) as cluster:
            plan = plan_of(cluster, trace)
            assert plan["peak_bytes"] <= needs[kept] + (1 << 16), plan
    too_little = needs["state_bytes"] + needs["least_bytes"] - 1
    told = json.loads(output("model", "inspect", model, "--fit", "--device-memory", too_little, *shape).splitlines()[0])
    assert told["fits"] == "no"
    flags = ("--dtype", "fp32", "--optimizer-residency", "device", "--memory-budget", str(too_little), "--threads", "1")
    with Cluster(model=model, flags=flags) as cluster:
        assert "GROUP_TOO_LARGE" in plan_of(cluster, trace)


def test_g18_a_plan_reads_in_a_few_lines_and_its_rates_are_for_those_who_ask(tmp_path):
    trace = tmp_path / "trace.jsonl"
    output("trace", "make", trace, "--vocab", 16, "--groups", 3, "--n", 4, "--prompt-len", "fixed:20", "--response-len",
           "fixed:4")
    with Cluster(fake=True) as cluster:
        short = output("plan", trace, "--server", cluster.address)
        verbose = output("plan", trace, "--server", cluster.address, "--verbose")
        numbers = json.loads(output("plan", trace, "--server", cluster.address, "-o", "json"))
    assert verbose.startswith(short)
    assert len(short.splitlines()) <= 12 and max(map(len, short.splitlines())) <= 160, short
    for unit in ("FLOP", "iB", " s", "3 groups", "12 rollouts"):
        assert unit in short, short
    for word in ("rho", "epsilon", "rates.linear", "state_bytes.optimizer"):
        assert word not in short and word in verbose, word
    assert numbers["rates"]["linear"] > 0 and numbers["group_costs"]
