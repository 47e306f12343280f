"""The gang gate's process: ``python -m layers.gang``."""

from layers.gang.service import build
from layers.runtime.process import main

if __name__ == "__main__":
    main("gang", build)
