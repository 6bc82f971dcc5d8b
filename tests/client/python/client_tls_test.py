"""stemma.Tls: a connection that is encrypted, to the server that is meant; what is wrong with it is told in words."""


import grpc
import pytest
import stemma
from e2e.certificates import Certificates, openssl
from e2e.own_loopback import HOST

from checkpoint_test import Model
from fake_server import FakeServer

ANSWERS = {"GetModel": lambda *_: Model(lineage="L1", step=3, weight_version=4)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


def server_of(issued, clients_ca=None):
    """A server with this certificate, which asks clients for one where a CA is given; None: plaintext."""
    if issued is None:
        return FakeServer(ANSWERS)
    asks = None if clients_ca is None else clients_ca.read_bytes()
    return FakeServer(ANSWERS, credentials=grpc.ssl_server_credentials([(issued.key.read_bytes(), issued.cert.read_bytes())], asks,
                                                                       asks is not None))


def step_of(server, tls):
    with stemma.Client(server.address, connect_timeout_s=5, tls=tls) as client:
        return client.model()["step"]


def refusal(server, tls):
    with stemma.Client(server.address, connect_timeout_s=1, tls=tls) as client, pytest.raises(stemma.StemmaError) as error:
        client.model()
    assert error.value.code == "UNAVAILABLE" and server.address in str(error.value)
    return str(error.value)


def test_a_server_with_a_certificate_of_the_ca_is_reached(files):
    with server_of(files.server) as server:
        assert step_of(server, stemma.Tls(files.ca)) == 3
        assert step_of(server, stemma.Tls(str(files.ca))) == 3


def test_a_server_that_asks_for_a_certificate_takes_those_of_its_ca(files):
    with server_of(files.server, clients_ca=files.ca) as server:
        assert step_of(server, stemma.Tls(files.ca, files.client.cert, files.client.key)) == 3
        for tls in (stemma.Tls(files.ca), stemma.Tls(files.ca, files.stranger.cert, files.stranger.key)):
            assert "it wants a certificate that one of these CAs signed" in refusal(server, tls)


@pytest.mark.parametrize("who, ca, words", [
    ("server", "other_ca", "no CA of tls.ca signed it"),
    ("elsewhere", "ca", "the server's certificate does not name this host"),
    ("ended", "ca", "the server's certificate has ended"),
    ("later", "ca", "the server's certificate begins later"),
    (None, "ca", "the server speaks no TLS"),
    ("server", None, "needs tls=stemma.Tls(ca=...)")])
def test_another_server_is_refused_in_words(files, who, ca, words):
    with server_of(who and getattr(files, who)) as server:
        assert words in refusal(server, ca and stemma.Tls(getattr(files, ca)))


def test_a_port_where_nobody_listens_is_no_matter_of_tls(files):
    with server_of(files.server) as server:
        address = server.address
    with stemma.Client(address, connect_timeout_s=0.5, tls=stemma.Tls(files.ca)) as client, pytest.raises(stemma.StemmaError) as error:
        client.model()
    assert "no process listens there" in str(error.value) and "tls" not in str(error.value).lower()


def test_what_is_no_certificate_is_refused_before_any_connection(files, tmp_path):
    nothing, text, locked = tmp_path / "nothing", tmp_path / "text", tmp_path / "locked"
    text.write_text("no certificate\n")
    openssl("pkey", "-in", files.client.key, "-aes256", "-passout", "pass:x", "-out", locked)
    own, other = files.client, files.server
    for tls, words in [
            (stemma.Tls(nothing), "tls.ca is .*nothing.*: the file cannot be read"),
            (stemma.Tls(None), "tls.ca is None: the file cannot be read"),
            (stemma.Tls(text), "tls.ca is .*text.*, which holds no certificates"),
            (stemma.Tls(files.ca, own.cert), "tls.key is None, and tls.cert is .*: pass both, or neither"),
            (stemma.Tls(files.ca, None, own.key), "tls.cert is None, and tls.key is .*: pass both, or neither"),
            (stemma.Tls(files.ca, nothing, own.key), "tls.cert is .*nothing.*: the file cannot be read"),
            (stemma.Tls(files.ca, own.cert, nothing), "tls.key is .*nothing.*: the file cannot be read"),
            (stemma.Tls(files.ca, text, own.key), "these are not a certificate and its key"),
            (stemma.Tls(files.ca, own.cert, other.key), "these are not a certificate and its key"),
            (stemma.Tls(files.ca, own.cert, locked), "without a passphrase .*the key is encrypted"),
            ("ca.pem", 'tls is \'ca.pem\': pass stemma.Tls'),
            (True, "tls is True: pass stemma.Tls")]:
        with pytest.raises(ValueError, match=words):
            stemma.Client("127.0.0.1:7070", tls=tls)


@pytest.mark.parametrize("text, words", [
    ("Ssl handshake failed: SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED", "or it has ended"),
    ("Peer name 127.0.0.1 is not in peer certificate", "does not name this host"),
    ("call host does not match SSL server name", "does not name this host")])
def test_what_older_versions_of_grpc_say_is_put_into_words(text, words):
    from stemma import _connection

    assert words in _connection._cause(text)


def test_a_connection_that_is_lost_names_renewed_files(files):
    server = server_of(files.server)
    with server, stemma.Client(server.address, connect_timeout_s=5, retries=0, tls=stemma.Tls(files.ca)) as client:
        assert client.model()["step"] == 3
        server.__exit__()
        with pytest.raises(stemma.StemmaError, match="was lost .*where files of stemma.Tls were renewed, make a new Client"):
            client.model()
