"""Errors a user may see. Imported by every layer, so this module imports nothing.

A message is one paragraph: what was expected, what was found, where, and what to do next.
"""


class InfercError(Exception):
    """Base of all errors that are shown to the user without a traceback."""

    exit_code = 1


class CompileError(InfercError):
    """The model, or an option, cannot be compiled as given."""

    exit_code = 2


class ToolchainError(InfercError):
    """A compiler or a package that the compiler needs is missing or failed."""

    exit_code = 3


class ArtifactError(InfercError):
    """An artifact is damaged, too new, or made for another machine."""

    exit_code = 4


class RequestError(InfercError):
    """A request to the engine is malformed or exceeds the artifact's limits."""

    exit_code = 5
