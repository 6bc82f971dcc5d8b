"""TLS between real processes: who is let in, what is told to who is not, certificates that are renewed, files that are wrong."""

import datetime
import os
import re
import socket
import ssl
import subprocess
import time
import warnings

import grpc
import pytest
import stemma
from stemma import _proto

from e2e.certificates import DAY, Certificates, openssl
from e2e.errors import metrics_page
from e2e.errors.server import BUILD, MODEL, Cluster, start, wait_for
from e2e.own_loopback import HOST, channel_to

PATIENCE_S = 60
GRPC_LOOKS_EVERY_S = 5.5
BRIEF_S = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


def own(issued):
    return ("--tls-cert", str(issued.cert), "--tls-key", str(issued.key))


def credentials(files, issued=None):
    pair = (None, None) if issued is None else (issued.key.read_bytes(), issued.cert.read_bytes())
    return grpc.ssl_channel_credentials(files.ca.read_bytes(), *pair)


@pytest.fixture(scope="module")
def cluster(files):
    """A server with a worker, which ask for no certificates."""
    with Cluster(flags=own(files.server), worker_flags=("--once", "--tls-ca", str(files.ca)), credentials=credentials(files)) as running:
        yield running


def status(address, *flags, environment=(), within_s=1):
    """within_s: how long it looks for the server. One that is not to be let in is told why at once, and tries again."""
    return subprocess.run([BUILD / "bin/stemma", "status", "--server", address, "--connect-timeout", str(within_s), *map(str, flags)],
                          capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **dict(environment)})


def test_a_step_is_trained_over_tls(files, cluster):
    """The request streams up, its result down, and the worker has its groups by TLS, too."""
    groups = [stemma.Group("g0", [1, 2, 3, 4], [stemma.Rollout([5 + i, 6, 7], reward=float(i)) for i in range(3)])]
    with stemma.Client(cluster.address, connect_timeout_s=5, tls=stemma.Tls(files.ca)) as client:
        result = client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-3), return_log_probs=True)
    assert result.steps[0].outcome == "APPLIED"
    assert "both by TLS" in cluster.said()


def test_the_command_line_has_its_ca_by_option_or_variable(files, cluster):
    for result in (status(cluster.address, "--tls-ca", files.ca, within_s=PATIENCE_S),
                   status(cluster.address, environment={"STEMMA_TLS_CA": str(files.ca)}, within_s=PATIENCE_S)):
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("listener", ["address", "worker_address"])
def test_the_listeners_speak_tls_of_today_and_http2(files, cluster, listener):
    host, port = getattr(cluster, listener).rsplit(":", 1)
    context = ssl.create_default_context(cafile=files.ca)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        assert tls.version() in ("TLSv1.2", "TLSv1.3") and tls.selected_alpn_protocol() == "h2"
        assert ("IP Address", HOST) in tls.getpeercert()["subjectAltName"]
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(files.ca)
    old.set_ciphers("ALL:@SECLEVEL=0")  # else this side would not try
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw, pytest.raises(ssl.SSLError, match="EOF|ALERT"):
        old.wrap_socket(raw, server_hostname=host)


def test_plaintext_gets_no_answer(cluster):
    with channel_to(cluster.address) as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/stemma.v1.TrainingService/GetServerInfo")(b"", timeout=PATIENCE_S)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def test_health_is_plaintext_all_the_same(cluster):
    with channel_to(cluster.ops_address) as channel:
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"\n\x08liveness", timeout=PATIENCE_S)
    assert answer == b"\x08\x01"


# What is told of a server: its certificate, the CA that its client has, and part of the words.
REFUSED = [("server", "other_ca", "no CA of --tls-ca signed it"),
           ("elsewhere", "ca", "the server's certificate does not name this host"),
           (None, "ca", "the server speaks no TLS: give it --tls-cert, or leave out --tls-ca and STEMMA_TLS_CA"),
           ("server", None, "where the server speaks TLS, which --tls-cert makes it do, --tls-ca is needed")]


