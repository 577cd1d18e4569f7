"""Command line of the sidecar."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from aiohttp import web

from dsv4_canary import __version__
from dsv4_canary.loop import Canary
from dsv4_canary.metrics import Metrics
from dsv4_canary.server import application
from dsv4_canary.settings import DEFAULT_CONFIG_PATH, Environment, SettingsError, parse_environment
from dsv4_canary.watch import SettingsFile

log = logging.getLogger("dsv4_canary")

_EPILOG = f"""\
environment of serve (all required unless a default is given):
  DSV4_CANARY_ROLE                 prefill or decode: role of the engine in this pod
  DSV4_CANARY_LISTEN_PORT          port of this sidecar's HTTP server
  DSV4_CANARY_ENGINE_URL           the engine in this pod, such as http://127.0.0.1:30000
  DSV4_CANARY_PEER_HOST            DNS name of the headless Service of the other role
  DSV4_CANARY_PEER_PORT            HTTP port of the engines of the other role
  DSV4_CANARY_BOOTSTRAP_PORT       bootstrap port of the prefill engines (default 8998)
  DSV4_CANARY_FINGERPRINT          fingerprint of the pod's generation
  DSV4_CANARY_CONFIG               settings file (default {DEFAULT_CONFIG_PATH})
  DSV4_CANARY_ENGINE_DEAD_SECONDS  /livez turns false when the engine served once and then refused
                                   connections, or was wedged, for this long (default 600)
  DSV4_CANARY_REQUIRE_GUARD        bf16 or fp8: the engine must carry the gated image's guard for that
                                   index-K format (default: not required)
  POD_NAME, POD_IP                 from the downward API
  POD_NAMESPACE, POD_UID           from the downward API (optional)

settings file (JSON, re-read when it changes; a refused one leaves the last good settings in force):
  version 1, model (served model name); optional: intervalSeconds 30, timeoutSeconds 60,
  failureThreshold 3, promptTokens 2600, wedgeSeconds 60,
  tokensPerMinute (2.3 x promptTokens an interval)

endpoints:
  /readyz   200 when whole and streamed tool calls pass through the pair, else 503 and why
  /livez    503 only when the engine is dead or wedged for long
  /status   JSON: verdict, peers, last probes
  /metrics  Prometheus text

exit status: 0 stopped by SIGTERM or SIGINT, 1 failure, 2 bad environment or settings
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line parser."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m dsv4_canary",
        description="Canary sidecar: proves a prefill/decode pair with real tool calls.",
        epilog=_EPILOG,
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=f"dsv4_canary {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    serve = commands.add_parser(
        "serve",
        help="run the sidecar until SIGTERM",
        description="Run the sidecar until SIGTERM.",
        epilog=_EPILOG,
        formatter_class=form,
    )
    serve.add_argument("--config", metavar="PATH", help="settings file, instead of DSV4_CANARY_CONFIG")
    serve.add_argument("--listen-host", metavar="ADDRESS", default=None, help="address to listen on (default: all)")
    serve.add_argument(
        "--check", action="store_true", help="only check environment and settings, print what holds, and exit"
    )
    serve.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: info"
    )
    return parser


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        env = parse_environment(os.environ if environ is None else environ, args.config)
        settings_file = SettingsFile(env.config_path)
    except SettingsError as error:
        sys.stderr.write(f"dsv4_canary: {error}\n")
        return 2
    if args.check:
        sys.stdout.write(f"{env}\n{settings_file.settings}\n")
        return 0
    try:
        asyncio.run(serve_until_signal(env, settings_file, args.listen_host))
    except OSError as error:
        sys.stderr.write(
            f"dsv4_canary: DSV4_CANARY_LISTEN_PORT = {env.listen_port}: cannot be listened on ({error.strerror}); "
            "free the port or set another one\n"
        )
        return 1
    return 0


async def serve_until_signal(env: Environment, settings_file: SettingsFile, host: str | None) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError when the port is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    canary = Canary(env, settings_file, Metrics(env.role.value, env.fingerprint))
    runner = web.AppRunner(application(canary), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, env.listen_port).start()
        log.info("canary of %s %s listens on port %d", env.role.value, env.pod_name, env.listen_port)
        work = asyncio.create_task(canary.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopped):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        log.info("stopped")
    finally:
        await runner.cleanup()
