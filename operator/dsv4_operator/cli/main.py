"""The command line of dsv4ctl: which commands there are and what they take. Each command is a module of its own."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from dsv4_operator.cli.errors import EXIT_UNREADABLE, UnreadableError
from dsv4_operator.cli.reproduce import COMMANDS as REPRODUCE
from dsv4_operator.cli.reproduce import register as register_reproduce

IMAGES: Final = ("engine", "canary", "router")
_MODULES: Final = {
    "render": "render",
    "lint": "lint",
    "plan": "plan",
    "explain": "explain",
    "import": "importer.command",
    **REPRODUCE,
}
_EPILOG: Final = (
    "Exit codes: 0 fine, 1 refused, 2 unreadable input or wrong usage. -o json is documented in docs/dsv4ctl.md."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the whole usage."""
        sys.stderr.write(f"{self.prog}: {message}; see {self.prog} --help\n")
        raise SystemExit(EXIT_UNREADABLE)


def program_name(argv0: str) -> str:
    """`kubectl dsv4` when kubectl started us as its plugin, else dsv4ctl."""
    return "kubectl dsv4" if Path(argv0).stem == "kubectl-dsv4" else "dsv4ctl"


def build_parser(prog: str) -> argparse.ArgumentParser:
    """All commands and their options."""
    from dsv4_operator import __version__  # noqa: PLC0415 - beside the use

    parser = _Parser(
        prog=prog,
        description="Looks at DSV4Deployments without a cluster: what the operator makes of them, and what it refuses.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dsv4ctl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    render = _command(commands, "render", "Print all children of a DSV4Deployment; findings go to stderr.")
    render.add_argument("-f", "--filename", required=True, metavar="FILE", help="YAML or JSON; - is stdin")
    render.add_argument("--force", action="store_true", help="render although policy refuses the spec")
    _output(render, ("yaml", "json"), "YAML documents, or one v1 List as JSON [default yaml]")
    _images(render)

    lint = _command(commands, "lint", "Say all that policy and schema find in DSV4Deployments.")
    lint.add_argument(
        "-f",
        "--filename",
        required=True,
        action="append",
        nargs="+",
        metavar="FILE",
        help="YAML or JSON; - is stdin; may be given several times",
    )
    _output(lint, ("text", "json"), "for people, or for programs [default text]")
    _images(lint)

    plan = _command(commands, "plan", "Say what changing a DSV4Deployment does to its pods, and which fields cause it.")
    plan.add_argument("-f", "--filename", required=True, metavar="NEW", help="the object as it shall be; - is stdin")
    plan.add_argument("--from", dest="old", metavar="OLD", help="the object as it is; without it nothing runs yet")
    plan.add_argument("--force", action="store_true", help="plan as if policy accepted the spec")
    _output(plan, ("text", "json"), "for people, or for programs [default text]")
    _images(plan, assume=False)

    explain = _command(commands, "explain", "Explain a rule of policy; without a name, list all rules.")
    explain.add_argument("rule", nargs="?", metavar="RULE", help="id of a rule, as findings name it")
    _output(explain, ("text", "json"), "for people, or for programs [default text]")

    _import(_command(commands, "import", "Make a DSV4Deployment of the launch commands that you already run."))
    register_reproduce(commands)
    return parser


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=_EPILOG, allow_abbrev=False
    )
    return command


def _output(parser: argparse.ArgumentParser, choices: Sequence[str], text: str) -> None:
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], help=text)


def _images(parser: argparse.ArgumentParser, *, assume: bool = True) -> None:
    group = parser.add_argument_group(
        "images", "The operator's default images, for objects that name none; usually those of the chart's values."
    )
    for name in IMAGES:
        group.add_argument(
            f"--{name}-image",
            metavar="IMAGE",
            default=os.environ.get(variable(name)) or None,
            help=f"image for objects without spec.{name}.image [default ${variable(name)}]",
        )
    if assume:
        group.add_argument(
            "--assume-images",
            action="store_true",
            help="judge as if every image were set; the release is spec.engine.release, else the newest one",
        )


def variable(image: str) -> str:
    """The environment variable with the default of an image."""
    return f"DSV4CTL_{image.upper()}_IMAGE"


def _import(parser: argparse.ArgumentParser) -> None:
    forms = "shell script, argument list, --config YAML, or JSON; FILE#ID picks one entry of a list"
    parser.add_argument("--prefill", required=True, metavar="FILE", help=f"how prefill is launched: {forms}")
    parser.add_argument("--decode", required=True, metavar="FILE", help="the same for decode; may be the same file")
    for role in ("prefill", "decode"):
        parser.add_argument(f"--{role}-env", metavar="FILE", help=f"environment of {role}: NAME=VALUE lines")
    parser.add_argument(
        "--define",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable that a script expects from outside",
    )
    parser.add_argument("--name", default="imported", help="name of the DSV4Deployment [default imported]")
    parser.add_argument(
        "--release", metavar="X.Y.Z", help="SGLang release to run on [default: the image's tag, else the newest]"
    )
    parser.add_argument("--image", metavar="IMAGE", help="engine image to write into spec.engine.image")
    parser.add_argument(
        "--model", metavar="REPO|/PATH|pvc:CLAIM[/PATH]", help="where the weights are, instead of --model-path"
    )
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="GPUs of one node, where the launch does not say"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="also say where each flag and variable went")
    _output(parser, ("yaml", "json"), "a DSV4Deployment with findings on stderr, or both as JSON [default yaml]")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of dsv4ctl and kubectl-dsv4. Returns the exit code."""
    prog = program_name(sys.argv[0])
    args = build_parser(prog).parse_args(argv)
    module = importlib.import_module(f"dsv4_operator.cli.{_MODULES[args.command]}")
    try:
        code = _run(module, args, prog)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough, as `| head`; Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return code


def _run(module: Any, args: argparse.Namespace, prog: str) -> int:
    try:
        return int(module.run(args))
    except UnreadableError as error:
        sys.stderr.write(f"{prog}: {error}\n")
        if args.output == "json":
            from dsv4_operator.cli.output import print_json  # noqa: PLC0415 - beside the use

            print_json({**module.EMPTY, "error": str(error)})
        return EXIT_UNREADABLE


if __name__ == "__main__":
    raise SystemExit(main())
