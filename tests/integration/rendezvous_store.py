"""The store in which ranks meet, joined to PyTorch's TCPStore: our client with both of its servers, its client with ours.

    rendezvous_store.py BIN_FOLDER STORE_PROGRAM [TestClass[.test] ...]
"""
import subprocess
import sys
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

ADDRESS = "127.0.0.1"
PATIENCE = 30  # seconds
ANY_BYTES = bytes(range(256)) * 300  # more than one TCP segment


class Program:
    """A store_program, which obeys one line at a time."""
    path = None

    def __init__(self, way, port, timeout=PATIENCE):
        command = [self.path, way, ADDRESS, str(port), str(int(timeout * 1000))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self.process.stdout.readline().strip()
        self.port = int(self.first.removeprefix("port ")) if self.first.startswith("port ") else None

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def set(self, key, value):
        return self.ask("set", key, value.hex())

    def get(self, key):
        answer = self.ask("get", key)
        return bytes.fromhex(answer.removeprefix("value").strip()) if answer.startswith("value") else answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()
        assert self.process.returncode is not None


def torch_store(port, serves, libuv, timeout=PATIENCE):
    return dist.TCPStore(ADDRESS, port, is_master=serves, wait_for_workers=False, use_libuv=libuv,
                         timeout=timedelta(seconds=timeout))


class TheirServer(unittest.TestCase):
    def on_both(self, check):
        for libuv in (True, False):
            with self.subTest(libuv=libuv):
                check(torch_store(0, True, libuv))

    def test_values_go_both_ways(self):
        def check(theirs):
            with Program("connect", theirs.port) as ours, Program("connect", theirs.port) as another:
                self.assertEqual(ours.set("ours", ANY_BYTES), "ok")
                self.assertEqual(theirs.get("ours"), ANY_BYTES)
                self.assertEqual(another.get("ours"), ANY_BYTES)
                theirs.set("theirs", ANY_BYTES.decode("latin-1"))
                self.assertEqual(ours.get("theirs"), ANY_BYTES.decode("latin-1").encode())
                ours.set("empty", b"")
                self.assertEqual(another.get("empty"), b"")
        self.on_both(check)

    def test_a_key_that_is_set_late_is_awaited(self):
        def check(theirs):
            with Program("connect", theirs.port) as ours:
                began = time.monotonic()
                timer = threading.Timer(0.5, theirs.set, ("late", "value"))
                timer.start()
                self.assertEqual(ours.get("late"), b"value")
                self.assertGreater(time.monotonic() - began, 0.4)
                timer.join()
        self.on_both(check)

    def test_what_we_erase_is_gone(self):
        def check(theirs):
            with Program("connect", theirs.port) as ours:
                ours.set("secret", b"s")
                theirs.wait(["secret"])  # a set has no answer
                self.assertEqual(ours.ask("erase", "secret"), "ok")
                self.assertFalse(theirs.check(["secret"]))
                self.assertEqual(ours.ask("erase", "secret"), "ok")
                self.assertEqual(ours.set("secret", b"again"), "ok")
                self.assertEqual(theirs.get("secret"), b"again")
        self.on_both(check)

    def test_the_deadline_names_the_key(self):
        def check(theirs):
            with Program("connect", theirs.port, timeout=0.3) as ours:
                self.assertIn("'never' was not set in the store at 127.0.0.1:", ours.get("never"))
            with Program("connect", theirs.port) as ours:  # others are served
                theirs.set("k", "v")
                self.assertEqual(ours.get("k"), b"v")
        self.on_both(check)


class TheirClient(unittest.TestCase):
    def setUp(self):
        self.server = Program("serve", 0)
        self.addCleanup(self.server.__exit__)
        self.client = torch_store(self.server.port, False, True)

    def test_it_reads(self):
        self.server.set("contact", ANY_BYTES)
        self.assertEqual(self.client.get("contact"), ANY_BYTES)
        self.assertTrue(self.client.check(["contact"]))
        self.assertFalse(self.client.check(["contact", "another"]))
        self.client.wait(["contact"], timedelta(seconds=PATIENCE))
        self.server.ask("erase", "contact")
        self.assertFalse(self.client.check(["contact"]))

    def test_it_waits(self):
        timer = threading.Timer(0.5, self.server.set, ("late", b"value"))
        timer.start()
        self.client.wait(["late"], timedelta(seconds=PATIENCE))
        timer.join()
        self.assertEqual(self.client.get("late"), b"value")
        with self.assertRaisesRegex(dist.DistStoreError, "timeout"):
            self.client.wait(["never"], timedelta(milliseconds=200))
        self.assertEqual(self.client.get("late"), b"value")  # the connection is as before

    def test_it_may_not_write(self):
        self.server.set("contact", b"address")
        self.client.set("contact", "another address")
        with self.assertRaises(dist.DistError):
            self.client.get("contact")
        with self.assertRaises(dist.DistError):
            torch_store(self.server.port, False, True).delete_key("contact")
        self.assertEqual(torch_store(self.server.port, False, True).get("contact"), b"address")


if __name__ == "__main__":
    del sys.argv[1]  # the folder, which every test of this kind gets
    Program.path = sys.argv.pop(1)
    print("PyTorch", torch.__version__)
    unittest.main()
