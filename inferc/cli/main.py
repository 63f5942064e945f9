"""Entry point: `inferc COMMAND …`. Commands are modules with `add_parser` and `run`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from inferc import __version__
from inferc.cli.streams import discard_output, prepare_streams
from inferc.errors import InfercError

# name -> one line for `inferc --help`; the module of a command is imported only when it is used.
COMMANDS = {
    "compile": "model to artifact",
    "plan": "what a model would need, from its config alone",
    "run": "generate text with an artifact",
    "inspect": "show what the compiler did",
    "verify": "compare logits with the source model",
    "bench": "measure speed beside the machine's limits",
    "tune": "measure this machine's best settings for an artifact",
    "opt": "run passes over IR text",
    "targets": "list what can be compiled for",
    "support": "which architectures compile",
    "doctor": "what is installed, what is missing and how to get it",
}
EPILOG = """typical use:
  inferc compile path/to/model -o model.inferc     a Hugging Face directory or a .gguf file
  inferc run model.inferc "Once upon a time"
  inferc run model.inferc --chat
  inferc inspect model.inferc
  inferc plan config.json --machine h200           nothing but a config: sizes, traffic, bounds

`inferc COMMAND --help` explains a command. Exit codes: 0 done, 1 failed, 2 bad input or options,
3 a compiler or package is missing, 4 bad artifact, 5 bad request, 130 interrupted."""


# What a command wants beyond the runtime, as extras of the package.
EXTRAS = {
    "compile": "[compile]", "plan": "[compile]", "opt": "[compile]", "verify": "[compile]",
    "inspect": "[report]", "bench": "[report]", "tune": "[report]",
}  # fmt: skip


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The argument parser; with `only`, just that command is imported and filled in."""
    top = argparse.ArgumentParser(
        prog="inferc",
        description="Compile a causal language model into a self-contained serving artifact.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"inferc {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if only in (None, name):
            module = importlib.import_module(f"inferc.cli.{_module(name)}")
            module.add_parser(commands).set_defaults(run=module.run)
        else:
            commands.add_parser(name, help=summary)
    return top


def _module(command: str) -> str:
    # `compile` and `inspect` would hide the standard modules inside the package.
    return {"compile": "compile_model", "inspect": "inspect_artifact"}.get(command, command)


def _chosen(argv: Sequence[str]) -> str | None:
    """The command named on the line, so that only its module is imported."""
    named = next((a for a in argv if not a.startswith("-")), None)
    return named if named in COMMANDS else ""


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    top = parser(_chosen(argv))
    args, rest = top.parse_known_args(argv)
    # argparse takes an optional positional only when it stands before the options.
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(args, "prompt", "") is None:
        args.prompt, rest = rest[0], []
    if rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are printed as one paragraph."""
    argv = sys.argv[1:] if argv is None else list(argv)
    name = f"inferc {_chosen(argv) or ''}".rstrip()
    prepare_streams()
    try:
        args = _parse(argv)
        code = int(args.run(args) or 0)
        sys.stdout.flush()  # so that a full disk is told below
        return code
    except InfercError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("inferc"):
            raise
        wanted = f"inferc{EXTRAS.get(_chosen(argv) or '', '')}"
        print(
            f"{name}: needs the package {error.name}, which is not installed:"
            f" pip install '{wanted}'",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; nothing was left half-written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        discard_output()
        return 0
    except OSError as error:
        discard_output()
        print(f"{name}: {error.filename or 'output'}: {error.strerror}.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
