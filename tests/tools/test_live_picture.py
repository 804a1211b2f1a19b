"""The picture of the live view shows a run as it was, and needs nothing from elsewhere."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.server.settings import load_settings, save_settings
from tests.support.documents import blocks
from tools.live_picture import draw


def text_of(picture):
    root = ElementTree.fromstring(picture.read_text())
    return " ".join(unescape(" ".join(root.itertext())).replace("\xa0", " ").split())


def test_the_picture_shows_the_figures_of_the_run(tmp_path):
    (tmp_path / "settings.toml").write_text(blocks()["settings.toml"])
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "client-0.toml").write_text(blocks()["policy.toml"])
    settings = replace(load_settings(tmp_path / "settings.toml"), state=tmp_path / "server")
    save_settings(settings, tmp_path / "settings.toml")
    Path(settings.state).mkdir()
    rows = [
        {
            **{"round": round_, "participants": 2, "available": 3, "seconds": 3.0},
            **{"expected_batch": 96.0, "accuracy": 0.5 + round_ / 1000},
        }
        for round_ in range(1, 201)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (settings.state / "metrics.jsonl").write_text(lines)

    draw(tmp_path, tmp_path / "view.svg", share=0.5)

    shown = text_of(tmp_path / "view.svg")
    assert "100/400" in shown
    assert "0:15:00" in shown
    assert "took part 2 of 3" in shown
    assert "expected batch 96" in shown
    assert "accuracy 60.0%" in shown
    cost = settings.terms.round_cost(480)
    assert f"largest ε {epsilon_after([(cost, 100)], 1e-5):.3f}" in shown
    assert not re.search(r"url\(['\"]?http|@font-face|href=", (tmp_path / "view.svg").read_text())
