from runtime_artifacts import toy_artifact

__all__ = ["toy_artifact"]