@pytest.mark.parametrize("who, ca, words", REFUSED)
def test_command_line_and_worker_say_why_a_server_is_not_the_one_that_is_meant(files, who, ca, words):
    with Cluster(flags=who and own(getattr(files, who)) or (), worker=False) as running:
        ca_flags = ca and ("--tls-ca", str(getattr(files, ca))) or ()
        running.worker_flags = ca_flags
        running.start_worker(wait=False)
        result = status(running.address, *ca_flags)
        assert result.returncode == 3 and words in result.stderr, result.stderr
        wait_for(lambda: re.search(f"no server at {running.worker_address} yet .*{words}", running.said()), "the worker's line")
        assert "registers" not in running.said()


def test_a_server_with_a_ca_takes_clients_and_workers_with_its_certificates(files):
    with Cluster(flags=(*own(files.server), "--tls-ca", str(files.ca)), worker_flags=("--tls-ca", str(files.ca), *own(files.client)),
                 credentials=credentials(files, files.client)) as running:
        variables = {"STEMMA_TLS_CA": str(files.ca), "STEMMA_TLS_CERT": str(files.client.cert), "STEMMA_TLS_KEY": str(files.client.key)}
        for result in (status(running.address, "--tls-ca", files.ca, *own(files.client), within_s=PATIENCE_S),
                       status(running.address, environment=variables, within_s=PATIENCE_S)):
            assert result.returncode == 0, result.stderr
        for flags in ((), own(files.stranger)):
            refused = status(running.address, "--tls-ca", files.ca, *flags)
            assert refused.returncode == 3 and "it wants a certificate that one of these CAs signed" in refused.stderr, refused.stderr
        for shown in (None, files.stranger):
            with channel_to(running.worker_address, credentials=credentials(files, shown)) as channel, pytest.raises(grpc.RpcError) as error:
                list(channel.stream_stream("/stemma.internal.v1.WorkerService/Session")(iter(()), timeout=PATIENCE_S))
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "WARNING somebody is refused in TLS: peer did not return a certificate" in running.said()
        assert "WARNING somebody is refused in TLS: certificate verify failed" in running.said()


