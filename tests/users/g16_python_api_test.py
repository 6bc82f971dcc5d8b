"""G16: docs/python.md is the whole client API and runs as it stands; a Future can be awaited; results print short."""

import asyncio
import importlib.util
import inspect
import pathlib
import re

import pytest
import stemma
import stemma.verl
from e2e.errors.server import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()


def load_generator():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "client" / "python" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load_generator()
NAMES = [name for _, names in reference.SECTIONS for name in names]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(worker_flags=()) as running:  # a worker that comes back: an example goes back to a checkpoint
        yield running


def groups(count=2):
    return [stemma.Group(f"g{g}", [1, 2, 3], [stemma.Rollout([4 + r, 5], reward=float(r)) for r in range(2)])
            for g in range(count)]


# The page.

def test_g16_the_reference_is_what_the_code_says():
    head, marker, text = PAGE.partition(reference.MARKER)
    assert marker and text == f"\n{reference.reference()}", "run client/python/reference.py"


def test_g16_the_reference_has_every_public_name_and_no_other():
    exported = set(stemma.__all__) - {"trace", "verl"}
    assert exported == {name for name in NAMES if "." not in name}
    verl = {f"verl.{n}" for n in stemma.verl.__all__ if not n.isupper()}  # the tables are in docs/verl.md
    assert verl == {name for name in NAMES if name.startswith("verl.")}
    trace = {f"trace.{n}" for n, v in vars(stemma.trace).items()
             if not n.startswith("_") and getattr(v, "__module__", "") == "stemma.trace"}
    assert trace == {name for name in NAMES if name.startswith("trace.")}
    assert len(NAMES) == len(set(NAMES))


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", NAMES)
def test_g16_every_parameter_and_field_is_described(name):
    value = reference.resolve(name)
    assert value.__doc__ and not value.__doc__.startswith(f"{name}("), name
    if inspect.isfunction(value):
        assert set(parameters(value)) == reference.documented(value.__doc__), name
        return
    described = reference.documented(value.__doc__)
    if name not in ("Future", "Export"):  # users never make one
        init = value.__init__
        assert set(parameters(init)) <= described | reference.documented(init.__doc__) or \
            issubclass(value, stemma.LineageLostError), name
    for member_name, member in reference.public_members(value):
        if isinstance(member, property):
            assert member.__doc__ or member_name in described, f"{name}.{member_name}"
        else:
            assert member.__doc__, f"{name}.{member_name}"
            assert set(parameters(member)) == reference.documented(member.__doc__), f"{name}.{member_name}"


def test_g16_an_undescribed_parameter_is_noticed():
    def forgets(one, two):
        """Does.

        one         the first
        """
    assert reference.documented(forgets.__doc__) == {"one"} != set(parameters(forgets))


def test_g16_the_pages_examples_run_as_they_stand(cluster):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.partition(reference.MARKER)[0], re.S)
    assert len(blocks) >= 6
    scope = {"address": cluster.address, "prompt": [1, 2, 3, 4, 5, 6]}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), scope)
    assert scope["result"].steps and pathlib.Path(scope["path"]).is_dir()
    resume = next(block for block in blocks if "client.requests()" in block)
    again_where_it_was(scope, resume)
    again_after_what_was_given_up(scope, resume)
    scope["client"].close()


def again_where_it_was(scope, block):
    """The page's script that resumes, started anew after it ended, and with a request of its run under way. Other runs have names
    that begin with its run's, or ids of another form."""
    client = scope["client"]
    for request_id in ("arithmetic-7/b/5/0", "arithmetic-7/b/6", "arithmetic-7/5", "arithmetic-77/5/0"):
        client.update_actor(scope["groups"], stemma.grpo(), stemma.adamw(1e-6), request_id=request_id)
    step = client.model()["step"]
    exec(compile(block, "docs/python.md", "exec"), scope)
    assert scope["sent"] == [f"arithmetic-7/{i}/0" for i in range(3)] and client.model()["step"] == step
    client.submit(scope["groups"], stemma.grpo(), stemma.adamw(1e-6), request_id="arithmetic-7/3/0", epochs=3)
    exec(compile(block.replace(", 3):", ", 6):"), "docs/python.md", "exec"), scope)
    assert scope["sent"][-1] == "arithmetic-7/3/0" and client.model()["step"] == step + 3 + 2, "4 and 5 were left"


def again_after_what_was_given_up(scope, block):
    """The script started anew, with the payloads that it had, after a rollback and after a request that was cancelled."""
    def start(count):
        exec(compile(block.replace("arithmetic-7", "a/b-8").replace(", 3):", f", {count}):"), "docs/python.md", "exec"), scope)

    client = scope["client"]
    start(1)
    client.save_checkpoint("after-0")
    start(3)
    client.load_checkpoint("after-0")
    start(3)
    client.submit(scope["groups"], stemma.grpo(), stemma.adamw(1e-6), request_id="a/b-8/3/1", epochs=500).cancel()
    start(4)
    states = [(r["request_id"], r["state"]) for r in client.requests() if r["request_id"].startswith("a/b-8/")]
    assert states == [("a/b-8/0/0", "DONE"), ("a/b-8/1/0", "ROLLED_BACK"), ("a/b-8/2/0", "ROLLED_BACK"), ("a/b-8/1/1", "DONE"),
                      ("a/b-8/2/1", "DONE"), ("a/b-8/3/1", "CANCELLED"), ("a/b-8/3/2", "DONE")]


