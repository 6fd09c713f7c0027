"""torchft beside recovery.py: the same training in replica groups of one process each, as torchft's users write it.

    recovery_torchft.py replica MODEL FOLDER      under torchrun, with TORCHFT_LIGHTHOUSE and REPLICA_GROUP_ID
    recovery_torchft.py lighthouse                prints its port; ends with its standard input

A replica appends a line "BATCH START_NS END_NS COMMITTED REPLICAS" to FOLDER/batches-GROUP for each batch (monotonic clock): whether its
update was made, and how many replicas took part. Its process is a line of FOLDER/pids. The waits of the lighthouse are far shorter than
torchft's defaults (5 s until a replica counts as dead, 60 s for others to join), in torchft's favour.
"""
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

DEAD_MS, JOIN_MS, TICK_MS = 1000, 200, 50
PATIENCE = timedelta(seconds=10)


def lighthouse():
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=JOIN_MS, quorum_tick_ms=TICK_MS,
                              heartbeat_timeout_ms=DEAD_MS)
    print(server.address().rpartition(":")[2], flush=True)
    sys.stdin.read()


def replica(name, folder):
    import torch
    import torchft

    import recovery_script

    torch.set_num_threads(1)
    group = int(os.environ["REPLICA_GROUP_ID"])
    with open(folder / "pids", "a") as pids:
        print(group, os.getpid(), file=pids)
    model, optimizer, data = recovery_script.training(name)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = torchft.Manager(pg=torchft.ProcessGroupGloo(timeout=PATIENCE), min_replica_size=1, load_state_dict=load, state_dict=state,
                              replica_id=f"replica-{group}", timeout=PATIENCE, hostname="127.0.0.1")
    parallel = torchft.DistributedDataParallel(manager, model)
    optimizer_of_all = torchft.Optimizer(manager, optimizer)
    order = torch.Generator().manual_seed(group)
    with open(folder / f"batches-{group}", "a", buffering=1) as batches:
        while True:
            began = time.monotonic_ns()
            inputs, labels = data.batch(torch.randint(0, len(data.labels), (recovery_script.BATCH,), generator=order))
            optimizer_of_all.zero_grad()
            data.loss(parallel(inputs), labels).backward()
            done = manager.current_step()
            optimizer_of_all.step()
            committed = manager.current_step() > done
            print(manager.current_step(), began, time.monotonic_ns(), int(committed), manager.num_participants(), file=batches)


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse()
    else:
        replica(sys.argv[2], Path(sys.argv[3]))
