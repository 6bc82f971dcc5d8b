"""A whole training run that is drawn from a seed: a model, and what happens to it one after another. Requests train it, some at once,
some with the server or a rank killed meanwhile, one cancelled; log-probs are computed; checkpoints are saved and loaded; ranks, the
server or all of them are killed; and it goes on on another mesh, under other memory settings. The oracle trains beside it, and never
loses anything.
"""

import os
import random
import signal
import threading
import time

import grpc

from e2e.errors.server import wait_for, word
from e2e.own_loopback import channel_to
from e2e.recovery.durable_run import DurableRun
from golden.crowd import Crowd, at_once
from golden.pair import FORWARD, WEIGHT, Pair, deviations, tensor_deviation
from golden.random_requests import Draw
from oracle import models, requests
from stemma import _proto
from stemma._stub import TrainingStub

RANKS_MAX = int(os.environ.get("STEMMA_RUNS_RANKS", "4"))
POSITIONS = 128
STRIKE_WITHIN_S = 1.0  # after a request was sent: most of these requests take less


class LongDraw(Draw):
    """Requests whose prompts and responses are long enough to be cut among ranks, and into blocks."""

    def _shape(self):
        rng, left, shape = self.rng, 24, []
        while left > 0 and (not shape or self.chance(0.75)):
            count = min(left, rng.randint(1, 7))
            shape.append((rng.choice([1, 2, rng.randint(1, 20), rng.randint(20, 70)]),
                          [rng.choice([0, 1, rng.randint(1, 9), rng.randint(1, 40)]) for _ in range(count)]))
            left -= count
        return shape


def draw_spec(rng):
    family = rng.choice(["llama", "qwen2", "qwen3", "qwen3_moe", "mistral"])
    heads = rng.choice([2, 4, 6])
    head_size = rng.choice([4, 8])
    hidden = heads * (head_size if family == "qwen2" else rng.choice([3, 5, 8]))
    return models.Spec(family, hidden=hidden, layers=rng.randint(2, 4), heads=heads, head_size=head_size, ffn=rng.choice([12, 24, 36]),
                       kv_heads=rng.choice([number for number in range(1, heads + 1) if heads % number == 0]),
                       vocab=rng.randint(40, 70), positions=POSITIONS, tied=rng.random() < 0.5,
                       scaled=family == "llama" and rng.random() < 0.5, seed=rng.randrange(1000),
                       **models.drawn_experts(rng, family))


def _tp_sizes(spec):
    """docs/parallelism.md, what a mesh asks of the model."""
    return [tp for tp in range(1, RANKS_MAX + 1) if spec.heads % tp == 0 and spec.ffn % tp == 0 and
            (spec.kv_heads % tp == 0 or tp % spec.kv_heads == 0)]


def draw_mesh(rng, spec):
    meshes = [{"dp": dp, "pp": pp, "cp": cp, "tp": tp}
              for dp in range(1, RANKS_MAX + 1) for pp in range(1, spec.layers + 1) for cp in range(1, RANKS_MAX + 1)
              for tp in _tp_sizes(spec) if dp * pp * cp * tp <= RANKS_MAX]
    mesh = rng.choice(meshes)
    if spec.family == "qwen3_moe" and mesh["tp"] > 1:
        mesh["ep"] = rng.choice([ep for ep in range(1, mesh["tp"] + 1) if mesh["tp"] % ep == 0 and spec.experts % ep == 0])
    return mesh


def draw_keys(rng):
    """Lines of run.yaml: what the planner would choose by itself, forced here and there."""
    choices = {
        "layout": ["one_by_one", "padded", "packed"], "wave_suffixes": range(1, 6), "prefix_policy": [f"s{n}" for n in range(6)],
        "suffix_policy": [f"s{n}" for n in range(5)], "prefix_block_rows": range(1, 20), "offload": ["on", "off"],
        "optimizer_residency": ["host", "device"], "head_chunk_tokens": range(1, 20), "split_groups": ["on", "off"],
        "shard_parameters": ["on", "off"], "prefix_kv": ["hold", "regather"], "reduce_gradients": ["sweep", "step"]}
    keys = {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.4}
    if keys.get("layout") == "one_by_one":
        keys.pop("wave_suffixes", None)  # the server refuses both
    if keys.get("prefix_policy") == "s5":
        keys.pop("offload", None)  # likewise, where it is on
    return keys


