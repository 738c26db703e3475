"""Mixed load on loopback for a while: short, long, cancelled, malformed, slow readers, and one question that must have
the same answer every time. Prints one JSON object; exit status 1 for any failure beyond the malformed, or memory that
is larger in the last sixth of the time than in the second.

usage: soak.py [--model FILE] [--minutes 10] [--threads N] [--output FILE]
"""

import argparse
import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from strata.bench.serve import PromptMaker, Target

MALFORMED = [
    b"{", b"[]", b"{}", b'{"messages": []}', b'{"messages": [{"role": "user", "content": 5}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
    b'{"messages": [{"role": "king", "content": "x"}]}', b"\xff\xfe",
    b'{"messages": [{"role": "user", "content": "x"}], "n": 99}',
]  # fmt: skip
FIXED = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 24, "temperature": 0}
GROWTH = 0.05  # share of the mean over the second sixth of the time that the last may have more: noise of the allocator
PARALLEL, CONTEXT, CACHE_MIB = 4, 2048, 64
FILL_PROMPTS = 2 * PARALLEL  # that touch all of the KV pool and of the cache before memory is looked at
CHAT = "/v1/chat/completions"


class Soak:
    """Clients of each kind until the time is over."""

    def __init__(self, port: int, seconds: float):
        self.port = port
        self.target = Target(f"http://127.0.0.1:{port}", timeout=300)
        self.model = self.target.model()
        self.prompts = PromptMaker.fitted(self.target, self.model)
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.speeds: dict[str, list[tuple[float, float]]] = defaultdict(list)  # kind: (end, seconds a token)
        self.fixed_answers: set[str] = set()
        self.fill()
        self.begun = time.monotonic()
        self.end = self.begun + seconds

    def body(self, kind: str, number: object, prompt: int, output: int) -> dict[str, object]:
        """A question that no other resembles."""
        text = self.prompts.text(f"{kind} {number}", prompt)
        return self.target.body(self.model, text, output, {"ignore_eos": True})

    def fill(self) -> None:
        """Lets the server take the memory that it was granted."""
        for i in range(FILL_PROMPTS):
            self._whole("fill", self.body("fill", i, CONTEXT - 100, 2))

    def loop(self, kind: str, seed: int) -> None:
        """One client: asks, counts, asks again."""
        chance, number = random.Random(seed), 0
        while time.monotonic() < self.end:
            number += 1
            try:
                getattr(self, kind)(chance, f"{seed} {number}")
                self.done[kind] += 1
            except Exception as error:  # whatever it is, it is a finding
                self.failures.append(f"{kind} {seed} {number}: {type(error).__name__}: {error}")

    def _whole(self, kind: str, body: dict[str, object]) -> None:
        sample = self.target.ask(body)
        if sample.error:
            raise RuntimeError(sample.error)
        if sample.tokens != body["max_tokens"]:
            raise RuntimeError(f"{sample.tokens} tokens, {body['max_tokens']} were asked for")
        self.speeds[kind].append((time.monotonic(), sample.tpot or 0.0))

    def short(self, chance: random.Random, number: str) -> None:
        """A few words."""
        self._whole("short", self.body("short", number, chance.randint(40, 120), chance.randint(8, 48)))

    def long(self, chance: random.Random, number: str) -> None:
        """A long prompt and a long answer."""
        self._whole("long", self.body("long", number, chance.randint(600, 1200), chance.randint(60, 200)))

    def cancelled(self, chance: random.Random, number: str) -> None:
        """Leaves in the middle of the prompt or of the answer."""
        with self._raw(self.body("cancelled", number, chance.randint(40, 900), 400)) as connection:
            time.sleep(chance.random() * 2)
            connection.recv(chance.randint(1, 4096))

    def slow(self, chance: random.Random, number: str) -> None:
        """Reads a little at a time through a small buffer, and gets all the same."""
        with self._raw(self.body("slow", number, 60, 60), buffer=4096) as connection:
            received = b""
            while part := connection.recv(2048):
                received += part
                time.sleep(0.02 + 0.1 * chance.random())
        if b"data: [DONE]" not in received:
            raise RuntimeError(f"the stream ended early, after {len(received)} bytes")

    def malformed(self, chance: random.Random, number: str) -> None:
        """Refused by name; the connection's next request is answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", CHAT, chance.choice(MALFORMED), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 400 or not json.loads(body)["error"]["message"]:
            raise RuntimeError(f"{answer.status}: {body[:200]!r}")
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            raise RuntimeError("not healthy afterwards")
        connection.close()
        time.sleep(0.2)

    def fixed(self, chance: random.Random, number: str) -> None:
        """The same question, whoever else is served."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", CHAT, json.dumps(FIXED), {"Content-Type": "application/json"})
        self.fixed_answers.add(json.load(connection.getresponse())["choices"][0]["message"]["content"])
        connection.close()
        time.sleep(1)

    def _raw(self, body: dict[str, object], buffer: int = 0) -> socket.socket:
        connection = socket.socket()
        connection.settimeout(300)
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.connect(("127.0.0.1", self.port))
        payload = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        return connection

    def report(self, memory: list[tuple[float, float]]) -> dict[str, object]:
        """What was found."""
        sixth = memory[-1][0] / 6
        means = [
            statistics.mean([mib for at, mib in memory if i * sixth <= at <= (i + 1) * sixth])
            for i in range(6)
        ]
        middle = (self.begun + self.end) / 2
        drift = {}
        for kind, speeds in self.speeds.items():
            halves = [s for at, s in speeds if at < middle], [s for at, s in speeds if at >= middle]
            if all(halves):
                drift[kind] = round(statistics.median(halves[1]) / statistics.median(halves[0]), 3)
        return {
            "requests": dict(self.done),
            "failures": self.failures,
            "fixed_answers": len(self.fixed_answers),
            "rss_mib": [[round(at), round(mib, 1)] for at, mib in memory],
            "rss_mib_by_sixth": [round(mean, 1) for mean in means],
            "rss_growth": round(means[-1] / means[1] - 1, 4),
            "token_time_second_half_over_first": drift,
        }


