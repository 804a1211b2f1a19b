"""How fast and how lean `coinflower.learning.clipped_gradient_sum` is on the paper's network.

CPU time on one thread, against the ordinary backward pass without privacy and against Opacus'
two ways of clipping. Memory is the peak of a process that does nothing else (Linux only).

Run with ``python -m tools.bench.clipped``.
"""

import copy
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from coinflower.learning import build_model, clipped_gradient_sum

CLASSES = 62
CLIP_NORM = 1.0
LIMITS = {
    (70, "ordinary backward"): 1.3,
    (70, "Opacus hooks"): 0.25,
    (70, "Opacus ghost clipping"): 0.6,
    (1024, "ordinary backward"): 1.6,
}
MEMORY_LIMIT_MB = 250.0


def run(*, repetitions: int = 40) -> list[dict[str, Any]]:
    """Measures everything.

    Args:
        repetitions: How often each method runs at n = 70; a fifth of it at n = 1024.

    Returns:
        One row per comparison: ``samples``, ``measure``, ``value``, ``limit`` (None where there is
        none to meet) and ``met``.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [
            row
            for samples, times in ((70, repetitions), (1024, max(3, repetitions // 5)))
            for row in _ratios(samples, times)
        ]
    finally:
        torch.set_num_threads(threads)
    rows.append(_row(1024, "additional memory, MB", _memory_in_process(1024), MEMORY_LIMIT_MB))
    return rows


def _row(samples: int, measure: str, value: float, limit: float | None) -> dict[str, Any]:
    met = None if limit is None else value <= limit
    return {"samples": samples, "measure": measure, "value": value, "limit": limit, "met": met}


def _ratios(samples: int, repetitions: int) -> list[dict[str, Any]]:
    """Compare medians of repetitions that take turns, so that a busy machine hits all alike."""
    inputs, targets = _batch(samples)
    model = build_model("paper-cnn", classes=CLASSES)
    methods: dict[str, Callable[[], torch.Tensor]] = {
        "clipped_gradient_sum": lambda: clipped_gradient_sum(model, inputs, targets, CLIP_NORM),
        "ordinary backward": _ordinary(model, inputs, targets),
        "Opacus hooks": _opacus_hooks(model, inputs, targets),
        "Opacus ghost clipping": opacus_ghost(model, inputs, targets),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        ours, _, *others = [method() for method in methods.values()]
        for other in others:
            if not torch.allclose(ours, other, rtol=1e-3, atol=1e-4):
                raise RuntimeError("the methods disagree, so their times mean nothing")
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(repetitions):
            for name, method in methods.items():
                start = time.process_time()
                method()
                seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    our_time = medians.pop("clipped_gradient_sum")
    rows = [_row(samples, "clipped_gradient_sum, CPU ms", our_time * 1e3, None)]
    for name, median in medians.items():
        limit = LIMITS.get((samples, name))
        rows.append(_row(samples, f"CPU time / {name}", our_time / median, limit))
    return rows


def _batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(samples, 1, 28, 28, generator=generator)
    return inputs, torch.randint(0, CLASSES, (samples,), generator=generator)


def _ordinary(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], torch.Tensor]:
    twin = copy.deepcopy(model)

    def backward() -> torch.Tensor:
        twin.zero_grad()
        functional.cross_entropy(twin(inputs), targets, reduction="sum").backward()  # type: ignore[no-untyped-call]
        return _flat_gradient(twin)

    return backward


def _opacus_hooks(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], torch.Tensor]:
    from opacus.grad_sample import GradSampleModule

    twin = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")

    def clip_and_sum() -> torch.Tensor:
        twin.zero_grad()
        functional.cross_entropy(twin(inputs), targets, reduction="sum").backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad_sample for parameter in twin.parameters()]
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        factors = (CLIP_NORM / norms).clamp(max=1)
        return torch.cat([factors @ gradient.flatten(1) for gradient in gradients], dim=0)

    return clip_and_sum


def opacus_ghost(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Return what clips and sums as Opacus does with ghost clipping."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    twin = GradSampleModuleFastGradientClipping(
        copy.deepcopy(model),
        loss_reduction="sum",
        max_grad_norm=CLIP_NORM,
        use_ghost_clipping=True,
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(twin.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(targets),
        loss_reduction="sum",
    )
    criterion = DPLossFastGradientClipping(
        twin, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
    )

    def clip_and_sum() -> torch.Tensor:
        optimizer.zero_grad()
        criterion(twin(inputs), targets).backward()
        return _flat_gradient(twin)

    return clip_and_sum


def _flat_gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _memory_in_process(samples: int) -> float:
    command = [sys.executable, "-m", "tools.bench.clipped", "--memory", str(samples)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return float(json.loads(done.stdout))


def _memory_here(samples: int) -> float:
    """Return the peak of this process above what it held before the call, in MB."""
    torch.set_num_threads(1)
    model = build_model("paper-cnn", classes=CLASSES)
    inputs, targets = _batch(samples)
    before = _status_kb("VmRSS")
    clipped_gradient_sum(model, inputs, targets, CLIP_NORM)
    # Not getrusage: what it calls the peak may be that of the process this one was started from.
    return (_status_kb("VmHWM") - before) * 1024 / 1e6


def _status_kb(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def main() -> None:
    """Print the table; exit with 1 if a limit is not met."""
    rows = run()
    print(f"{'n':>5}  {'measure':<38}{'value':>9}{'limit':>9}")
    for row in rows:
        limit = "" if row["limit"] is None else f"{row['limit']:.2f}"
        verdict = "" if row["met"] is not False else "  NOT MET"
        print(f"{row['samples']:>5}  {row['measure']:<38}{row['value']:>9.2f}{limit:>9}{verdict}")
    if any(row["met"] is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print(json.dumps(_memory_here(int(sys.argv[2]))))
    else:
        main()
