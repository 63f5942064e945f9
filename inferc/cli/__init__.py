"""Command line of inferc: one file a command."""
