"""Which of two links between two hosts a launch takes, and what the doctor says of both.
Runs inside `two_hosts.sh with 1gbit,100mbit`, which makes them. No torch, no Python packages.

    network.py BUILD_FOLDER [TestClass[.test] ...]
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BED = str(pathlib.Path(__file__).resolve().parent.parent / "harness" / "two_hosts.sh")
HOSTS = os.environ.get("TWO_HOSTS", "")
CLUSTER = """
agents: [{{id: a, host: nodea, slots: 1}}, {{id: b, host: {other}, slots: 1}}]
launcher: {{type: mpi, options: [--oversubscribe, --mca, plm_rsh_agent, "ssh -F {hosts}/ssh_config"]}}
task_container_defaults: {{dtrain_network_interface: {interface}}}
"""
EXPERIMENT = """
name: test
entrypoint: [{program}]
hyperparameters: {{global_batch_size: 8}}
resources: {{slots_per_trial: 2}}
searcher: {{metric: loss, max_length: {{batches: 3}}}}
"""


def bed(verb, *arguments):
    return subprocess.run([BED, verb, HOSTS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class OverTwoLinks(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dtrain-network-"))
        (self.folder / "e.yaml").write_text(EXPERIMENT.format(program=BUILD / "tests" / "rank_program"))

    def tearDown(self):
        shutil.rmtree(self.folder)

    def dtrain(self, *arguments, interface="auto", other="nodeb"):
        (self.folder / "c.yaml").write_text(CLUSTER.format(other=other, hosts=HOSTS, interface=interface))
        variables = f"DTRAIN_STATE_DIR={self.folder}/state DTRAIN_CALIBRATION=false"
        command = f"cd {self.folder} && {variables} exec timeout 100 {BUILD}/bin/dtrain "
        return bed("run", "a", "sh", "-c", command + " ".join(arguments))

    def launch(self, expected=0, **cluster):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        result = self.dtrain("launch", "e.yaml", "--cluster", "c.yaml", "--run-dir", "run", **cluster)
        self.assertEqual(result.returncode, expected, result.stdout + result.stderr)
        return result

    def network(self):
        return json.loads((self.folder / "run" / "plan.json").read_text())["network"]

    def sent(self, link):
        return int(bed("run", "a", "cat", f"/sys/class/net/{link}/statistics/tx_bytes").stdout)

    def test_the_faster_one_is_taken(self):
        result = self.launch()
        self.assertIn("network     link0 (10.71.1.0/24): ", result.stdout)
        self.assertIn("      or    link1 (10.71.2.0/24): ", result.stdout)
        self.assertIn("the hosts have several networks in common: link0", result.stderr)
        network = self.network()
        self.assertEqual((network["interface"], network["reason"]), ("link0", "the fastest of 2"))
        fast, slow = network["networks"]
        self.assertEqual((fast["network"], slow["network"]), ("10.71.1.0/24", "10.71.2.0/24"))
        self.assertLess(slow["bits_per_second"], 110e6)
        self.assertGreater(fast["bits_per_second"], 2 * slow["bits_per_second"])
        self.assertEqual([end["address"] for end in slow["hosts"]], ["10.71.2.1", "10.71.2.2"])

    def test_the_names_do_not_decide(self):
        bed("rate", "50mbit", "link0")
        bed("rate", "1gbit", "link1")
        try:
            self.launch()
        finally:
            bed("rate", "1gbit", "link0")
            bed("rate", "100mbit", "link1")
        self.assertEqual(self.network()["interface"], "link1")

    def test_the_wanted_one_is_taken(self):
        for wanted in ("link1", "10.71.2.0/24"):
            result = self.launch(interface=wanted)
            self.assertNotIn("several networks", result.stderr)
            network = self.network()
            self.assertEqual(network["reason"], "dtrain_network_interface: " + wanted)
            self.assertEqual([one["network"] for one in network["networks"]], ["10.71.2.0/24"])
            log = (self.folder / "run" / "logs" / "rank-0000.log").read_text()
            self.assertIn("mpi", log + (self.folder / "run" / "plan.json").read_text())

    def test_one_that_nothing_gets_through_is_not_taken(self):
        bed("cut", "link0")
        try:
            # ssh goes to an address of the other link, as a management network would.
            result = self.launch(other="10.71.2.2")
            network = self.network()
            refused = self.launch(expected=2, other="10.71.2.2", interface="link0")
        finally:
            bed("mend", "link0")
        self.assertEqual((network["interface"], network["reason"]), ("link1", "the only one that joins the hosts"))
        self.assertIn("no answer in time", network["networks"][1]["problem"])
        self.assertNotIn("several networks", result.stderr)
        self.assertIn("no network joins the hosts: link0 (10.71.1.0/24): no connection from 10.71.1.", refused.stderr)

    def test_hosts_that_cannot_take_part(self):
        refused = self.launch(expected=2, interface="eth7")
        self.assertIn("c.yaml: dtrain_network_interface: host nodea has no interface 'eth7'", refused.stderr)
        refused = self.launch(expected=2, other="nodec")
        self.assertIn("host nodec cannot be reached by ssh: ", refused.stderr)
        self.assertEqual(bed("run", "b", "mount", "-t", "tmpfs", "tmpfs", str(BUILD / "bin")).returncode, 0)
        try:
            refused = self.launch(expected=2)
        finally:
            bed("run", "b", "umount", str(BUILD / "bin"))
        self.assertIn(f"host nodeb has no program {BUILD / 'bin' / 'dtrain'}", refused.stderr)

    def test_nothing_is_left_behind(self):
        self.launch(expected=2, interface="eth7")
        for host in "ab":
            probes = "pgrep -f '[d]train host-probe|[d]train. .host-probe'"
            looking = f"for i in $(seq 200); do {probes} >/dev/null || exit 0; sleep 0.05; done; exit 1"
            self.assertEqual(bed("run", host, "sh", "-c", looking).returncode, 0, f"host {host}")

    def test_the_doctor(self):
        result = self.dtrain("doctor", "--cluster", "c.yaml", "--json")
        report = json.loads(result.stdout)
        self.assertEqual([host["host"] for host in report["hosts"]],
                         ["nodea (this host)", "nodeb", "between the hosts"])
        findings = {one["check"]: one for one in report["hosts"][1]["findings"]}
        for check in ("remote shell", "clock", "run folder", "MPI", "shared memory"):
            self.assertEqual(findings[check]["level"], "ok", findings[check])
        self.assertIn("is shared with this host", findings["run folder"]["text"])
        texts = [one["text"] for one in report["hosts"][2]["findings"]]
        self.assertTrue(texts[0].startswith("link0 (10.71.1.0/24): "), texts)
        self.assertTrue(texts[0].endswith("; taken: the fastest of 2"), texts)
        self.assertTrue(texts[1].startswith("link1 (10.71.2.0/24): "), texts)
        self.assertEqual(result.returncode, 1 if report["worst"] == "problem" else 0)

    def test_the_doctor_of_a_host_that_does_not_answer(self):
        result = self.dtrain("doctor", "--cluster", "c.yaml", other="nodec")
        self.assertEqual(result.returncode, 1)
        self.assertIn("problem   remote shell    host nodec cannot be reached by ssh: ", result.stdout)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if not HOSTS:
        sys.exit("network.py runs inside tests/harness/two_hosts.sh with RATE,RATE")
    unittest.main()
