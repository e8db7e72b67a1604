#!/usr/bin/env python3
"""Measures how long a server takes from its start to the first token that arrives: launches the command, asks until the server is
ready, sends one streaming request and reads its first event. Standard library only.

usage: start_time.py [--repeat N] [--port N] [--json FILE] -- verdict-engine serve --model M ...   (--port is added to the command)"""
import argparse
import json
import signal
import socket
import subprocess
import sys
import time

WAIT_S = 300  # longest wait for a server
PAUSE_S = 0.002  # between two questions


def exchange(port, request):
    """A connection whose answer is still to be read, or None where nobody listens."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        connection.sendall(request)
        return connection
    except OSError:
        return None


def is_ready(port):
    connection = exchange(port, b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
    if connection is None:
        return False
    with connection, connection.makefile("rb") as answer:
        return b" 200 " in answer.readline()


def read_first_token(port):
    body = json.dumps({"prompt": "Hello", "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = exchange(port, head.encode() + body)
    with connection, connection.makefile("rb") as answer:
        status = answer.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the server answered {status!r}")
        for line in answer:
            if line.startswith(b"data: {"):
                return
        raise RuntimeError("the answer ended without an event")


def measure(command, port):
    begin = time.monotonic()
    server = subprocess.Popen(command + ["--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while not is_ready(port):
            if server.poll() is not None:
                raise RuntimeError(server.stderr.read().decode(errors="replace"))
            if time.monotonic() - begin > WAIT_S:
                raise RuntimeError(f"not ready after {WAIT_S} s")
            time.sleep(PAUSE_S)
        ready = time.monotonic()
        read_first_token(port)
        first = time.monotonic()
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        log = server.communicate()[1].decode(errors="replace")
    return {"ready_s": round(ready - begin, 3), "first_token_s": round(first - begin, 3), "log": log.splitlines()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--port", type=int, default=8137)
    parser.add_argument("--json")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    starts = []
    for i in range(options.repeat):
        try:
            starts.append(measure(options.command, options.port + i))
        except RuntimeError as error:
            print(f"start_time: {error}", file=sys.stderr)
            return 1
        print(f"start {i + 1}: ready after {starts[-1]['ready_s']:.2f} s, first token after {starts[-1]['first_token_s']:.2f} s", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"command": options.command, "starts": starts}, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
