"""Models by name, models imported from the user's own code, and what every model has to satisfy."""

from purifl.models.base import Build, Imported, ModelSpec, check_model, models, resolve_model

__all__ = ["Build", "Imported", "ModelSpec", "check_model", "models", "resolve_model"]
