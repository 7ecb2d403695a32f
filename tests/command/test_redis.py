# SPDX-License-Identifier: Apache-2.0
"""`--tier redis:`: what another process stored comes back, and no server changes a token.

Needs redis-server, from the path or from scripts/redis-here; without it these tests are skipped.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import weakref

import pytest
from engine import COMMAND, SOURCE, checkpoint, generate, run

MODEL = "tied-f32"
PROMPTS = [list(range(1, 50)), list(range(1, 33)) + [7] * 17, [9, 8, 7, 6, 5] * 13, [3] * 33]
REQUESTS = [{"id": f"r{i}", "prompt_ids": prompt, "max_new_tokens": 6}
            for i, prompt in enumerate(PROMPTS)]
PATH = os.environ.get("PATH", "") + os.pathsep + str(SOURCE / "build" / "redis" / "bin")
SERVER = shutil.which("redis-server", path=PATH)
CLI = shutil.which("redis-cli", path=PATH)

pytestmark = pytest.mark.skipif(not SERVER or not CLI, reason="no redis-server: scripts/redis-here")


def free_port():
    """Below the ports that the kernel hands out. A node of a cluster also listens on its port + 10000."""
    while True:
        port = random.randrange(3000, 12000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10000))
                return port
            except OSError:
                continue


class Server:
    def __init__(self, folder, *options, tls=False):
        ports = ["--port", "0", "--tls-port"] if tls else ["--port"]
        end = time.monotonic() + 60
        self.process = None
        while time.monotonic() < end:
            if self.process is None or self.process.poll() is not None:  # the port was taken meanwhile
                self.port = free_port()
                self.process = subprocess.Popen(
                    [SERVER, *ports, str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir",
                     str(folder), "--logfile", "log", *options], stdin=subprocess.DEVNULL)
                weakref.finalize(self, self.process.kill)
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                if "Ready to accept" in (folder / "log").read_text():
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("redis-server does not answer")

    @property
    def tier(self):
        return f"redis:127.0.0.1:{self.port}"

    def ask(self, *words, data=None):
        done = subprocess.run([CLI, "-p", str(self.port), *words], input=data, capture_output=True,
                              timeout=60, check=True)
        return done.stdout.decode().split()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    yield made
    made.end()


def tokens(result):
    return {sample["id"]: sample["token_ids"] for sample in result.samples}


def tier_check(server, *options):
    return subprocess.run([COMMAND, "tier", "check", server.tier, *options], capture_output=True,
                          text=True, timeout=60, check=False)


def test_a_second_process_computes_one_token_of_each_prompt_and_other_models_all(server):
    alone = generate(checkpoint(MODEL), REQUESTS)
    first = generate(checkpoint(MODEL), REQUESTS, "--tier", server.tier)
    assert first.summary["redis"]["stores"] > 0 and first.summary["redis"]["stores_refused"] == 0
    second = generate(checkpoint(MODEL), REQUESTS, "--tier", server.tier, "--num-blocks", 99)
    assert tokens(alone) == tokens(first) == tokens(second)
    assert second.summary["prefill_tokens_computed"] == len(REQUESTS)
    assert second.summary["redis"]["loads"] > 0 and second.summary["tier_corrupt"] == 0
    for model, options in ((checkpoint(MODEL), ["--cache-dtype", "bf16"]),
                           (checkpoint(MODEL, max_positions=256), [])):
        other = generate(model, REQUESTS, "--tier", server.tier, *options)
        assert other.summary["redis"]["loads"] == 0, options
    checked = tier_check(server)
    assert checked.returncode == 0 and " 0 damaged" in checked.stdout, checked.stdout


def test_damaged_values_are_found_and_cost_no_token(server):
    expected = tokens(generate(checkpoint(MODEL), REQUESTS, "--tier", server.tier))
    keys = sorted(server.ask("keys", "kvfolio:*"))
    assert len(keys) >= 6
    server.ask("setrange", keys[0], "300", "flipped")
    server.ask("set", "kvfolio:config", "of somebody else")
    server.ask("setrange", keys[1], "9000000", "longer")
    server.ask("set", keys[2], "cut")
    server.ask("eval", "redis.call('set', KEYS[1], redis.call('get', KEYS[2]))", "2", keys[3],
               keys[4])
    checked = tier_check(server, "--json")
    assert checked.returncode == 1
    found = json.loads(checked.stdout)
    assert found["damaged"] == 4 and found["records"] == len(keys) - 4 and found["erased"] == 0
    assert sorted(fault["key"] for fault in found["faults"]) == keys[:4]
    again = generate(checkpoint(MODEL), REQUESTS, "--tier", server.tier)
    assert tokens(again) == expected
    # What was asked for is removed and stored again; --erase removes the others.
    erased = json.loads(tier_check(server, "--json", "--erase").stdout)
    assert erased["erased"] == erased["damaged"] < 4
    assert tier_check(server).returncode == 0
    assert server.ask("get", "kvfolio:config") == ["of", "somebody", "else"]
    assert json.loads(tier_check(server, "--json").stdout)["others"] == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_goes_in_between_costs_no_token(server, how):
    prompts = [{"id": f"p{i}", "prompt_ids": [i % 50 + 1] * 40 + list(range(1, 9)),
                "max_new_tokens": 4} for i in range(40)]
    expected = tokens(generate(checkpoint(MODEL), prompts))
    command = [COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--json", "--requests", "-",
               "--max-seqs", "1", "--tier", server.tier]
    text = "\n".join(json.dumps(prompt) for prompt in prompts).encode()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdin.write(text)
        process.stdin.close()
        lines = [process.stdout.readline() for _ in range(5)]  # it is at work
        os.kill(server.process.pid, how)
        lines += process.stdout.read().splitlines()
        assert process.wait(timeout=120) == 0, process.stderr.read()
    samples = [json.loads(line) for line in lines]
    assert {s["id"]: s["token_ids"] for s in samples if "summary" not in s} == expected


def test_what_is_wrong_with_a_server_is_said(tmp_path):
    locked = Server(tmp_path, "--requirepass", "sesame")
    try:
        done = run(checkpoint(MODEL), "--tier", locked.tier, requests=REQUESTS)
        assert done.returncode == 2 and b"NOAUTH" in done.stderr, done.stderr
        assert tier_check(locked).returncode == 2
        os.environ["KVFOLIO_REDIS_PASSWORD"] = "open"
        done = run(checkpoint(MODEL), "--tier", locked.tier, requests=REQUESTS)
        assert done.returncode == 2 and b"WRONGPASS" in done.stderr, done.stderr
        os.environ["KVFOLIO_REDIS_PASSWORD"] = "sesame"
        generate(checkpoint(MODEL), REQUESTS, "--tier", locked.tier)
    finally:
        os.environ.pop("KVFOLIO_REDIS_PASSWORD", None)
        locked.end()
    done = run(checkpoint(MODEL), "--tier", locked.tier, requests=REQUESTS)
    assert done.returncode == 2 and b"Connection refused" in done.stderr, done.stderr


def test_a_refusal_is_the_servers_own_words_and_what_to_set(tmp_path):
    locked = Server(tmp_path, "--requirepass", "sesame", "--user", "reader", "on", ">secret",
                    "~kvfolio:*", "+get", "+exists", "+ping", "+cluster|slots")
    try:
        for environment, words in (({}, "NOAUTH Authentication required."),
                                   ({"KVFOLIO_REDIS_PASSWORD": "open"}, "WRONGPASS"),
                                   ({"KVFOLIO_REDIS_USER": "reader",
                                     "KVFOLIO_REDIS_PASSWORD": "open"}, "WRONGPASS")):
            for verb in (["generate", "--model", str(checkpoint(MODEL)), "--prompt-ids", "1,2",
                          "--tier"], ["tier", "check"]):
                done = subprocess.run([COMMAND, *verb, locked.tier], capture_output=True, text=True,
                                      timeout=60, check=False, env=os.environ | environment)
                assert done.returncode == 2 and words in done.stderr, done.stderr
                assert "KVFOLIO_REDIS_PASSWORD" in done.stderr and "KVFOLIO_REDIS_USER" in done.stderr
                assert "did not answer" not in done.stderr, done.stderr
        reader = os.environ | {"KVFOLIO_REDIS_USER": "reader", "KVFOLIO_REDIS_PASSWORD": "secret"}
        done = subprocess.run([COMMAND, "tier", "check", locked.tier], capture_output=True,
                              text=True, timeout=60, check=False, env=reader)
        assert done.returncode == 2 and "DBSIZE: NOPERM" in done.stderr, done.stderr
        ids = ",".join(map(str, PROMPTS[0]))
        done = subprocess.run([COMMAND, "generate", "--model", str(checkpoint(MODEL)),
                               "--prompt-ids", ids, "--tier", locked.tier], capture_output=True,
                              text=True, errors="replace", timeout=60, check=False, env=reader)
        assert done.returncode == 0, done.stderr
        assert "--tier redis: a store failed" in done.stderr and "NOPERM" in done.stderr, done.stderr
        assert "stores FAILED" in done.stdout, done.stdout
    finally:
        locked.end()


def test_the_rights_that_the_page_lists_suffice(tmp_path):
    page = (pathlib.Path(SOURCE) / "docs" / "tiers.md").read_text()
    rights = re.search(r"`(\+get [^`]*)`", page).group(1).split()
    more = re.search(r"`(\+dbsize [^`]*)`", page).group(1).split()
    server = Server(tmp_path, "--user", "engine", "on", ">secret", *rights,
                    "--user", "checker", "on", ">secret", *rights, *more)
    try:
        ids = ",".join(map(str, PROMPTS[0]))
        generated = [COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--prompt-ids", ids,
                     "--json", "--tier", server.tier]
        for user, command in (("engine", generated), ("engine", generated),
                              ("checker", [COMMAND, "tier", "check", server.tier, "--erase"])):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                                  env=os.environ | {"KVFOLIO_REDIS_USER": user,
                                                    "KVFOLIO_REDIS_PASSWORD": "secret"})
            assert done.returncode == 0 and "NOPERM" not in done.stderr, done.stderr
            if command is generated:
                redis = json.loads(done.stdout.splitlines()[-1])["summary"]["redis"]
        assert redis["loads"] > 0
    finally:
        server.end()


@pytest.mark.parametrize("servers", ["alice:x7,q9@127.0.0.1:1", "redis://:x7q9@127.0.0.1:1",
                                     "127.0.0.1:1,alice:x7@q9@127.0.0.1:2"])
def test_a_password_in_the_command_line_is_refused_and_not_repeated(servers):
    here = ["generate", "--model", str(checkpoint(MODEL)), "--prompt-ids", "1,2"]
    for words in ([*here, "--tier", f"redis:{servers}"], [*here, "--tier", servers],
                  [*here, f"redis:{servers}"], [*here, "--tier", "redis:h:1", "--tier",
                                                f"redis:{servers}"],
                  ["tier", "check", f"redis:{servers}"], ["tier", "check", servers]):
        done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60,
                              check=False)
        assert done.returncode == 2 and done.stdout == "", done
        assert "x7" not in done.stderr and "q9" not in done.stderr, done.stderr


def test_a_server_that_repeats_the_password_is_not_quoted():
    """As one does that does not know AUTH."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"-ERR unknown command 'AUTH', with args beginning with: 'x7q9'"
                                   b"\r\n")
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        done = subprocess.run([COMMAND, "tier", "check", f"redis:127.0.0.1:{server.getsockname()[1]}"],
                              capture_output=True, text=True, timeout=60, check=False,
                              env=os.environ | {"KVFOLIO_REDIS_PASSWORD": "x7q9"})
        thread.join()
    assert done.returncode == 2 and "AUTH: ERR unknown command 'AUTH'\n" in done.stderr, done.stderr
    assert "x7q9" not in done.stderr, done.stderr


