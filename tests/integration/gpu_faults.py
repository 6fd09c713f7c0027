"""What goes wrong while ranks train on GPUs: exit code, rank, cause and remedy; nothing is left behind.

    gpu_faults.py BIN_FOLDER [TestClass[.test] ...]
"""
import os
import unittest
from pathlib import Path

from gpu_cases import experiment, gpu_environment, run_cases
from harness import BUILD, Workplace, launch, left_in_shared_memory, main, own_state_folder, run, wait_until

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
BATCH = 7  # in which it happens
TIMED_OUT = r"operation \d+, timed out after \d"


def training(fault=None, length=1_000_000, timeout=30, **hyperparameters):
    if fault:
        hyperparameters["fault"] = {"rank": 1, "batch": BATCH, **fault}
    return {"model": "mlp", "optimizer": SGD, "batches": [1_000_000] * 4, "length": {"batches": length},
            "hyperparameters": hyperparameters, "optimizations": {"sharded_optimizer": False},
            "sections": {"communication": {"timeout": timeout}}}


def processes_of_this_program():
    """Those that were started with its state folder, itself aside."""
    mark = f"DTRAIN_STATE_DIR={own_state_folder()}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or is another user's
            pass
    return found


class FaultTest(unittest.TestCase):
    def setUp(self):
        self.work = Workplace("gpu-faults")
        self.addCleanup(self.work.remove)
        self.private = self.work.path / "private"  # where a run keeps what is not for others
        self.private.mkdir(mode=0o700)
        self.shared_before = set(os.listdir("/dev/shm"))

    def launched(self, ranks, case, **environment):
        file = experiment(BUILD, case, ranks, "cuda", self.work.path / "experiment.yaml")
        result = launch(BUILD, file, self.work.new_run(), XDG_RUNTIME_DIR=str(self.private),
                        **{**gpu_environment(BUILD), **environment}).expect(1)
        self.assertTrue((self.private / "dtrain").is_dir(), "the run has kept it elsewhere")
        return result

    def check_failure(self, result, rank, cause, others, remedy=""):
        """`cause`: a pattern. It stands once in the launcher's words and in the events, with its rank."""
        self.assertEqual(result.output.count("the run failed"), 1, result.output)
        self.assertRegex(result.output, rf"the run failed: rank {rank} .*{cause}")
        if others:
            self.assertIn(f"{others} stopped because of it", result.output)
        self.assertIn(remedy, result.output)
        failed, = result.events("run_failed")
        self.assertEqual(failed["rank"], rank)
        self.assertRegex(failed["cause"], cause)
        ended, = result.events("run_ended")
        self.assertEqual((ended["state"], ended["exit_code"]), ("failed", 1))
        self.assertNotIn("SIGSEGV", result.output)
        self.check_nothing_left()

    def check_nothing_left(self):
        wait_until(lambda: not processes_of_this_program(), f"the end of {processes_of_this_program()}")
        left = [str(path) for path in (self.private / "dtrain").rglob("*") if not path.is_dir()]
        self.assertEqual(left, [])
        runs = self.work.path.glob("run-*")
        self.assertEqual(left_in_shared_memory(self.shared_before, *runs), [])


class Ranks(FaultTest):
    def test_a_rank_is_killed(self):
        for ranks, others in ((2, "rank 0"), (4, "ranks 0, 2-3")):
            self.check_failure(self.launched(ranks, training({"kind": "kill"})), 1,
                               r"was killed by signal 9 \(SIGKILL\)", others)

    def test_a_rank_is_stopped(self):
        result = self.launched(2, training({"kind": "stop"}, timeout=2))
        self.check_failure(result, 0, f"at batch {BATCH}: .*{TIMED_OUT}.*missing: rank 1 has not entered it", "")


class Nccl(FaultTest):
    def test_an_asynchronous_error(self):
        for ranks, others in ((2, "rank 0"), (4, "ranks 0, 2-3")):
            result = self.launched(ranks, training({"kind": "nccl_error"}))
            self.check_failure(result, 1, f"at batch [78]: .*all_reduce.*bucket 0.*NCCL has failed: NCCL reports: "
                                          "remote process exited", others)

    def test_an_operation_that_never_ends(self):
        for rank in (0, 1):
            result = self.launched(2, training({"kind": "nccl_hang", "rank": rank}, timeout=2))
            failed, = result.events("run_failed")  # each rank waits for it
            self.check_failure(result, failed["rank"],
                               rf"all_reduce\(sum, float32, \d+ elements, bucket 0\), {TIMED_OUT}"
                               ".*every rank has entered it, and NCCL does not finish it", "")

    def test_a_reduction_of_one_part_that_never_ends(self):
        case = training({"kind": "nccl_hang", "at": 2}, timeout=2)
        case["optimizations"] = {"sharded_optimizer": True}
        result = self.launched(2, case)
        failed, = result.events("run_failed")
        self.check_failure(result, failed["rank"], f"gather_parts.*{TIMED_OUT}", "")


