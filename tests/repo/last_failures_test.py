"""What `make test` prints after a failure: the end of what each failed test said, and nothing of the others."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "last_failures.py"
TESTS = """add_test(right echo nobody-reads-this)
add_test(wrong sh -c "seq 1 40; exit 3")
add_test(silent false)
add_test(slow sh -c "echo begun; sleep 60")
set_tests_properties(slow PROPERTIES TIMEOUT 1)
"""


def test_the_end_of_each_failed_test_is_said(tmp_path):
    (tmp_path / "CTestTestfile.cmake").write_text(TESTS)
    assert subprocess.run(["ctest", "-j4"], cwd=tmp_path, capture_output=True, check=False).returncode != 0
    said = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=True).stdout
    parts = {part.split(",")[0]: part.splitlines()[1:] for part in said.split("\n== ")[1:]}
    assert sorted(parts) == ["silent", "slow", "wrong"]
    assert [line for line in parts["wrong"] if line] == [str(number) for number in range(16, 41)]
    assert "begun" in parts["slow"]
    assert "(nothing)" in parts["silent"]
    assert "nobody-reads-this" not in said
