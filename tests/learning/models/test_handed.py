"""Models that a program hands over: carried to another process as they are, or refused."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from coinflower.learning import build_model
from coinflower.learning.models.handed import hand_over


def tiny(classes, width=3):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, classes))


def carried(source, classes=2, **options):
    handed = hand_over(source, classes=classes, options=options)
    handed.offer()
    return build_model(handed.name, classes=classes)


def test_a_module_is_built_by_name_with_the_weights_that_it_had():
    model = tiny(2)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    made = carried(model)
    with torch.no_grad():
        model[0].weight.zero_()
    assert made is not model
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_function_is_called_with_the_outputs_and_its_options_under_a_public_seed():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second = carried(tiny, classes=7, width=5), carried(tiny, classes=7, width=5)
    assert first[0].weight.shape == (5, 4)
    assert first[2].weight.shape == (7, 5)
    assert torch.equal(first[0].weight, second[0].weight)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_frozen_parts_stay_frozen():
    model = tiny(2)
    model[0].requires_grad_(False)
    made = carried(model)
    assert [each.requires_grad for each in made.parameters()] == [False, False, True, True]


def test_another_process_builds_it_from_the_folder(tmp_path):
    class Local(nn.Module):  # of no module that another process could import
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, rows):
            return self.layer(rows).tanh()

    model = Local()
    handed = hand_over(model, classes=2, options={})
    handed.write(tmp_path / "model")
    code = (
        "from coinflower.learning import build_model; import torch; "
        f"print(build_model({handed.name!r}, classes=2)(torch.ones(1, 4))[0].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "model")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert eval(done.stdout) == pytest.approx(model(torch.ones(1, 4))[0].tolist())


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def failing(classes):
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("source", "options", "complaint"),
    [
        (Locked(), {}, "model Locked cannot be carried to the server's process"),
        (lambda classes: [classes], {}, "returned list; it must return an nn.Module"),
        (failing, {}, "model failing fails in .*no such thing"),
        (tiny(2), {"width": 3}, "model Sequential is made already"),
        (tiny, {"depth": 3}, "unexpected keyword argument 'depth'"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_with_one_sentence(source, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        hand_over(source, classes=2, options=options)