def rss_mib(pid: int) -> float:
    """Memory that a process holds, without the pages of the mapped model file."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def serve(model: Path, threads: int) -> tuple[subprocess.Popen[str], int]:
    """A server process on a free port."""
    command = [str(Path(sys.executable).with_name("strata")), "serve", "--model", str(model), "--port", "0"]
    command += ["--threads", str(threads)]
    command += ["--parallel", str(PARALLEL), "--max-context", str(CONTEXT)]
    command += ["--conversation-cache-mib", str(CACHE_MIB)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "serving on" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
            return process, int(line.rsplit(":", 1)[1])
    raise SystemExit(f"the server did not start: {process.wait()}")


KINDS = {"short": 2, "long": 2, "cancelled": 2, "slow": 1, "malformed": 1, "fixed": 1}  # clients at once


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=Path(".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    process, port = serve(given.model, given.threads)
    try:
        soak = Soak(port, given.minutes * 60)
        clients = [
            threading.Thread(target=soak.loop, args=(kind, 100 * i + j), daemon=True)
            for i, (kind, many) in enumerate(KINDS.items())
            for j in range(many)
        ]
        for client in clients:
            client.start()
        memory = []
        while any(client.is_alive() for client in clients):
            memory.append((time.monotonic() - soak.begun, rss_mib(process.pid)))
            time.sleep(min(5.0, 2 * given.minutes))
        found = soak.report(memory)
    finally:
        process.terminate()
        code = process.wait(60)
    found["server_exit"] = code
    text = json.dumps(found)
    if given.output:
        given.output.write_text(text + "\n")
    print(text)
    return int(bool(soak.failures) or len(soak.fixed_answers) != 1 or found["rss_growth"] > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