class Gpus(FaultTest):
    MEMORY = ("GPU 1 is out of memory: CUDA out of memory. Tried to allocate .*; .* are in tensors, "
              ".* are reserved for them")

    def test_memory_ends(self):
        result = self.launched(2, training({"kind": "allocation", "at": 5}))
        self.check_failure(result, 1, f"at batch {BATCH}: {self.MEMORY}", "rank 0",
                           "lower hyperparameters.global_batch_size")

    def test_every_allocation_of_a_step_may_be_the_one_too_many(self):
        counted = training(length=20, count_from=10, count_to=11)
        (counts,), = run_cases(BUILD, self.work.path, 1, [counted], ["cuda"])
        allocations = counts.counts[0]["allocations"]
        self.assertGreater(allocations, 20)
        cases = [training({"kind": "allocation", "rank": 0, "at": n}, length=20) for n in range(1, allocations + 1)]
        folder = self.work.path / "each"
        folder.mkdir()
        for n, (one,) in enumerate(run_cases(BUILD, folder, 1, cases, ["cuda"]), start=1):
            with self.subTest(allocation=n):
                one.result.expect(1)
                self.assertEqual(one.reports, [])
                failed, = one.result.events("rank_failed")
                # The last ones are of the next batch's tensors.
                self.assertIn(failed["step"], (BATCH, BATCH + 1), failed)
                self.assertRegex(failed["cause"], self.MEMORY.replace("GPU 1", "GPU 0"))
                self.assertIn("raise optimizations.aggregation_frequency", failed["remedy"])
        self.check_nothing_left()

    def test_a_device_is_lost(self):
        for at in (1, 20):
            result = self.launched(2, training({"kind": "lost", "at": at}))
            self.check_failure(result, 1, f"at batch {BATCH}: GPU 1 has failed: CUDA error: ", "rank 0", "grep -i xid")

    def test_a_device_is_taken_or_has_lost_data(self):
        for code, text, remedy in ((46, "GPU 1 is taken by another process", "nvidia-smi shows the process"),
                                   (214, "GPU 1 has lost data", "nvidia-smi -q -d ECC")):
            result = self.launched(2, training(), DTRAIN_FAKE_GPU_FAULT=f"lost:1:{code}",
                                   DTRAIN_FAKE_GPU_FAULT_RANK="1")
            self.check_failure(result, 1, text, "", remedy)


class Starting(FaultTest):
    def test_libtorch_without_cuda(self):
        folder = self.work.path / "libraries"
        folder.mkdir()
        fakes = Path(gpu_environment(BUILD)["LD_LIBRARY_PATH"])
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            if (fakes / name).exists():
                (folder / name).symlink_to((fakes / name).resolve())
        file = experiment(BUILD, training(), 2, "cuda", self.work.path / "experiment.yaml")
        result = launch(BUILD, file, self.work.new_run(), XDG_RUNTIME_DIR=str(self.private),
                        **{**gpu_environment(BUILD), "LD_LIBRARY_PATH": str(folder)}).expect(2)
        self.assertRegex(result.output, "resources.slot_type is cuda, but libtorch's CUDA part "
                                        "(is not in|needs libraries that are not there)")
        self.assertIn("resources.slot_type: cpu", result.output)
        self.check_nothing_left()

    def test_a_gpu_that_is_not_there(self):
        """Without a launcher, that would have seen it."""
        file = experiment(BUILD, training(), 1, "cuda", self.work.path / "experiment.yaml")
        run_dir = self.work.new_run()
        result = run([BUILD.program("gpu_trial"), str(file), "--run-dir", str(run_dir)], run_dir,
                     XDG_RUNTIME_DIR=str(self.private), **{**gpu_environment(BUILD), "CUDA_VISIBLE_DEVICES": ""})
        self.assertIn(result.code, (1, 2))
        self.assertRegex(result.output, "CUDA finds no GPU|no GPU is visible")
        self.check_nothing_left()


if __name__ == "__main__":
    main("gpu_trial")
