// Several threads and groups in each process: `scripts/sanitize.sh tsan-torch` runs these under ThreadSanitizer, too.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rank_process.h"

namespace dtrain::torch_distributed {
namespace {

constexpr std::array<std::int64_t, 5> kCounts{1, 5, 300, 1000, 20'000};

// Random operations of one group, which one thread issues, several at a time. All ranks draw the same ones.
class Traffic {
 public:
  Traffic(BackendPtr group, unsigned seed)
      : group_(std::move(group)), same_(seed), own_(seed + 1 + static_cast<unsigned>(group_->getRank())) {}

  void run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (unsigned left = 1 + same_() % 6; left > 0; --left) issue();
      std::shuffle(pending_.begin(), pending_.end(), own_);
      for (Pending& one : pending_) finish(one);
      pending_.clear();
    }
  }

 private:
  struct Pending {
    WorkPtr work;
    at::Tensor have;
    at::Tensor want;
  };

  at::Tensor tensor(std::int64_t count, double value) {
    return own_() % 4 == 0 ? group_->allocateTensor(count, at::kFloat).fill_(value) : filled(count, value);
  }

  void issue() {
    const int size = group_->getSize(), rank = group_->getRank();
    const std::int64_t count = kCounts[same_() % kCounts.size()];
    const double start = same_() % 1000, sum = size * start + size * (size - 1) / 2.0;
    const int peer = static_cast<int>(same_() % static_cast<unsigned>(size));
    at::Tensor own = tensor(count, start + rank);
    Backend::Tensors tensors{own};
    switch (same_() % 6) {
      case 0:
        return add(group_->allreduce(tensors, {}), own, filled(count, sum));
      case 1: {
        c10d::BroadcastOptions options;
        options.rootRank = peer;
        return add(group_->broadcast(tensors, options), own, filled(count, start + peer));
      }
      case 2: {
        at::Tensor all = tensor(count * size, 0);
        return add(group_->_allgather_base(all, own, {}), all, each(count, [&](int i) { return start + i; }));
      }
      case 3: {
        at::Tensor whole = each(count, [&](int i) { return start + rank + i; });
        return add(group_->_reduce_scatter_base(own, whole, {}), own, filled(count, sum + size * rank));
      }
      case 4: {
        at::Tensor whole = each(count, [&](int i) { return start + 10 * rank + i; }), all = tensor(count * size, 0);
        std::vector<std::int64_t> even;
        return add(group_->alltoall_base(all, whole, even, even, {}), all,
                   each(count, [&](int i) { return start + 10 * i + rank; }));
      }
      default: {
        const int tag = peer, before = (rank + size - 1) % size;
        at::Tensor received = tensor(count, 0);
        Backend::Tensors output{received};
        add(group_->send(tensors, (rank + 1) % size, tag), own, filled(count, start + rank));
        add(group_->recv(output, before, tag), received, filled(count, start + before));
      }
    }
  }

  template <class Value>
  at::Tensor each(std::int64_t count, const Value& value) const {
    std::vector<at::Tensor> parts;
    for (int i = 0; i < group_->getSize(); ++i) parts.push_back(filled(count, value(i)));
    return at::cat(parts);
  }

  void add(WorkPtr work, at::Tensor have, at::Tensor want) {
    pending_.push_back({std::move(work), std::move(have), std::move(want)});
  }

  void finish(const Pending& one) {
    switch (own_() % 3) {
      case 0:
        one.work->getFuture()->wait();
        break;
      case 1:
        while (!one.work->isCompleted()) {
        }
        break;
      default:
        break;
    }
    one.work->wait();
    require(at::equal(one.have, one.want), "a result of " + std::to_string(one.have.numel()) + " elements");
  }

