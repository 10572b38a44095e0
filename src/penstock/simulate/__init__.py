"""The life of a run in discrete events: failures, spares, checkpoints and months in seconds."""
