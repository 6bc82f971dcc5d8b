"""Contents of files as digests, for tests to compare. Where two byte strings differ, pytest explains how, byte by byte: with CI
set, which lets it explain in full, that took over a quarter of an hour for the weights of a small model."""

import hashlib


def digest_of(paths):
    """The SHA-256 of what the files hold, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def weights_digest(folder):
    """That of a model directory's weights."""
    files = sorted(folder.glob("*.safetensors"))
    assert files, f"{folder} holds no weights"
    return digest_of(files)
