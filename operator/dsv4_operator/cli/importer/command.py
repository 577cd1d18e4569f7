"""`dsv4ctl import`: options in, a DSV4Deployment and findings out."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, Final

from dsv4_operator.api.constants import MAX_NAME_LENGTH, Role
from dsv4_operator.cli.errors import EXIT_FINE, EXIT_REFUSED, UnreadableError
from dsv4_operator.cli.importer.result import Imported, Target, import_pair
from dsv4_operator.cli.importer.sources import read_launch
from dsv4_operator.cli.judge import finding_line
from dsv4_operator.cli.output import print_json, print_line, print_yaml
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES, release_of
from dsv4_operator.policy import refusals

EMPTY: Final[dict[str, Any]] = {"deployment": None, "findings": [], "mapped": []}
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when something was refused; the object is printed in both cases."""
    target = _target(args)
    defined = dict(_definition(text) for text in args.define)
    if args.prefill == args.decode == "-":
        raise UnreadableError("stdin: can be read once; give a file for one of the roles")
    launches = {
        Role.PREFILL: read_launch(args.prefill, Role.PREFILL, defined, args.prefill_env),
        Role.DECODE: read_launch(args.decode, Role.DECODE, defined, args.decode_env),
    }
    imported = import_pair(launches, target)
    if args.output == "json":
        print_json(imported.as_json())
    else:
        print_yaml([imported.deployment])
    _tell(imported, args.verbose)
    return EXIT_REFUSED if refusals(imported.findings) else EXIT_FINE


def _tell(imported: Imported, verbose: bool) -> None:
    for found in imported.findings:
        print_line(finding_line(found), sys.stderr)
    if verbose:
        for source, goal in imported.mapped:
            print_line(f"Map    {source} -> {goal}", sys.stderr)
    taken = f"{len(imported.mapped)} flags and variables carried over"
    hint = "" if verbose else " (-v lists them)"
    print_line(
        f"{taken}{hint}, {len(imported.findings)} findings, {len(refusals(imported.findings))} to decide", sys.stderr
    )


def _target(args: argparse.Namespace) -> Target:
    if not _NAME.fullmatch(args.name) or len(args.name) > MAX_NAME_LENGTH:
        raise UnreadableError(
            f"--name: {args.name!r} is no name of lower-case letters, digits and '-' of at most {MAX_NAME_LENGTH}"
        )
    in_tag = release_of(args.image, None) if args.image else None
    wanted = args.release or in_tag or str(DEFAULT_RELEASE)
    release = KNOWN_RELEASES.get(release_of("", wanted) or "")
    if release is None:
        raise UnreadableError(f"--release: SGLang {wanted} is not known here (known: {', '.join(KNOWN_RELEASES)})")
    if args.gpus_per_node is not None and args.gpus_per_node < 1:
        raise UnreadableError(f"--gpus-per-node: {args.gpus_per_node} is less than 1")
    return Target(
        name=args.name,
        release=release,
        image=args.image,
        model=args.model,
        gpus_per_node=args.gpus_per_node,
        release_is_in_tag=in_tag == str(release),
    )


def _definition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UnreadableError(f"--define: {text!r} is no NAME=VALUE")
    return name, value