class PatientStub(TrainingStub):
    """Sends an update again until it is answered: its id makes it one request."""

    def __init__(self, channel):
        super().__init__(channel)
        self._send = self.UpdateActor
        self.UpdateActor = self._update

    def _update(self, parts, timeout):
        parts, until = list(parts), time.monotonic() + timeout
        while True:
            try:
                return self._send(iter(parts), timeout=timeout, wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > until:
                    raise
                time.sleep(0.05)


class Served:
    """The product on one mesh, until it is stopped or killed."""

    def __init__(self, model, data, mesh, keys):
        self.mesh = mesh
        ranks = mesh["dp"] * mesh["pp"] * mesh["cp"] * mesh["tp"]
        config = data / "run.yaml"
        config.write_text("\n".join(["memory_budget_bytes: 1GB", "host_memory_bytes: 64MB", "threads: 1",
                                     *(f"{key}: {value}" for key, value in keys.items()), ""]))
        flags = ("--config", config, "--mesh", ",".join(f"{axis}={size}" for axis, size in mesh.items()))
        self.run = DurableRun(model, data, ranks=ranks, flags=flags, dtype="fp64", planned=())
        self._connect()
        self.wait_until_idle()

    def _connect(self):
        self._channel = channel_to(self.run.address, options=[("grpc.max_send_message_length", -1)])
        self.stub = PatientStub(self._channel)

    def kill(self, program, rng):
        """Kills one process of that program, and waits until all ranks have the model again."""
        served = self.run.times_served()
        self.strike(program, rng)
        self.wait_until_served(served)

    def strike(self, program, rng):
        os.kill(rng.choice(sorted(pid for pid, name in self.run.children().items() if name == program)), signal.SIGKILL)

    def wait_until_served(self, times):
        wait_for(lambda: self.run.times_served() > times, f"ranks that have the model again\n{self.run.log.read_text()[-4000:]}")
        self._channel.close()
        self._connect()
        self.wait_until_idle()

    def wait_until_idle(self):
        wait_for(lambda: self._state() == "IDLE", "steps that were computed again")

    def _state(self):
        return word(self.stub.GetModel(_proto.GetModelRequest(), wait_for_ready=True), "state")

    def kill_all(self):
        self._channel.close()
        self.run.kill()

    def close(self):
        self._channel.close()
        self.run.close()
        assert self.run.process.returncode == 0, self.run.log.read_text()[-4000:]


class DrawnRun:
    """The story of one seed. `told` is what has happened so far. `controls`: words that change the oracle's side, for tests that
    this one can fail: "forgets moments", where a checkpoint is loaded; "stays", where it does not load it."""

    def __init__(self, seed, scratch, controls=()):
        self._rng, self._data, self._controls = random.Random(seed), scratch / "run", controls
        self._data.mkdir()
        self._spec = draw_spec(self._rng)
        self.told = []
        self._saved = {}  # the oracle's state by the checkpoint's name
        self._tell(f"{self._spec}")
        self._pair = Pair(self._spec, scratch, self._serve)

    def close(self):
        if self._pair.cluster.run.process.poll() is None:
            self._pair.cluster.kill_all()

    def _tell(self, line):
        self.told.append(line)
        print(line, flush=True)

    def _serve(self, model):
        mesh, keys = draw_mesh(self._rng, self._spec), draw_keys(self._rng)
        self._tell(f"starts on {mesh} with {keys}")
        return Served(model, self._data, mesh, keys)

    def go_on(self, events):
        """So many things happen; after each the product is held against the oracle. Ends with a stop that has nothing to hide."""
        self.request()
        for _ in range(events):
            happens = self._rng.choices(
                [self.request, self.several_at_once, self.log_probs, self.loses_a_process, self.moves, self.saves, self.loads],
                [6, 3, 2, 2, 3, 2, 2 if self._saved else 0])[0]
            happens()
        self._pair.cluster.close()

    def request(self):
        seed = self._rng.randrange(2**31)
        request = LongDraw(seed, self._pair.model, self._spec.vocab).request()
        struck = self._rng.choices([None, "stemma-worker", "stemma-server"], [6, 2, 2])[0]
        if request["header"].get("return_log_probs") and struck == "stemma-server":
            struck = None  # log-probs are in its memory alone
        self._tell(f"request {seed}{f', a {struck} is killed meanwhile' if struck else ''}: {request['header']}, of "
                   f"{[(len(g['prompt_tokens']), [len(r['response_tokens']) for r in g['rollouts']]) for g in request['groups']]}")
        if struck:
            served = self._pair.cluster.run.times_served()
            killer = threading.Thread(target=self._kills_later, args=(struck, self._rng.uniform(0, STRIKE_WITHIN_S)))
            killer.start()

        def afterwards():
            if struck:
                killer.join()
                self._pair.cluster.wait_until_served(served)
        actual, expected = self._pair.send(request, afterwards)
        self._agree(deviations(actual, expected))
        self._pair.adopt(actual.weights)

    def _kills_later(self, program, after_s):
        time.sleep(after_s)
        self._pair.cluster.strike(program, self._rng)

    def several_at_once(self):
        """Clients that know nothing of each other send updates and ask for exports; one update is cancelled, and a rank may be killed.
        Whatever order the server takes, the steps that it names are the oracle's, and so is what was exported at each of them."""
        count, struck = self._rng.randint(2, 4), self._rng.random() < 0.4
        drawn = [LongDraw(self._rng.randrange(2**31), self._pair.model, self._spec.vocab).request() for _ in range(count)]
        self._tell(f"{count} requests at once{', a rank is killed meanwhile' if struck else ''}")
        crowd = Crowd(self._pair.cluster, f"crowd{len(self.told)}", drawn)
        served, begin = self._pair.cluster.run.times_served(), crowd.step()
        waits = [self._rng.uniform(0, STRIKE_WITHIN_S) for _ in range(3)]
        cancelled = self._rng.randrange(count)
        tasks = [*crowd.sends(), lambda: crowd.cancels(cancelled, waits[0]), lambda: crowd.exports(waits[1])]
        if struck:
            tasks.append(lambda: self._kills_later("stemma-worker", waits[2]))
        at_once(tasks)
        if struck:
            self._pair.cluster.wait_until_served(served)
        weights = {begin: self._pair.trainer.weights()}
        for index, steps in crowd.order(begin):
            self._tell(f"  number {index} made steps {steps}{' and was cancelled' if crowd.was_cancelled(index) else ''}")
            self._trains(crowd, index, steps, weights)
        assert crowd.step() == max(weights)
        for step_number, exported in crowd.exported:
            self._agree({f"export at step {step_number}": tensor_deviation(exported, weights[step_number]) / WEIGHT})
        self._same_weights()

    def _trains(self, crowd, index, steps, weights):
        """Has the oracle make the steps of a request that the product made; notes the weights behind them."""
        history = self._pair.trainer.update(crowd.requests[index], crowd.orders(index),
                                            applied_max=len(steps) if crowd.was_cancelled(index) else None)
        outcomes = [outcome.outcome for outcome in history]
        assert outcomes.count("APPLIED") == len(steps), f"{outcomes}, but the server says {steps}"
        weights[max(steps, default=max(weights))] = self._pair.trainer.weights()

    def log_probs(self):
        groups = requests.skeleton([(self._rng.randint(1, 60), [self._rng.randint(0, 40) for _ in range(3)]) for _ in range(3)],
                                   self._spec.vocab, self._rng.randrange(2**31))
        self._tell("log-probs")
        actual = self._pair.product_log_probs(groups, 0.75, self._rng.choice(["AUTO", "REUSE", "DENSE"]))
        expected = self._pair.oracle_log_probs(groups, 0.75)
        self._agree({what: tensor_deviation(*both) / FORWARD
                     for what, *both in zip(["log-probs", "entropies"], actual, expected)})

    def loses_a_process(self):
        program = self._rng.choice(["stemma-server", "stemma-worker"])
        self._tell(f"a {program} is killed")
        self._pair.cluster.kill(program, self._rng)
        self._same_weights()

    def moves(self):
        """Ends, in order or not, and starts on another mesh: steps that no checkpoint holds are computed again there."""
        killed = self._rng.random() < 0.5
        self._tell("everything is killed" if killed else "is stopped")
        if killed:
            self._pair.cluster.kill_all()
        else:
            self._pair.cluster.close()
        self._pair.cluster = self._serve(self._pair.directory)
        self._same_weights()

    def saves(self):
        name = f"c{len(self._saved)}"
        self._tell(f"saves {name}")
        with self._pair.cluster.run.client() as client:
            client.save_checkpoint(name, pinned=True)
        self._saved[name] = self._pair.trainer.snapshot()

    def loads(self):
        name = self._rng.choice(sorted(self._saved))
        self._tell(f"loads {name}")
        with self._pair.cluster.run.client() as client:
            client.load_checkpoint(name)
        self._pair.cluster.wait_until_idle()
        weights, optimizer = self._saved[name]
        if "forgets moments" in self._controls:
            optimizer = self._pair.trainer.snapshot()[1]
        if "stays" not in self._controls:
            self._pair.trainer.restore((weights, optimizer))
        self._same_weights()

    def _same_weights(self):
        weights = self._pair.exported(f"after{len(self.told)}")
        self._agree({"weights": tensor_deviation(weights, self._pair.trainer.weights()) / WEIGHT})

    def _agree(self, found):
        assert max(found.values()) <= 1, f"in units of the tolerance: {found}"
