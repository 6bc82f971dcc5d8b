"""K4: the snippets of docs/frameworks.md that bring weights to a rollout engine, against a server that records what it is sent and
loads what it is pointed at. No engine is run."""

import contextlib
import http.server
import json
import threading
import urllib.error

import pytest
import stemma
import torch
import transformers
from e2e.errors.server import Cluster
from k1_frameworks_test import block_with


@contextlib.contextmanager
def engine(status=200):
    """(address, requests): each is its path, its body, and the model that was at the path in it, None where there is none."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = body.get("model_path") or body.get("kwargs", {}).get("weights_path")
            model = path and transformers.AutoModelForCausalLM.from_pretrained(path)
            requests.append((self.path, body, model))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(name="client", scope="module")
def _client():
    with Cluster(flags=("--dtype", "fp32")) as cluster, stemma.Client(cluster.address) as made:
        made.data = cluster.root / "data"
        yield made


@pytest.fixture(name="page", scope="module")
def _page():
    scope = {}
    exec(compile(block_with("def weights_to_sglang"), "docs/frameworks.md", "exec"), scope)
    return scope


def left(client):
    return list((client.data / "exports").glob("*"))


@pytest.mark.parametrize("engine_name, routes", [("sglang", ["/update_weights_from_disk"]),
                                                 ("vllm", ["/collective_rpc", "/reset_prefix_cache"])])
def test_k4_the_engine_is_pointed_at_the_trained_weights(client, page, engine_name, routes):
    group = stemma.Group("g", [3, 4], [stemma.Rollout([5], reward=1.0), stemma.Rollout([6], reward=0.0)])
    result = client.update_actor([group], stemma.grpo(), stemma.adamw(0.1))
    expected = client.log_probs([group])["g/0"].log_probs[0]
    with engine() as (url, requests):
        page[f"weights_to_{engine_name}"](client, url, "now")
    assert [path for path, *_ in requests] == routes and not left(client)
    _, body, model = requests[0]
    logits = model.float()(torch.tensor([[3, 4]])).logits[0, -1]
    assert torch.log_softmax(logits, -1)[5].item() == pytest.approx(expected, abs=1e-5)  # float32, in another order
    if engine_name == "sglang":
        assert body["weight_version"] == str(result.steps[-1].weight_version)


@pytest.mark.parametrize("engine_name", ["sglang", "vllm"])
def test_k4_an_engine_that_refuses_is_an_error_and_leaves_no_export(client, page, engine_name):
    with engine(status=400) as (url, requests), pytest.raises(urllib.error.HTTPError):
        page[f"weights_to_{engine_name}"](client, url, "now")
    assert len(requests) == 1 and not left(client)