# ---- a cluster ----

class Cluster:
    """Three primaries, no replica, so that a node that is killed stays dead."""

    def __init__(self, folder):
        self.nodes = []
        for i in range(3):
            (folder / str(i)).mkdir()
            self.nodes.append(Server(folder / str(i), "--cluster-enabled", "yes",
                                     "--cluster-require-full-coverage", "no",
                                     "--cluster-node-timeout", "2000"))
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        subprocess.run([CLI, "--cluster", "create", *addresses, "--cluster-yes"],
                       capture_output=True, timeout=60, check=True)
        self.addresses = addresses
        end = time.monotonic() + 30
        while any("cluster_state:ok" not in node.ask("cluster", "info") for node in self.nodes):
            assert time.monotonic() < end, "a cluster that is whole"
            time.sleep(0.05)

    def end(self):
        for node in self.nodes:
            node.end()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_node_is_named_and_the_others_are_used_and_checked(cluster, how):
    tier = "redis:" + ",".join(cluster.addresses)
    for _ in range(5):  # a busy machine may greet later than the command waits for a node
        done = run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS)
        if b"redis: ready, 3 nodes\n" in done.stderr:
            break
    assert b"redis: ready, 3 nodes\n" in done.stderr, done.stderr
    words = [COMMAND, "tier", "check", tier, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    whole = json.loads(done.stdout)
    assert done.returncode == 0 and whole["unread"] == [] and whole["nodes"] == 3
    dead = cluster.addresses[0]
    lost = int(cluster.nodes[0].ask("dbsize")[0])
    cluster.nodes[0].process.send_signal(how)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done
    found = json.loads(done.stdout)
    why = "Connection refused" if how == signal.SIGKILL else "no answer to DBSIZE within 10 s"
    assert found["unread"] == [{"node": dead, "what": why}]
    assert found["nodes"] == 3 and found["records"] == whole["records"] - lost
    if how == signal.SIGSTOP:
        return
    done = subprocess.run(words[:-1], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and f"NOT READ: {dead}: {why}" in done.stdout, done
    assert ": 2 of 3 nodes, " in done.stdout
    done = run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS)
    assert f"redis: ready, 2 of 3 nodes; {dead}: ".encode() in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_scripts_cluster_leaves_nothing_behind_where_a_port_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = os.environ | {"KVFOLIO_CLUSTER_PORT": str(port - 3), "PATH": PATH,
                                    "KVFOLIO_CLUSTER_FOLDER": str(tmp_path / "cluster")}
        done = subprocess.run([SOURCE / "scripts" / "cluster", "start"], capture_output=True,
                              text=True, timeout=60, check=False, env=environment)
        assert done.returncode == 1 and f"port {port}" in done.stderr, done
        for other in range(port - 3, port):
            with socket.socket() as one:
                assert one.connect_ex(("127.0.0.1", other)) != 0, f"{other} listens"
        assert not (tmp_path / "cluster").exists()


# ---- TLS ----

@pytest.fixture
def certificates(tmp_path):
    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], cwd=tmp_path, capture_output=True, timeout=60,
                       check=True)

    for name in ("ca", "stranger"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server", "-keyout", "server.key",
            "-out", "server.csr")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "server.pem")
    return tmp_path


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_a_tier_check_speaks_tls_and_trusts_whom_the_ca_does(certificates):
    server = Server(certificates, "--requirepass", "sesame", "--tls-cert-file", "server.pem",
                    "--tls-key-file", "server.key", "--tls-ca-cert-file", "ca.pem",
                    "--tls-auth-clients", "no", tls=True)
    environment = os.environ | {"KVFOLIO_REDIS_PASSWORD": "sesame",
                                "KVFOLIO_REDIS_CA": str(certificates / "ca.pem")}
    ids = ",".join(map(str, PROMPTS[0]))

    def check(**more):
        return subprocess.run([COMMAND, "tier", "check", server.tier, "--json"],
                              capture_output=True, text=True, timeout=60, check=False,
                              env=environment | more)
    try:
        stored = subprocess.run([COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--json",
                                 "--prompt-ids", ids, "--tier", server.tier], capture_output=True,
                                text=True, timeout=60, check=True, env=environment)
        count = json.loads(stored.stdout.splitlines()[-1])["summary"]["redis"]["stores"]
        done = check()
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["records"] == count > 0
        done = check(KVFOLIO_REDIS_CA=str(certificates / "stranger.pem"))
        assert done.returncode == 2 and "certificate of the server is refused" in done.stderr, done
        done = check(KVFOLIO_REDIS_CA=str(certificates / "none.pem"))
        assert done.returncode == 2 and "KVFOLIO_REDIS_CA: " in done.stderr, done.stderr
        done = check(KVFOLIO_REDIS_PASSWORD="open")
        assert done.returncode == 2 and "WRONGPASS" in done.stderr, done.stderr
    finally:
        server.end()


