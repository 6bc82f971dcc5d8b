"""The files by which a client and its server know each other: TLS on the connection to a server that has --tls-cert."""

import dataclasses
import os
import pathlib
from typing import Optional, Union

import grpc

_Path = Union[str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class Tls:
    """Encrypts a client's connection. The files are PEM and read when the Client is made: one that was made before a file was
    renewed goes on with the old one, and is refused at its next connection once that has ended; make a new Client then.

    ca      certificates of CAs, one of which signed the server's; the server's must name the host of the client's address,
            a name or an IP, among its subject alternative names
    cert    a certificate of this client's own and those up to its CA's, for a server that asks for one (its --tls-ca); None:
            none is shown
    key     the private key of cert, not encrypted
    """

    ca: _Path
    cert: Optional[_Path] = None
    key: Optional[_Path] = None

    def _credentials(self):
        """The grpc.ChannelCredentials of the files. ValueError names the field whose file cannot be read, or holds something else."""
        ca = _read("ca", self.ca)
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise ValueError(f"tls.{missing} is None, and tls.{given} is {os.fspath(getattr(self, given))!r}: pass both, or neither")
        own = None if self.cert is None else (_read("key", self.key), _read("cert", self.cert))
        self._check(ca)
        return grpc.ssl_channel_credentials(ca, *(own or ()))

    def _check(self, ca):
        """Refuses what gRPC would take for a server that does not answer."""
        import ssl  # a few Pythons are built without it

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))  # text around certificates may be in any language
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ValueError(f"tls.ca is {os.fspath(self.ca)!r}, which holds no certificates in PEM ({error})") from None
        if self.cert is None:
            return
        try:
            context.load_cert_chain(os.fspath(self.cert), os.fspath(self.key), password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise ValueError(f"tls.cert is {os.fspath(self.cert)!r} and tls.key {os.fspath(self.key)!r}: these are not a certificate "
                             f"and its key in PEM, without a passphrase ({error})") from None


def credentials_of(tls):
    """Reads the files of a Tls; None for plaintext."""
    if tls is None:
        return None
    if not isinstance(tls, Tls):
        raise ValueError(f"tls is {tls!r}: pass stemma.Tls(ca=\"ca.pem\"), or None for a server that speaks no TLS")
    return tls._credentials()


def _read(name, path):
    try:
        return pathlib.Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"tls.{name} is {path!r}: the file cannot be read ({error})") from None


def _no_passphrase():
    raise ValueError("the key is encrypted")
