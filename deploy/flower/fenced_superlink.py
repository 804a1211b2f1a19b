"""Flower's SuperLink with the fence of `coinflower.flower_internals.superlink`, as a program.

Run as ``python -m coinflower.deploy.flower.fenced_superlink``; takes the arguments of
``flower-superlink``.
"""

from coinflower.deploy.core_dumps import forbid_core_dumps
from coinflower.flower_internals.superlink.program import run_fenced_superlink

if __name__ == "__main__":
    forbid_core_dumps()
    run_fenced_superlink()
