"""Known vulnerabilities: where no service can be asked, nobody is told that all is well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_service_that_cannot_be_reached_is_no_clean_bill(tmp_path: Path) -> None:
    (tmp_path / "bin").symlink_to(Path(sys.executable).parent)
    nowhere = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
    command = ["make", "--silent", "-o", "install", f"VENV={tmp_path}", "vulnerabilities"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, check=True
    )
    assert done.stderr == "NOT CHECKED: the service 'osv' cannot be reached from here.\n"
    assert done.stdout == ""
    asked = (tmp_path / "audited.txt").read_text().splitlines()
    assert "torch==2.13.0" in asked
    assert not [line for line in asked if "+" in line]
