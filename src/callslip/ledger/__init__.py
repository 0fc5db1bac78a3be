"""The event log over one store: validation, the write transaction, feed, checkpoints, liveness."""
