"""A run with a model that only the calling program knows."""

import json
import os
import re
import subprocess
import sys

from coinflower.protocol.terms import Terms

PROGRAM = """
import torch
from torch import nn
import coinflower

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)
        nn.init.constant_(self.layer.bias, 0.25)

    def forward(self, rows):
        return self.layer(rows.flatten(1))

coinflower.run(
    model=Net, clients=2, rounds=2, epsilon=3, delta=1e-3, learning_rate=1e-9, out="run"
)
"""


def python(code, folder):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_class_of_the_program_itself_is_trained_and_loaded_as_the_report_says(tmp_path):
    python(PROGRAM, tmp_path)
    terms = Terms.from_json(json.dumps(json.loads((tmp_path / "run" / "terms.json").read_text())))
    assert (terms.classes, terms.model_options) == (10, {})
    report = (tmp_path / "run" / "report.html").read_text()
    (lines,) = re.findall(r"import sys\n.*?load_model\(.*?\)\n", report.replace("&#39;", "'"), re.S)
    assert python(f"{lines}\nprint(model.layer.bias[0].item())", tmp_path) == "0.25\n"
