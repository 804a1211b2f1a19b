"""All benchmarks: ``python -m tools.bench``."""

from tools.bench.table import main

main()
