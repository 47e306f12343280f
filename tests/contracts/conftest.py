"""Properties here are about values: how long a shared machine takes for one example says nothing."""

from hypothesis import settings

settings.register_profile("values", deadline=None)
settings.load_profile("values")
