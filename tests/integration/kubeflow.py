"""The progress that Kubeflow Trainer's server gets from a run: from `dtrain launch`, and from rank 0 where there is no
launcher. pods.py has the keepers of several pods. The server is a real one, with TLS and a CA of its own.

    kubeflow.py BIN_FOLDER [TestClass[.test] ...]
"""
import datetime
import signal
import socket
import subprocess
import time

from harness import BUILD, DEADLINE, Result, WorkplaceTest, environment, launch, main, wait_until, write_job
from trainer_server import PATH, TrainerServer

WARNING = "Kubeflow does not get the progress of the run: "


def status_of(post):
    return post["body"]["trainerStatus"]


class KubeflowTest(WorkplaceTest):
    def setUp(self):
        super().setUp()
        self.servers = []
        self.run_dir = self.work.new_run()

    def tearDown(self):
        for server in self.servers:
            server.close()
        super().tearDown()

    def serve(self, **more):
        self.servers.append(TrainerServer(self.work.path / f"server-{len(self.servers)}", **more))
        return self.servers[-1]

    def experiment(self, **more):
        return write_job(self.work.path, str(BUILD.bin.parent / "tests" / "rank_program"), 2, **more)

    def check_posts(self, posts, batches):
        for post in posts:
            self.assertEqual((post["path"], post["type"]), (PATH, "application/json"))
            status = status_of(post)
            datetime.datetime.fromisoformat(status["lastUpdatedTime"].replace("Z", "+00:00"))
            metrics = {metric["name"]: metric["value"] for metric in status["metrics"]}
            self.assertTrue(all(isinstance(value, str) and value for value in metrics.values()), metrics)
            self.assertLessEqual({"batch", "epoch"}, set(metrics))
        percents = [status_of(post)["progressPercentage"] for post in posts]
        self.assertEqual(percents, sorted(percents))
        self.assertTrue(all(0 <= percent <= 99 for percent in percents[:-1]), percents)
        self.assertEqual(percents[-1], 100)
        self.assertEqual(status_of(posts[-1])["estimatedRemainingSeconds"], 0)
        last = {metric["name"]: metric["value"] for metric in status_of(posts[-1])["metrics"]}
        self.assertEqual(last["batch"], str(batches))

    def check_trained(self, result, warnings):
        result.expect(0)
        self.assertEqual(result.output.count(WARNING), warnings, result.output)
        self.assertEqual([event["state"] for event in result.events("run_ended")], ["done"])


class Posting(KubeflowTest):
    def test_a_launch_posts_its_progress_at_most_every_five_seconds_and_its_end(self):
        server = self.serve()
        result = launch(BUILD, self.experiment(batches=560, step_ms=10), self.run_dir, **server.variables())
        self.check_trained(result, warnings=0)
        posts = server.posts()
        self.check_posts(posts, batches=560)
        self.assertGreaterEqual(len(posts), 3)
        gaps = [later["time"] - earlier["time"] for earlier, later in zip(posts, posts[1:])]
        self.assertGreaterEqual(min(gaps[:-1]), 4.9, gaps)  # the last post is that of the end
        self.assertEqual({post["token"] for post in posts}, {"Bearer first-token"})

    def test_rank_0_posts_where_there_is_no_launcher_and_the_token_is_read_anew(self):
        server = self.serve()
        hold = self.work.path / "hold"
        command = [str(BUILD.bin.parent / "tests" / "rank_program"),
                   str(self.experiment(batches=300, hyperparameters={"until_file": str(hold)}, step_ms=50)),
                   "--run-dir", str(self.run_dir)]
        server.url = server.url.replace("127.0.0.1", "localhost")
        own = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417"}
        ranks = [subprocess.Popen(command, env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **own, **server.variables()),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
        wait_until(lambda: server.posts() or ranks[0].poll() is not None, "a post")
        server.give_token("second-token")
        hold.touch()
        outputs = [rank.communicate(timeout=DEADLINE)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.check_trained(Result(0, "".join(outputs), self.run_dir), warnings=0)
        posts = server.posts()
        self.check_posts(posts, batches=300)
        self.assertEqual([posts[0]["token"], posts[-1]["token"]], ["Bearer first-token", "Bearer second-token"])

    def test_a_run_that_is_stopped_does_not_say_that_it_is_done(self):
        server = self.serve()
        command = [BUILD.program("dtrain"), "launch", str(self.experiment(batches=1_000_000)), "--run-dir", str(self.run_dir)]
        with subprocess.Popen(command, env=environment(**server.variables()), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: server.posts() or process.poll() is not None, "a post")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(DEADLINE), 130)
        self.assertTrue(all(status_of(post)["progressPercentage"] < 100 for post in server.posts()))


class Failing(KubeflowTest):
    """The run trains to its end, and one warning says why nobody sees its progress."""

    def launch(self, variables, **more):
        result = launch(BUILD, self.experiment(batches=60, **more), self.run_dir, **variables)
        self.check_trained(result, warnings=1)
        (line,) = (line for line in result.output.splitlines() if WARNING in line)
        self.assertTrue(line.endswith("; training goes on"), line)
        return line

    def test_a_certificate_of_another_authority(self):
        server, other = self.serve(), self.serve()
        line = self.launch({**server.variables(), "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(other.folder / "ca.crt")})
        self.assertIn("its certificate is refused: ", line)
        self.assertEqual(server.posts(), [])

    def test_a_certificate_for_another_name(self):
        server = self.serve(certified="127.0.0.2")
        self.assertIn("its certificate is refused: IP address mismatch", self.launch(server.variables()))
        self.assertEqual(server.posts(), [])

    def test_an_answer_that_refuses_is_shown_and_told_once_in_many_posts(self):
        server = self.serve(answer=403)
        line = self.launch(server.variables(), step_ms=100)
        self.assertIn('it answers 403: {"kind": "Status", "message": "the token is of another pod"}', line)
        self.assertGreaterEqual(len(server.posts()), 2)

    def test_a_server_that_never_answers_delays_the_end_by_seconds(self):
        server = self.serve(answer=0)
        began = time.monotonic()
        line = self.launch(server.variables())
        self.assertIn("it was given up", line)
        self.assertLess(time.monotonic() - began, 60)

    def test_nobody_listens_and_files_are_missing(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            server = self.serve()
            nobody = f"https://127.0.0.1:{taken.getsockname()[1]}{PATH}"
            for name, value, expected in (("URL", nobody, "Connection refused"),
                                          ("URL", "http://127.0.0.1/", "it is no https:// address"),
                                          ("TOKEN", "/no/token", "/no/token"),
                                          ("CA_CERT", "/no/ca.crt", "cannot read the certificates in /no/ca.crt")):
                with self.subTest(name=name, value=value):
                    self.run_dir = self.work.new_run()
                    line = self.launch({**server.variables(), f"KUBEFLOW_TRAINER_SERVER_{name}": value}, step_ms=1)
                    self.assertIn(expected, line)
            self.assertEqual(server.posts(), [])

    def test_without_the_variables_nothing_is_posted(self):
        server = self.serve()
        result = launch(BUILD, self.experiment(batches=60), self.run_dir,
                        KUBEFLOW_TRAINER_SERVER_TOKEN=server.variables()["KUBEFLOW_TRAINER_SERVER_TOKEN"])
        self.check_trained(result, warnings=0)
        self.assertEqual(server.posts(), [])


if __name__ == "__main__":
    main("dtrain-agent")
