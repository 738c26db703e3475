"""`strata serve --log-json`: every line is an object, whoever says it."""

import json
import signal
import socket
import subprocess
import sys


def test_every_line_is_an_object(tiny_path, tmp_path):
    config = tmp_path / "strata.toml"
    config.write_text("[gpu]\ntensor_parallel = 1\n")
    command = [
        sys.executable,
        "-c",
        "from strata.cli import main; main()",
        "serve",
        "--config",
        config,
        "--model",
        tiny_path,
    ]
    command += ["--port", "0", "--log-json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        lines = []
        for line in server.stderr:
            lines.append(json.loads(line))
            if "serving on" in lines[-1]["message"]:
                break
        port = int(lines[-1]["message"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"no request\r\n\r\n")
            assert b" 400 " in connection.recv(4096)
        server.send_signal(signal.SIGINT)
        lines += [json.loads(line) for line in server.stderr]
    assert server.returncode in (0, 130)
    said = " ".join(line["message"] for line in lines)
    assert "gpu.tensor_parallel has no effect" in said and "Invalid HTTP request" in said
