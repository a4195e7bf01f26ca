"""What a type checker makes of burnt: `typing/user.py` under mypy --strict and this project's settings.

These are stricter than a user's; where they ignore missing stubs, those are of packages that burnt imports.
"""

import re
import subprocess
import sys
from pathlib import Path

USER = Path(__file__).parent / "typing" / "user.py"


def test_a_users_program_passes_and_its_mistakes_do_not() -> None:
    lines = USER.read_text().splitlines()
    expected = {
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(lines, 1)
        if "# error: " in line and number > 1
    }
    # With the options of `scripts/test`, so that what mypy has kept of burnt is read.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(USER)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=USER.parents[2])
    found = re.findall(r"user\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert {(int(number), code) for number, code in found} == expected, done.stdout + done.stderr
    assert len(expected) > 10
