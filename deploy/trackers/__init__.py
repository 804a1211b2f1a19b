"""Where the figures of a run go besides its journal: TensorBoard and MLflow."""
