"""The queue gate's process: ``python -m layers.queue``."""

from layers.queue.service import build
from layers.runtime.process import main

if __name__ == "__main__":
    main("queue", build)