def test_g16_examples_call_a_server_where_one_listens_by_default():
    for path in ("client/python/README.md", "client/python/stemma/client.py", "docs/verl.md", "docs/operate.md"):
        ports = re.findall(r"Client\(\"127\.0\.0\.1:(\d+)\"", (ROOT / path).read_text())
        assert set(ports) <= {"7070"}, path


def test_g16_a_digest_is_written_as_the_page_says(cluster):
    with stemma.Client(cluster.address) as client:
        digest = client.save_checkpoint("for-its-digest").weights_digest
    assert re.fullmatch("2:[0-9a-f]{62}", digest)
    said = re.search(r"`weights_digest`: (.*)", PAGE)[1]
    assert all(part in said for part in ("64 characters", '"2:"', "62 hexadecimal digits")), said


# Awaiting.

def test_g16_a_future_is_awaited_without_holding_the_loop(cluster):
    async def run(client):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.ensure_future(tick())
        futures = [client.submit(groups(), stemma.grpo(), stemma.adamw(1e-4), epochs=20) for _ in range(2)]
        before = ticks
        results = await asyncio.gather(*futures)
        ticker.cancel()
        return results, ticks - before

    with stemma.Client(cluster.address) as client:
        results, ticks = asyncio.run(run(client))
    assert [len(r.steps) for r in results] == [20, 20] and results[1].steps[-1].step == results[0].steps[-1].step + 20
    assert ticks > 3  # the loop went round while the steps ran; result() would have held it


def test_g16_what_fails_raises_from_await_and_log_probs_come(cluster):
    async def cancelled(client):
        future = client.submit(groups(), stemma.grpo(), stemma.adamw(1e-4), epochs=500)
        future.cancel()
        await future

    async def with_log_probs(client):
        return await client.submit(groups(), stemma.grpo(), stemma.adamw(1e-4), return_log_probs=True)

    with stemma.Client(cluster.address) as client:
        with pytest.raises(stemma.StemmaError, match="cancelled"):
            asyncio.run(cancelled(client))
        assert set(asyncio.run(with_log_probs(client)).log_probs) == {"g0/0", "g0/1", "g1/0", "g1/1"}


def test_g16_a_task_that_is_cancelled_leaves_its_request(cluster):
    async def run(client):
        future = client.submit(groups(), stemma.grpo(), stemma.adamw(1e-4), epochs=300)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future._wait(), timeout=0.05)
        return future

    with stemma.Client(cluster.address) as client:
        future = asyncio.run(run(client))
        assert len(future.result().steps) == 300


# Printing.

def test_g16_what_comes_back_prints_in_a_line_that_says_what_happened(cluster):
    with stemma.Client(cluster.address) as client:
        future = client.submit(groups(8), stemma.grpo(), stemma.adamw(1e-4), mini_batch=1, epochs=4, return_log_probs=True)
        assert re.fullmatch(r"Future\('py-[\w-]+', [A-Z]+, \d+ of 32 steps\)", repr(future))
        result = future.result()
    text = repr(result)
    print(text)
    assert len(text) < 300 and "\n" not in text
    assert "32 APPLIED" in text and f"to step {result.steps[-1].step}" in text
    assert f"actor/loss {result.metrics['actor/loss']:.4g}" in text and result.request_id in text
    assert len(repr(result.steps[0])) < 200 and "APPLIED" in repr(result.steps[0])
    assert len(repr(result.log_probs["g0/0"])) < 100 and "2 log-probs" in repr(result.log_probs["g0/0"])


def test_g16_long_groups_print_short():
    group = stemma.Group("g0", list(range(10_000)), [stemma.Rollout(list(range(1000)), reward=1.0) for _ in range(64)])
    assert repr(group) == "Group('g0', 10000 prompt tokens, 64 rollouts)"
    assert repr(group.rollouts[0]) == "Rollout(1000 tokens, with reward)"
    assert repr(stemma.Group("g", iter([1]), iter([]))) == "Group('g', 1 prompt tokens, 0 rollouts)"
    assert repr(stemma.Group("g", 4, None)) == "Group('g', ? prompt tokens, ? rollouts)"


def test_g16_a_failed_result_prints_its_warnings():
    result = stemma.UpdateResult("r", [], {}, {}, {}, ["nothing was computed"], "l", False)
    assert repr(result) == "UpdateResult('r', steps: none; warnings: ['nothing was computed'])"
