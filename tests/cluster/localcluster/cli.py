"""The command line: `python -m localcluster --help`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from localcluster import builds, cluster, components, images, state, tools
from localcluster.cluster import ClusterOptions, LocalCluster
from localcluster.errors import ClusterError
from localcluster.report import say

_PASSING_ON = {
    "kubectl": "run kubectl against a cluster; everything after --name NAME is kubectl's",
    "exec": "run a command with KUBECONFIG set; everything after --name NAME is the command",
}


def _split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Parts of a command line: ours, and what is passed on untouched (options of kubectl are not ours to read)."""
    if not argv or argv[0] not in _PASSING_ON:
        return argv, []
    end = 1
    while end < len(argv) and argv[end].startswith(("--name", "-h", "--help")):
        end += 2 if argv[end] == "--name" else 1
    rest = argv[end:]
    return argv[:end], rest[1:] if rest[:1] == ["--"] else rest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcluster", description="Kubernetes clusters on this machine, for tests.")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str, named: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        if named:
            sub.add_argument("--name", default="dev", help="cluster name (default: dev)")
        return sub

    up = add("up", "start a cluster; does nothing when it runs")
    up.add_argument("--mode", choices=["control-plane", "node"], default="control-plane")
    up.add_argument("--gpus", type=int, default=16, help="nvidia.com/gpu per node (default: 16)")
    up.add_argument("--rdma", action="append", default=[], metavar="RESOURCE=N", help="such as rdma/hca=8; repeatable")
    up.add_argument("--kwok-nodes", type=int, default=0, help="simulated nodes, control-plane mode only")
    down = add("down", "remove a cluster and everything of it")
    down.add_argument("--all", action="store_true", help="remove every cluster of this user")
    down.add_argument("--orphans", action="store_true", help="remove clusters whose owning process is gone")
    add("status", "show clusters and their components", named=False)
    add("kubeconfig", "print the path of the administrator's kubeconfig")
    for command, text in _PASSING_ON.items():
        add(command, text).usage = f"localcluster {command} [--name NAME] [--] ARGUMENT..."
    logs = add("logs", "print the log of a component")
    logs.add_argument("component")
    for verb in ("stop", "start", "restart"):
        add(verb, f"{verb} one component").add_argument("component")
    add("compact", "compact etcd now")
    build = add("build", "build programs into the cache", named=False)
    build.add_argument("components", nargs="*", help=f"of {sorted(builds.COMPONENTS)}; default: all")
    image = add("images", "build images into the cache, and load them into a cluster when --load is given")
    image.add_argument("images", nargs="*", help=f"of {sorted(images.PRODUCT_IMAGES)}; default: all")
    image.add_argument("--load", action="store_true")
    add("tools", "print the paths of helm and kubectl", named=False)
    return parser


def _resources(pairs: Sequence[str]) -> dict[str, int]:
    found = {}
    for pair in pairs:
        name, _, count = pair.partition("=")
        if not name or not count.isdigit():
            raise ClusterError(f"--rdma wants RESOURCE=N, not {pair!r}")
        found[name] = int(count)
    return found


def _up(arguments: argparse.Namespace) -> None:
    options = ClusterOptions(
        mode=arguments.mode,
        gpus=arguments.gpus,
        rdma=_resources(arguments.rdma),
        kwok_nodes=arguments.kwok_nodes,
    )
    started = LocalCluster(arguments.name, options).up()
    print(f"export KUBECONFIG={started.kubeconfig}")


def _down(arguments: argparse.Namespace) -> None:
    if arguments.orphans:
        say(f"removed orphans: {cluster.remove_orphans()}")
        return
    names = state.folder_names() if arguments.all else [arguments.name]
    for name in names:
        if not LocalCluster(name).down():
            say(f"there is no cluster {name}")


def _status() -> None:
    shown = {}
    for found in state.all_states():
        shown[found.name] = {
            "mode": found.mode,
            "ready": found.ready,
            "orphaned": found.orphaned,
            "kubeconfig": str(found.dir / "kubeconfig"),
            "components": {
                name: f"running, pid {one.pid}" if one.alive else "stopped" for name, one in found.components.items()
            },
        }
    print(json.dumps(shown, indent=1))


def _execute(command: Sequence[str], kubeconfig: Path) -> int:
    if not command:
        raise ClusterError("no command given")
    try:
        os.execvpe(command[0], list(command), {**os.environ, "KUBECONFIG": str(kubeconfig)})
    except OSError as error:
        raise ClusterError(f"{command[0]}: {error.strerror}") from error


def _run(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    match arguments.command:
        case "up":
            _up(arguments)
        case "down":
            _down(arguments)
        case "status":
            _status()
        case "kubeconfig":
            print(cluster.attach(arguments.name).kubeconfig)
        case "kubectl":
            kubectl = [str(builds.binary("plane", "plane")), "kubectl", *rest]
            return _execute(kubectl, cluster.attach(arguments.name).kubeconfig)
        case "exec":
            return _execute(rest, cluster.attach(arguments.name).kubeconfig)
        case "logs":
            path = components.log_path(cluster.attach(arguments.name).state, arguments.component)
            if not path.is_file():
                raise ClusterError(f"no log {path}; there are {sorted(one.stem for one in path.parent.glob('*.log'))}")
            print(path.read_text(errors="replace"), end="")
        case "stop" | "start" | "restart":
            getattr(cluster.attach(arguments.name), arguments.command)(arguments.component)
        case "compact":
            print(cluster.attach(arguments.name).compact())
        case "build":
            for name in arguments.components or sorted(builds.COMPONENTS):
                if name not in builds.COMPONENTS:
                    raise ClusterError(f"no component {name}; there are {sorted(builds.COMPONENTS)}")
                print(builds.build(name))
        case "images":
            for name in arguments.images or images.PRODUCT_IMAGES:
                if name not in images.PRODUCT_IMAGES:
                    raise ClusterError(f"no image {name}; there are {sorted(images.PRODUCT_IMAGES)}")
                built = images.PRODUCT_IMAGES[name].build()
                print(built)
                if arguments.load:
                    images.load(cluster.attach(arguments.name), built)
        case "tools":
            print(tools.helm(), tools.kubectl(), sep="\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. 0 fine, 1 a ClusterError (its text on stderr), 130 interrupted."""
    ours, rest = _split(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(ours)
    try:
        return _run(arguments, rest)
    except ClusterError as error:
        print(f"localcluster: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, say) has seen enough; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
