"""`inferc opt`: IR text in, passes, IR text out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferc.cli.options import count_or_zero

if TYPE_CHECKING:
    from inferc.ir.core import Module
    from inferc.passes.base import Pass
    from inferc.passes.instruments import Instrument
    from inferc.passes.record import PassRecord

EPILOG = """examples:
  inferc opt dump/000-input.ir --pass canonicalize,cse,dce
  inferc opt model.ir --pass 'split-phases{step_tokens = 256}' --check -o out.ir
  inferc opt model.ir --pass fuse-epilogue --bisect     which rewrite changes the logits?
  inferc opt --list"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "opt",
        help="run passes over IR text",
        description="Read IR text, run passes over it, write IR text. FILE - reads standard input.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="IR text, or -")
    parser.add_argument(
        "--pass", dest="passes", metavar="A,B{x = 1}", default="", help="passes, in order"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to the terminal")
    parser.add_argument("--verify", action="store_true", help="check the IR and facts after passes")
    parser.add_argument("--stage", help="check that only ops of this stage are left at the end")
    parser.add_argument("--check", action="store_true", help="compare logits after every pass")
    parser.add_argument("--locations", action="store_true", help="print where ops come from")
    parser.add_argument("--stats", action="store_true", help="print a line a pass to stderr")
    parser.add_argument("--dump", metavar="DIR", help="write the module after every pass there")
    parser.add_argument("--fuel", type=count_or_zero, metavar="N", help="stop after N rewrites")
    parser.add_argument("--bisect", action="store_true", help="find the rewrite that --check minds")
    parser.add_argument("--list", action="store_true", help="list passes and their options")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if args.list:
        return _list()
    from inferc.ir.text import print_module
    from inferc.ir.verify import provenance, verify
    from inferc.passes.manager import run_passes
    from inferc.passes.registry import parse_pipeline

    _register()
    module = _read(args.file)
    passes = parse_pipeline(args.passes)
    # The file is what some pipeline left: what the passes require is taken on trust.
    given = frozenset[str]().union(*(p.requires for p in passes))
    if args.verify:
        verify(module)
    if args.bisect:
        return _bisect(module, passes, given)
    roots = provenance(module)
    records = run_passes(
        module, passes, given=given, instruments=_instruments(args), fuel=args.fuel
    )
    if args.verify or args.stage:
        verify(module, stage=args.stage, roots=roots)
    if args.stats:
        _print_stats(records)
    text = print_module(module, locations=args.locations)
    if args.output:
        Path(args.output).write_text(text)
    else:
        sys.stdout.write(text)
    return 0


def _register() -> None:
    """The one pass that lies with the kernels that it chooses from."""
    from inferc.codegen.select import SelectKernels
    from inferc.passes.registry import register

    register(SelectKernels)


def _read(name: str) -> Module:
    from inferc.errors import CompileError
    from inferc.ir.parse import ParseError, parse_module

    try:
        return parse_module(sys.stdin.read() if name == "-" else Path(name).read_text())
    except ParseError as error:
        raise CompileError(f"{name}, {error}") from None
    except OSError as error:
        raise CompileError(f"Cannot read {name}: {error.strerror}.") from None


def _instruments(args: argparse.Namespace) -> list[Instrument]:
    from inferc.passes.check import CheckTranslation
    from inferc.passes.instruments import CheckFacts, Dump, Verify

    dumps = Path(args.dump) if args.dump else None
    made: list[Instrument] = [Dump(dumps)] if dumps else []
    if args.verify:
        made += [Verify(dumps), CheckFacts()]
    if args.check:
        made.append(CheckTranslation())
    return made


def _bisect(module: Module, passes: tuple[Pass, ...], given: frozenset[str]) -> int:
    from inferc.ir.text import print_module
    from inferc.passes.bisect import first_bad_rewrite
    from inferc.passes.check import Checker

    checker = Checker(module)
    found = first_bad_rewrite(module, passes, checker.is_good, given=given)
    if found is None:
        print("The passes do not change the logits.")
        return 0
    from difflib import unified_diff

    which = "the whole pass" if found.rewrite is None else f"rewrite {found.rewrite}"
    print(f"Pass {found.pass_name}: {which} changes the logits.")
    texts = [print_module(m, locations=True).splitlines() for m in (found.before, found.after)]
    print("\n".join(unified_diff(*texts, "good", "wrong", n=2, lineterm="")))
    return 1


def _print_stats(records: list[PassRecord]) -> None:
    for record in records:
        hits = ", ".join(f"{name} {count}" for name, count in record.hits.items()) or "no hits"
        now = ", ".join(f"@{f} {size / 1e6:.2f} MB" for f, size in record.bytes_after.items())
        ops = f"{record.ops_before} -> {record.ops_after} ops"
        line = f"{record.index:03d} {record.name}: {ops}, {now}, {record.ms:.1f} ms, {hits}"
        print(line, file=sys.stderr)
        for note, count in record.notes.items():
            print(f"      {note} (x{count})", file=sys.stderr)
        for refused in record.refused:
            place = f"{refused.op} of {refused.module}"
            print(f"      refused {refused.pattern} at {place}: {refused.reason}", file=sys.stderr)


def _list() -> int:
    from dataclasses import fields, is_dataclass

    from inferc.ir.text import format_attr
    from inferc.passes.registry import find_pass, pass_names

    _register()
    for name in pass_names():
        cls = find_pass(name)
        assert is_dataclass(cls)
        options = ", ".join(f"{f.name} = {format_attr(f.default)}" for f in fields(cls))
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        print(f"{name}{f'{{{options}}}' if options else ''}\n    {summary}")
    return 0
