"""A CA of the test's own, by the `openssl` program: certificates that are good, ended, or of somebody else."""

import dataclasses
import datetime
import pathlib
import subprocess

from e2e.own_loopback import HOST

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
DAY = datetime.timedelta(days=1)
# What `openssl ca` wants to be told of where it keeps its books.
_CONFIG = """[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


@dataclasses.dataclass(frozen=True)
class Issued:
    cert: pathlib.Path
    key: pathlib.Path


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """Signs certificates; `ca` is its own, in PEM. `folder`: an empty one, made here."""

    def __init__(self, folder):
        folder.mkdir()
        self._folder, self.ca, self._key = folder, folder / "ca.pem", folder / "ca.key"
        (folder / "index").touch()
        (folder / "config").write_text(_CONFIG.format(folder=folder))
        openssl("req", "-x509", *_KEY, "-nodes", "-keyout", self._key, "-out", self.ca, "-subj", f"/CN={folder.name}", "-days", "30")

    def issue(self, name, hosts, begins=-DAY, ends=30 * DAY, key_kind=_KEY, usage=None, digest="sha256"):
        """A certificate of these names and IPs, valid between two times from now; the key's file is its owner's alone. Without hosts
        the subject's common name alone names one. usage: its extendedKeyUsage. digest: of the signature."""
        cert, key, request = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        names = ",".join(("IP:" if host[0].isdigit() else "DNS:") + host for host in hosts)
        named = ("-addext", f"subjectAltName={names}") if hosts else ()
        used = ("-addext", f"extendedKeyUsage={usage}") if usage else ()
        openssl("req", "-new", *key_kind, "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}", *named, *used)
        key.chmod(0o600)
        first, last = ((datetime.datetime.now(datetime.timezone.utc) + span).strftime("%Y%m%d%H%M%SZ") for span in (begins, ends))
        openssl("ca", "-batch", "-notext", "-config", self._folder / "config", "-cert", self.ca, "-keyfile", self._key, "-in", request,
                "-out", cert, "-md", digest, "-startdate", first, "-enddate", last)
        return Issued(cert, key)


class Certificates:
    """What tests of TLS meet: `ca` and `other_ca`, and certificates of the first, but for the stranger's."""

    def __init__(self, folder):
        self.authority, other = Authority(folder / "own"), Authority(folder / "other")
        self.ca, self.other_ca = self.authority.ca, other.ca
        self.server = self.authority.issue("server", [HOST])
        self.elsewhere = self.authority.issue("elsewhere", ["elsewhere.example", "127.255.255.254"])
        self.ended = self.authority.issue("ended", [HOST], begins=-2 * DAY, ends=-DAY)
        self.later = self.authority.issue("later", [HOST], begins=DAY)
        self.client = self.authority.issue("client", ["client.example"])
        self.stranger = other.issue("stranger", ["client.example"])
