"""Many runs of a trial in one process for each rank (PROGRAM --cases, trial_cases.h): starting takes longer than a short run."""
import json
import socket
import subprocess

from harness import DEADLINE, Result, environment


def free_ports(count):
    """Nothing listens there; they tell jobs apart."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_plans(build, program, folder, name, plans, **extra_environment):
    """Of each rank its runs, one after the other in one process; gives what they left, rank by rank."""
    ranks = len(plans)
    processes = []
    for rank, plan in enumerate(plans):
        (folder / f"{name}-cases-{rank}.json").write_text(json.dumps(plan))
        own = environment(**extra_environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                          LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
        command = [build.program(program), "--cases", str(folder / f"{name}-cases-{rank}.json"),
                   str(folder / f"{name}-results-{rank}.json")]
        output = open(folder / f"{name}-output-{rank}", "w")
        processes.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        output.close()
    try:
        codes = [process.wait(4 * DEADLINE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    output = "".join((folder / f"{name}-output-{rank}").read_text() for rank in range(ranks))
    lines = [(folder / f"{name}-results-{rank}.json").read_text().splitlines() for rank in range(ranks)]
    if any(codes):
        ended = min(map(len, lines))
        during = f" during {plans[0][ended]['arguments']}" if ended < len(plans[0]) else ""
        raise AssertionError(f"{ranks} ranks ended with {codes}{during}:\n{output}")
    return [[json.loads(line) for line in of_rank] for of_rank in lines]


def result_of(run_dir, lines):
    """Of a run whose ranks left these lines; its output is the ranks' logs."""
    logs = sorted((run_dir / "logs").glob("rank-*.log"))
    return Result(max(line["exit_code"] for line in lines), "".join(log.read_text() for log in logs), run_dir)


def run_many(build, program, folder, files):
    """The results of these experiment files, each with its run in a folder `run` beside it. Those with as many ranks run in
    the same processes."""
    files, by_ranks = list(files), {}
    for file in files:
        by_ranks.setdefault(json.loads(file.read_text())["resources"]["slots_per_trial"], []).append(file)
    results = {}
    for ranks, mine in by_ranks.items():
        plan = [{"arguments": [str(file), "--run-dir", str(file.parent / "run")], "environment": {"MASTER_PORT": str(port)}}
                for file, port in zip(mine, free_ports(len(mine)))]
        name = f"{mine[0].parent.name}-{ranks}"
        lines = run_plans(build, program, folder, name, [plan] * ranks)
        results.update({file: result_of(file.parent / "run", of_ranks) for file, of_ranks in zip(mine, zip(*lines))})
    return [results[file] for file in files]