@pytest.mark.parametrize(("tiers", "said"), [
    (["redis:"], "allowed: redis:HOST:PORT"), (["redis:nowhere"], "'nowhere' is not HOST:PORT"),
    (["redis:a:1", "disk:x,1GiB"], "disk:DIR,SIZE before redis:HOST:PORT"),
    (["redis:a:1", "redis:b:1"], "one redis:HOST:PORT")])
def test_bad_servers_are_refused(tiers, said):
    options = [word for tier in tiers for word in ("--tier", tier)]
    done = run(checkpoint(MODEL), *options, requests=REQUESTS)
    assert done.returncode == 2 and said.encode() in done.stderr, done.stderr


def test_rows_of_prove_come_from_redis(server):
    done = subprocess.run([COMMAND, "prove", "--model", str(checkpoint(MODEL)), "--json", "--tier",
                           server.tier], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if "restored from Redis" in row["name"]]
    assert len(rows) == 3 and all(row["loads"] > 0 for row in rows)
    assert any("preempting" in row["name"] for row in rows)
    redis = json.loads(done.stdout)["tiers"]["redis"]
    assert redis["loads"] > 0 and redis["stores"] > 0 and redis["up"] is True


def test_the_password_stands_in_no_command_line():
    """It would be seen by every user of the machine."""
    text = subprocess.run([COMMAND, "generate", "--help"], capture_output=True, text=True,
                          timeout=60, check=True).stdout
    assert "password" not in text.lower()
    assert "KVFOLIO_REDIS_PASSWORD" in (pathlib.Path(SOURCE) / "docs" / "tiers.md").read_text()