  const BackendPtr group_;
  std::mt19937 same_, own_;
  std::vector<Pending> pending_;
};

TEST(TorchDistributedThreads, EachExchangesOverAGroupOfItsOwn) {
  run_rank_processes(3, [](RankProcess& process) {
    std::vector<BackendPtr> groups{process.make_group("all"), process.make_group("reverse", {2, 1, 0})};
    if (BackendPtr some = process.make_group("some", {0, 2})) groups.push_back(some);
    std::vector<std::function<void()>> threads;
    for (unsigned i = 0; i < groups.size(); ++i) {
      threads.emplace_back([group = groups[i], i] { Traffic(group, 100 * i).run(40); });
    }
    run_threads(threads);
  });
}

TEST(TorchDistributedThreads, ManyWaitForTheOperationsOfOne) {
  run_rank_processes(2, [](RankProcess& process) {
    constexpr std::size_t kOperations = 150;
    constexpr unsigned kWaiters = 3;
    const BackendPtr group = process.make_group("all");
    std::vector<at::Tensor> tensors(kOperations);
    std::vector<WorkPtr> works(kOperations);
    std::atomic<std::size_t> issued{0};
    std::atomic<unsigned> callbacks{0};
    std::vector<std::function<void()>> threads{[&] {
      for (std::size_t i = 0; i < kOperations; ++i) {
        tensors[i] = filled(100, static_cast<double>(i) + process.rank());
        works[i] = all_reduce(*group, tensors[i]);
        issued.store(i + 1);
      }
    }};
    for (unsigned waiter = 0; waiter < kWaiters; ++waiter) {
      threads.emplace_back([&, waiter] {
        std::mt19937 random(waiter);
        for (std::size_t i = 0; i < kOperations; ++i) {
          while (issued.load() <= i) std::this_thread::yield();
          c10d::Work& work = *works[i];
          if (random() % 3 == 0) work.getFuture()->addCallback([&](c10::ivalue::Future&) { ++callbacks; });
          if (random() % 3 == 0) work.getFuture()->wait();
          if (random() % 3 == 0) static_cast<void>(work.isCompleted());
          work.wait();
          require(at::equal(tensors[i], filled(100, 2 * static_cast<double>(i) + 1)), "sum " + std::to_string(i));
        }
      });
    }
    run_threads(threads);
    require(callbacks.load() > 0, "no callback was called");
  });
}

TEST(TorchDistributedThreads, GroupsComeAndGoWhileOthersExchange) {
  run_rank_processes(2, [](RankProcess& process) {
    const BackendPtr stays = process.make_group("stays");
    run_threads({[&] { Traffic(stays, 1).run(60); },
                 [&] {
                   for (unsigned i = 0; i < 8; ++i) {
                     const BackendPtr goes = process.make_group("goes " + std::to_string(i));
                     Traffic(goes, i).run(3);
                     goes->shutdown();
                   }
                 }});
  });
}

// A fork has none of the threads that its parent has, and may not touch the parent's groups.
TEST(TorchDistributedThreads, AForkOfARankHasGroupsAndThreadsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends a fork that starts threads";
#endif
  run_rank_processes(2, [](RankProcess& process) {
    const auto sum_of = [&](Backend& group) {
      at::Tensor tensor = filled(1000, process.rank() + 1);
      all_reduce(group, tensor)->getFuture()->wait();  // completed by a thread, which then waits for the next
      require(at::equal(tensor, filled(1000, 3)), "the sum");
    };
    const BackendPtr group = process.make_group("all");
    sum_of(*group);
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      try {
        for (const char* name : {"of forks", "of forks, again"}) {
          const BackendPtr own = process.make_group(name);
          for (int turn = 0; turn < 20; ++turn) sum_of(*own);
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "fork of rank %d: %s\n", process.rank(), error.what());
        _exit(1);
      }
      std::exit(0);
    }
    sum_of(*group);
    int status = 0;
    require(waitpid(fork_of_it, &status, 0) == fork_of_it && status == 0, "the end of the fork");
    sum_of(*group);
  });
}

}  // namespace
}  // namespace dtrain::torch_distributed