def test_a_session_that_is_resumed_does_not_outlive_its_certificate(files):
    """OpenSSL takes a ticket for what it saw of the certificate when that was good."""
    with Cluster(flags=(*own(files.server), "--tls-ca", str(files.ca)), worker=False) as running:
        brief = files.authority.issue("brief", ["client.example"], ends=datetime.timedelta(seconds=BRIEF_S))
        host, port = running.address.rsplit(":", 1)
        context = ssl.create_default_context(cafile=files.ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # its ticket comes within the handshake
        context.load_cert_chain(brief.cert, brief.key)
        context.set_alpn_protocols(["h2"])

        def greeting(session):
            """What the server begins with, and the session of the connection."""
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw, \
                    context.wrap_socket(raw, server_hostname=host, session=session) as tls:
                assert tls.session_reused == (session is not None)
                tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
                try:
                    return tls.recv(1), tls.session
                except ConnectionError:
                    return b"", None

        begun, session = greeting(None)
        assert begun and greeting(session)[0], "while it is good"
        wait_for(lambda: not greeting(session)[0], "the end of the certificate")
        assert "somebody is refused in TLS: brief: its certificate ended at" in running.said()


def test_a_worker_whose_files_are_renewed_while_its_server_is_away_waits_for_them(files):
    """Its own certificate and key do not fit when it starts itself anew."""
    own_now, later = files.authority.issue("own", ["w.example"]), files.authority.issue("renewed-own", ["w.example"])
    with Cluster(flags=(*own(files.server), "--tls-ca", str(files.ca)), worker_flags=("--tls-ca", str(files.ca), *own(own_now)),
                 credentials=credentials(files, files.client)) as running:
        os.replace(later.key, own_now.key)
        running.server.kill()
        running.server.wait()
        wait_for(lambda: "waits for the files of TLS" in running.said(), "the worker")
        running.restart_server()
        os.replace(later.cert, own_now.cert)
        wait_for(lambda: running.state() == "IDLE", "the worker to come back")
        assert running.worker.poll() is None


def test_a_renewed_certificate_is_taken_without_a_restart(files):
    """Key and certificate are replaced one after the other: in between they do not fit, and the log says so."""
    shown = files.authority.issue("shown", [HOST], ends=DAY / 5)
    with Cluster(flags=own(shown), worker_flags=("--once", "--tls-ca", str(files.ca)), credentials=credentials(files)) as running:
        assert running.state() == "IDLE"
        first = serial(files, running.address)
        renewed = files.authority.issue("renewed", [HOST])
        os.replace(renewed.key, shown.key)
        wait_for(lambda: "shown.key: it is not the key of the first certificate" in running.said(), "the log")
        os.replace(renewed.cert, shown.cert)
        wait_for(lambda: serial(files, running.address) not in (first, None), "the renewed certificate")
        wait_for(lambda: "the files of TLS are whole again" in running.said(), "the log")
        assert running.state() == "IDLE" and running.worker.poll() is None, "connections that were there go on"
        assert re.search("WARNING the certificate of --tls-cert ends at .* renew it", running.said())


def ends_at(cert):
    """In seconds since 1970, as the `openssl` program reads it."""
    text = subprocess.run(["openssl", "x509", "-in", cert, "-noout", "-enddate"], check=True, capture_output=True, text=True).stdout
    return ssl.cert_time_to_seconds(text.strip().partition("=")[2])


def test_metrics_say_when_certificates_end_and_that_files_are_spoiled(files):
    shown = files.authority.issue("measured", [HOST], ends=DAY)
    flags = (*own(shown), "--tls-ca", str(files.ca), "--metrics-listen", "127.0.0.1:0")
    with Cluster(flags=flags, worker=False) as running:
        def ends():
            return metrics_page.read(running)["stemma_tls_ends_seconds"]

        def whole():
            return metrics_page.read(running)["stemma_tls_files_whole"]

        first = ends_at(shown.cert)
        assert (ends(), whole()) == ({"cert": first, "ca": ends_at(files.ca)}, 1)
        renewed = files.authority.issue("measured-later", [HOST], ends=2 * DAY)
        os.replace(renewed.key, shown.key)
        wait_for(lambda: whole() == 0, "the key to be missed")
        assert ends()["cert"] == first
        os.replace(renewed.cert, shown.cert)
        wait_for(lambda: whole() == 1, "the renewed certificate")
        assert ends()["cert"] == ends_at(shown.cert) == pytest.approx(first + DAY.total_seconds(), abs=60)
    with Cluster(flags=("--metrics-listen", "127.0.0.1:0"), worker=False) as plain:
        assert not [name for name in metrics_page.read(plain) if "tls" in name]


def serial(files, address):
    """Reads it from the certificate that is shown now; None: none is."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=files.ca)
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
            return tls.getpeercert()["serialNumber"]
    except ssl.SSLError:
        return None


def test_without_its_files_a_server_lets_nobody_else_in(files, tmp_path):
    """What was read before stays in force, so that no removed CA opens the port; what is no CA closes it."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(files.ca.read_bytes())
    with Cluster(flags=(*own(files.server), "--tls-ca", str(ca)), worker=False) as running:
        def exits():
            return [status(running.address, "--tls-ca", files.ca, *shown).returncode for shown in ((), own(files.stranger), own(files.client))]
        assert exits() == [3, 3, 4]  # 4: the server answers, and has no worker
        ca.unlink()
        wait_for(lambda: "--tls-ca: " in running.said(), "the log")
        time.sleep(GRPC_LOOKS_EVERY_S)
        assert exits() == [3, 3, 4]
        ca.write_text("no certificate\n")
        wait_for(lambda: status(running.address, "--tls-ca", files.ca, *own(files.client)).returncode == 3, "gRPC to read it")
        assert exits() == [3, 3, 3]


def test_files_that_are_wrong_are_refused_by_name(files, tmp_path):
    text, long, both, turned, chain, spoiled, open_key, locked, link = (
        tmp_path / name for name in ("text", "long", "both", "turned", "chain", "spoiled", "open", "locked", "link"))
    text.write_text("no certificate\n")
    text.chmod(0o600)
    long.write_text("#" * (2 << 20))
    both.write_text(files.ended.cert.read_text() + files.ca.read_text())
    turned.write_text(files.ca.read_text() + files.ended.cert.read_text())
    chain.write_text(files.server.cert.read_text() + files.ended.cert.read_text())  # as of a cross-signed root
    kinds = [(files.authority.issue("unnamed", []), "unnamed.pem: it has no subject alternative names"),
             (files.authority.issue("small", [HOST], key_kind=("-newkey", "rsa:1024")), "small.key: not every client checks"),
             (files.authority.issue("clients", [HOST], usage="clientAuth"), "clients.pem: by its .extended. key usage it is not for servers"),
             (files.authority.issue("servers", [HOST], usage="serverAuth"), None),
             (files.authority.issue("sha1", [HOST], digest="sha1"), "sha1.pem: OpenSSL does not take it: .*; have one made"),
             (files.authority.issue("rsa", [HOST], key_kind=("-newkey", "rsa:2048")), None),
             (files.authority.issue("p384", [HOST], key_kind=("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1")), None),
             (files.authority.issue("p521", [HOST], key_kind=("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp521r1")),
              "p521.key: not every client checks"),
             (files.authority.issue("ed25519", [HOST], key_kind=("-newkey", "ed25519")), "ed25519.key: not every client checks")]
    spoiled.write_text(files.server.cert.read_text() + "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    open_key.write_bytes(files.server.key.read_bytes())
    open_key.chmod(0o644)
    openssl("pkey", "-in", files.server.key, "-aes256", "-passout", "pass:x", "-out", locked)
    locked.chmod(0o600)
    link.symlink_to(files.server.key)
    os.mkfifo(tmp_path / "fifo")
    cert, key, ca = files.server.cert, files.server.key, files.ca
    for flags, words in [
            (("--tls-cert", cert), "--tls-key: is missing: --tls-cert needs it"),
            (("--tls-key", key), "--tls-cert: is missing: --tls-key needs it"),
            (("--tls-ca", ca), "--tls-cert: is missing: --tls-ca asks others for certificates"),
            (("--tls-cert", cert, "--tls-key", tmp_path / "none"), "--tls-key: .*/none: No such file"),
            (("--tls-cert", tmp_path, "--tls-key", key), "--tls-cert: .*not a regular file|--tls-cert: .*directory"),
            (("--tls-cert", tmp_path / "fifo", "--tls-key", key), "--tls-cert: .*fifo.*not a regular file"),
            (("--tls-cert", text, "--tls-key", key), "--tls-cert: .*/text: it holds no certificate in PEM"),
            (("--tls-cert", long, "--tls-key", key), "--tls-cert: .*/long: .*1048576"),
            (("--tls-cert", spoiled, "--tls-key", key), "--tls-cert: .*/spoiled: certificate 2 in it cannot be read"),
            (("--tls-cert", files.ended.cert, "--tls-key", files.ended.key), r"--tls-cert: .*ended.pem: the certificate ended at \d{4}-"),
            (("--tls-cert", files.later.cert, "--tls-key", files.later.key), r"later.pem: the certificate begins at \d{4}-.* UTC: renew it, or look"),
            (("--tls-cert", cert, "--tls-key", text), "--tls-key: .*/text: it holds no private key in PEM"),
            (("--tls-cert", cert, "--tls-key", open_key), "--tls-key: .*/open: every user of this machine has access to it .mode 0644"),
            (("--tls-cert", cert, "--tls-key", locked), "--tls-key: .*/locked: it is encrypted"),
            (("--tls-cert", cert, "--tls-key", files.client.key), "--tls-key: .*client.key: it is not the key of the first certificate"),
            (("--tls-cert", cert, "--tls-key", key, "--tls-ca", text), "--tls-ca: .*/text: it holds no certificate in PEM"),
            (("--tls-cert", cert, "--tls-key", key, "--tls-ca", files.ended.cert), "--tls-ca: .*ended.pem: no certificate in it is valid; the last one ended"),
            (("--tls-cert", cert, "--tls-key", link, "--tls-ca", both), None),
            (("--tls-cert", cert, "--tls-key", key, "--tls-ca", turned), None),
            (("--tls-cert", turned, "--tls-key", key), "--tls-key: .*server.key: it is not the key of the first certificate"),
            (("--tls-cert", chain, "--tls-key", key), None),
            *((own(of), words) for of, words in kinds)]:
        code, said = start(tmp_path, "--model", MODEL, "--check-config", *flags)
        assert (code, bool(re.search(words or "^$", said))) == (2 if words else 0, True), (flags, said)


def test_beyond_loopback_tls_stands_for_insecure(files, tmp_path):
    everywhere = ("--listen", "0.0.0.0:0", "--worker-listen", "0.0.0.0:0", "--ops-listen", "0.0.0.0:0", "--metrics-listen", "0.0.0.0:0")
    code, said = start(tmp_path, "--model", MODEL, "--check-config", *everywhere)
    assert code == 2 and said.count("plaintext; give --tls-cert and --tls-key, or add --insecure") == 2, said
    assert said.count("plaintext; add --insecure") == 2, said
    assert start(tmp_path, "--model", MODEL, "--check-config", *everywhere, *own(files.server))[0] == 0


def test_who_lets_everybody_in_beyond_loopback_is_warned(files):
    with Cluster(flags=(*own(files.server), "--listen", "0.0.0.0:0", "--worker-listen", f"{HOST}:0"), worker=False) as open_to_all:
        assert "may train, load and export: --tls-ca lets in those with a certificate alone" in open_to_all.said()
    flags = (*own(files.server), "--tls-ca", str(files.ca), "--listen", "0.0.0.0:0", "--worker-listen", f"{HOST}:0")
    with Cluster(flags=flags, worker=False) as closed:
        assert "may train" not in closed.said()


def test_a_certificate_that_has_the_host_as_its_common_name_alone_is_no_forged_server(files):
    """gRPC connects by that name, and then refuses the call; a worker without the server's secret would end with 2."""
    with Cluster(flags=own(files.authority.issue(HOST, ["127.255.255.254"])), worker=False) as running:
        running.worker_flags = ("--tls-ca", str(files.ca))
        running.start_worker(wait=False)
        wait_for(lambda: running.said().count("does not name this host among its subject alternative names") >= 2, "two tries")
        assert running.worker.poll() is None and "secret" not in running.said()


def test_a_client_is_told_which_file_of_its_own_is_wrong(files, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    for flags, words in [(own(files.client), "--tls-ca: is missing: it says that the server speaks TLS"),
                         (("--tls-ca", files.server.key), "--tls-ca: .*server.key: it holds no certificate in PEM"),
                         (("--tls-ca", files.ca, "--tls-cert", files.client.cert), "--tls-key: is missing: --tls-cert needs it"),
                         (("--tls-ca", files.ca, *own(files.authority.issue("for-servers", ["x.example"], usage="serverAuth"))),
                          "--tls-cert: .*for-servers.pem: by its .extended. key usage it is not for clients")]:
        result = status("127.0.0.1:7070", *flags)
        assert result.returncode == 2 and re.search(words, result.stderr), result.stderr
        worker = subprocess.run([BUILD / "bin/stemma-worker", "--server", "127.0.0.1:7071", "--worker-secret-file", secret,
                                 *map(str, flags)], capture_output=True, text=True, timeout=PATIENCE_S)
        assert worker.returncode == 2 and re.search(words, worker.stderr), worker.stderr


def test_who_begins_no_handshake_is_let_go(cluster):
    """A connection that says nothing, and one that sends half of a greeting, end; a client beside them is served."""
    host, port = cluster.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as silent, socket.create_connection((host, int(port))) as half:
        half.settimeout(PATIENCE_S)
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert cluster.stub.GetModel(_proto.GetModelRequest()).lineage
        assert silent.recv(1) == b"" and half.recv(1) == b""
