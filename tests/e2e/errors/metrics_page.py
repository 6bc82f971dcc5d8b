"""/metrics of a cluster that was started with --metrics-listen, as Prometheus reads it."""

import contextlib
import http.client
import re

from e2e.errors.server import PATIENCE_S

# A sample of the text format: a name, labels, a number.
SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{([a-z_]+)="((?:[^"\\\n]|\\.)*)"\})? (\S+)')


def address(cluster):
    found = re.search(r"(?m)^metrics (\S+):(\d+)$", (cluster.root / "ready").read_text())
    return found[1], int(found[2])


def ask(cluster, path="/metrics", method="GET"):
    with contextlib.closing(http.client.HTTPConnection(*address(cluster), timeout=PATIENCE_S)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def read(cluster):
    """{name: value, or {label's value: value}}, of Stemma's own; the text is held to its format on the way."""
    status, text = ask(cluster)
    assert status == 200
    found, kind, helped = {}, {}, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind[name] = line.split()
        elif line.startswith("stemma_"):
            name, label, value, number = SAMPLE.fullmatch(line).groups()
            assert name in helped and kind[name] == ("counter" if name.endswith("_total") else "gauge"), line
            if label is None:
                assert name not in found, line
                found[name] = float(number)
            else:
                assert value not in found.setdefault(name, {}), line
                found[name][value] = float(number)
    return found
