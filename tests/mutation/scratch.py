"""The scratch copy in which mutants are applied and built: BUILD/mutants, a tree of its own with a build folder of its own.

The checkout is only read. Files are copied where their text differs, so that ninja builds again only what changed; a mutant
is written and taken back with new times, so that no object of a mutant outlives it."""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Scratch:
    """One at a time: a second run on the same folder ends with a message."""

    def __init__(self, folder, preset, jobs):
        self.tree, self._preset, self._jobs = pathlib.Path(folder).resolve(), preset, jobs
        self._build = self.tree / "build" / preset
        self.tree.mkdir(parents=True, exist_ok=True)
        self._lock = (self.tree / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{self.tree} is in use by another run; wait for it, or give --scratch another folder") from None
        # Objects of the checkout are found in ccache, whose keys then hold no path of the checkout.
        self._environment = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1", **os.environ}

    def copy_checkout(self):
        """Makes the tree equal to the checkout: every file that git tracks or would track."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                check=True, capture_output=True, text=True).stdout
        wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file() and name != "third_party"}
        for path in [p for p in self.tree.rglob("*") if p.is_file() and not p.is_symlink()]:
            name = path.relative_to(self.tree).as_posix()
            if name not in wanted and name != ".lock" and not name.startswith("build/"):
                path.unlink()
        for name in wanted:
            source, copy = ROOT / name, self.tree / name
            if not copy.is_file() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
        link = self.tree / "third_party"
        if not link.is_symlink():
            link.symlink_to((ROOT / "third_party").resolve(), target_is_directory=True)

    def read(self, name):
        return (self.tree / name).read_text(encoding="utf-8")

    def write(self, name, text):
        """Replaces the file's text; its time is now, and later than that of anything built before."""
        path = self.tree / name
        path.write_text(text, encoding="utf-8")
        os.utime(path)

    def configure(self):
        if not (self._build / "build.ninja").is_file():
            # A mutant changes one source: by itself it is compiled soonest.
            self._run(["cmake", "--preset", self._preset, "-DCMAKE_UNITY_BUILD=OFF"])

    def build(self, targets):
        """(built, output) of the targets."""
        if not targets:
            return True, ""
        command = ["cmake", "--build", str(self._build), "--target", *sorted(targets), "-j", str(self._jobs)]
        done = subprocess.run(command, cwd=self.tree, env=self._environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace")
        return done.returncode == 0, done.stdout

    def tests(self):
        """ctest name -> (command, environment, folder, timeout in seconds)."""
        listed = self._run(["ctest", "--test-dir", str(self._build), "--show-only=json-v1"])
        found = {}
        for test in json.loads(listed)["tests"]:
            properties = {p["name"]: p["value"] for p in test.get("properties", [])}
            environment = dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", []))
            found[test["name"]] = (test.get("command"), environment, properties.get("WORKING_DIRECTORY", str(self._build)),
                                   properties.get("TIMEOUT", 300))
        return found

    def run_test(self, command, environment, folder, timeout_s):
        """(exit status, or None for one that did not end in time; output; seconds). Its children end with it."""
        begin = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            output, _ = process.communicate(timeout=timeout_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            status = None
        return status, output, time.monotonic() - begin

    def _run(self, command):
        done = subprocess.run(command, cwd=self.tree, env=self._environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout
