"""Programs whose named places (common/base/failpoint.h) a test arms: beside `stemma` a server and workers that look into a
folder whenever they pass one."""

import os
import pathlib
import re
import shutil

from e2e.errors.server import BUILD


def named_in(paths):
    """The places that these sources name by a literal."""
    called = r'(?:Failpoint|FailpointFails|PassFailpoint|PassCollective)\(\s*"([a-z_.]+)"'
    return {name for path in paths for name in re.findall(called, path.read_text())}


class Failpoints:
    """The programs below `folder`, and what is armed there."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.stemma, self._armed = folder / "bin" / "stemma", folder / "armed"
        self.stemma.parent.mkdir(parents=True)
        self._armed.mkdir()
        shutil.copy2(BUILD / "bin/stemma", self.stemma)  # it starts the others that lie beside it
        for name in ("server", "worker"):
            (self.stemma.parent / f"stemma-{name}").symlink_to(BUILD / f"tests/failpoint_{name}")
        self.environment = {**os.environ, "STEMMA_FAILPOINTS": str(self._armed)}

    def arm(self, place, rank, action):
        """The next process that passes the place as that rank does it, once."""
        (self._armed / "next").write_text(action)
        (self._armed / "next").rename(self._armed / f"{place}@{rank}")

    def hold(self, place, rank):
        """Holds the next process that passes the place as that rank: the file that is there while it is held. Unlink it to let
        the process go on."""
        self.arm(place, rank, "hold")
        return self._armed / f"{place}@{rank}.held"

    def disarm(self):
        for path in self._armed.iterdir():
            path.unlink()

    def is_armed(self, place, rank):
        return (self._armed / f"{place}@{rank}").exists()
