"""Job kinds: one module each, that reads a job object as a `layers.queue.snapshot.JobView` and says how to start it."""
