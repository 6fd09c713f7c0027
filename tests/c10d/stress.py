"""Random asynchronous operations on overlapping groups, waited for in another order on each rank, with every value checked.

    stress.py BUILD/bin [SECONDS [SEED]]     (20 s; the seed is printed)
"""
import random
import sys
import time

import group_ranks
import torch
import torch.distributed as dist

COUNTS = [1, 5, 300, 1000, 20000, 300000]


class Round:
    """The operations of one round: the same on all ranks, which issue them in the same order."""

    def __init__(self, groups: list[tuple[list[int], object]], rank: int, same: random.Random) -> None:
        self.rank, self.same, self.pending = rank, same, []
        for _ in range(same.randint(1, 12)):
            members, group = same.choice(groups)
            kind = same.choice([self.all_reduce, self.broadcast, self.all_gather, self.reduce_scatter, self.all_to_all, self.ring,
                                self.reduce, self.gather])
            count, start, choice = same.choice(COUNTS), same.randint(0, 1000), same.random()
            if rank in members:
                kind(members, group, [torch.full((count,), float(start + i)) for i in range(len(members))], choice)

    def add(self, work: object, have: torch.Tensor, want: torch.Tensor) -> None:
        self.pending.append((work, have, want))

    def all_reduce(self, members, group, parts, _) -> None:
        tensor = parts[members.index(self.rank)].clone()
        self.add(dist.all_reduce(tensor, group=group, async_op=True), tensor, sum(parts))

    def broadcast(self, members, group, parts, choice) -> None:
        root = int(choice * len(members))
        tensor = parts[members.index(self.rank)].clone()
        self.add(dist.broadcast(tensor, members[root], group=group, async_op=True), tensor, parts[root])

    def reduce(self, members, group, parts, choice) -> None:
        root = int(choice * len(members))
        tensor = parts[members.index(self.rank)].clone()
        work = dist.reduce(tensor, members[root], group=group, async_op=True)
        self.add(work, tensor if members[root] == self.rank else torch.zeros(1), sum(parts) if members[root] == self.rank else torch.zeros(1))

    def all_gather(self, members, group, parts, _) -> None:
        output = torch.zeros(parts[0].numel() * len(members))
        self.add(dist.all_gather_into_tensor(output, parts[members.index(self.rank)], group=group, async_op=True), output, torch.cat(parts))

    def gather(self, members, group, parts, choice) -> None:
        root = members[int(choice * len(members))]
        outputs = [torch.zeros_like(part) for part in parts] if root == self.rank else None
        work = dist.gather(parts[members.index(self.rank)], outputs, root, group=group, async_op=True)
        for output, part in zip(outputs or [torch.zeros(1)], parts if outputs else [torch.zeros(1)]):
            self.add(work, output, part)

    def reduce_scatter(self, members, group, parts, _) -> None:
        place = members.index(self.rank)
        output = torch.zeros_like(parts[0])
        whole = torch.cat([parts[place] + i for i in range(len(members))])
        self.add(dist.reduce_scatter_tensor(output, whole, group=group, async_op=True), output, sum(parts) + len(members) * place)

    def all_to_all(self, members, group, parts, _) -> None:
        place = members.index(self.rank)
        output = torch.zeros(parts[0].numel() * len(members))
        whole = torch.cat([parts[place] * 10 + i for i in range(len(members))])
        self.add(dist.all_to_all_single(output, whole, group=group, async_op=True), output, torch.cat([part * 10 + place for part in parts]))

    def ring(self, members, group, parts, choice) -> None:
        if len(members) == 1:
            return
        place, tag = members.index(self.rank), int(choice * 4)
        output = torch.zeros_like(parts[0])
        self.add(dist.isend(parts[place], members[(place + 1) % len(members)], group=group, tag=tag), parts[place], parts[place])
        self.add(dist.irecv(output, members[place - 1], group=group, tag=tag), output, parts[place - 1])

    def finish(self, own: random.Random) -> int:
        if own.random() < 0.3:
            time.sleep(own.random() * 0.003)
        own.shuffle(self.pending)
        for work, have, want in self.pending:
            if own.random() < 0.3:
                work.get_future().wait()
            elif own.random() < 0.3:
                while not work.is_completed():
                    pass
            work.wait()
            if not torch.equal(have, want):
                raise AssertionError(f"{have[:3]} and not {want[:3]}")
        return len(self.pending)


def stress(rank: int, seconds: float, seed: int) -> int:
    size = dist.get_world_size()
    everyone = list(range(size))
    groups = [(everyone, dist.group.WORLD)]
    for members in (everyone, everyone[::-1], everyone[1:] or everyone, everyone[:-1] or everyone):
        group = dist.new_group(members, sort_ranks=False) if hasattr(dist, "split_group") else dist.new_group(members)
        groups.append((members, group))
    same, own = random.Random(seed), random.Random(seed * 100 + rank)
    end, operations = time.monotonic() + seconds, 0
    while True:
        more = torch.tensor([int(time.monotonic() < end)])
        dist.broadcast(more, 0)
        if not more.item():
            return operations
        operations += Round(groups, rank, same).finish(own)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10000)
    for size in (1, 2, 3, 4):
        print(f"{size} ranks, seed {seed}: ", end="", flush=True)
        print(group_ranks.run(size, stress, seconds / 4, seed, limit=group_ranks.LIMIT + seconds), "operations", flush=True)


if __name__ == "__main__":
    main()
