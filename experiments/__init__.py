"""The figures of the paper, the simulator, the audit and the benchmarks."""
