"""The pair behind the real router (smg, a test dependency): file discovery, plain and streamed calls."""

import asyncio
import json
import subprocess
import sys
import time

import aiohttp
import pytest
import smg  # noqa: F401  # part of the test extra: a missing router is an error, not a skip

pytestmark = pytest.mark.processes

ASK = 'Call the tool probe_echo exactly once with token "{token}" and n {n}. Do not write anything else.'


@pytest.fixture(scope="module")
def router(pair, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("router")
    manifest = folder / "workers.json"
    workers = [
        {"id": "p", "url": pair.prefill.url, "worker_type": "prefill", "bootstrap_port": pair.prefill.bootstrap_port},
        {"id": "d", "url": pair.decode.url, "worker_type": "decode"},
    ]
    manifest.write_text(json.dumps({"version": 1, "workers": workers}))
    ports = [request.getfixturevalue("unused_tcp_port_factory")() for _ in range(2)]
    command = [sys.executable, "-m", "smg.launch_router", "--host", "127.0.0.1", "--port", str(ports[0])]
    command += ["--pd-disaggregation", "--discovery-provider", "file", "--discovery-file", str(manifest)]
    command += ["--discovery-check-interval-secs", "1", "--no-remove-unhealthy-workers", "--disable-retries"]
    command += ["--prefill-policy", "cache_aware", "--decode-policy", "random", "--health-check-endpoint", "/ready"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(ports[1])]
    log = (folder / "router.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    yield f"http://127.0.0.1:{ports[0]}", process, folder / "router.log"
    process.kill()
    process.wait(60)


async def wait_ready(url, process, log):
    end = time.monotonic() + 60
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            assert process.poll() is None, log.read_text()
            try:
                async with session.get(url + "/readiness") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise AssertionError(log.read_text())


async def test_calls_through_the_router(pair, router):
    url, process, log = router
    await wait_ready(url, process, log)
    async with aiohttp.ClientSession() as session:

        async def ask(number, stream):
            body = pair.body(ASK.format(token=f"r-{number:03d}", n=number), stream=stream)
            body = {key: value for key, value in body.items() if not key.startswith("bootstrap_")}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                text = await response.text()
                assert response.status == 200, text
                return text

        whole = await asyncio.gather(*(ask(number, False) for number in range(20)))
        streamed = await asyncio.gather(*(ask(number, True) for number in range(20)))
    for number, text in enumerate(whole):
        (call,) = json.loads(text)["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"token": f"r-{number:03d}", "n": number}
    for number, text in enumerate(streamed):
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        pieces = [call for delta in deltas for call in delta.get("tool_calls") or []]
        joined = "".join(piece["function"]["arguments"] for piece in pieces)
        assert json.loads(joined) == {"token": f"r-{number:03d}", "n": number}
