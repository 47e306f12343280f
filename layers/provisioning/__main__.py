"""The provisioner's process: ``python -m layers.provisioning``."""

from layers.provisioning.service import build
from layers.runtime.process import main

if __name__ == "__main__":
    main("provisioning", build)
