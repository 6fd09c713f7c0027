#include "rank_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "../harness/temporary_folder.h"

namespace dtrain::torch_distributed {
namespace {

using std::chrono::seconds;

constexpr seconds kTimeout{60};
constexpr seconds kHangs{200};

int run_rank(const std::string& store, int rank, int size, const std::function<void(RankProcess&)>& body) {
  at::set_num_threads(1);
  try {
    RankProcess process(store, rank, size);
    body(process);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

RankProcess::RankProcess(const std::string& store, int rank, int size)
    : rank_(rank), size_(size), store_(c10::make_intrusive<c10d::FileStore>(store, -1)) {}

BackendPtr RankProcess::make_group(const std::string& name, const std::vector<int>& members) const {
  const auto place = std::find(members.begin(), members.end(), rank_);
  if (place == members.end()) return {};
  c10d::DistributedBackendOptions options{};
  options.store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
  options.group_rank = static_cast<int>(place - members.begin());
  options.group_size = static_cast<int>(members.size());
  options.timeout = kTimeout;
  options.group_id = name;
  options.global_ranks_in_group.assign(members.begin(), members.end());
  return c10::make_intrusive<Backend>(options);
}

BackendPtr RankProcess::make_group(const std::string& name) const {
  std::vector<int> all(static_cast<std::size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return make_group(name, all);
}

void RankProcess::tell(const std::string& what) const {
  store_->set(what, std::string("told"));
}

void RankProcess::await(const std::string& what) const {
  store_->wait({what}, kTimeout);
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("wrong: " + what);
}

void run_rank_processes(int size, const std::function<void(RankProcess&)>& body) {
  const TemporaryFolder folder;
  const std::string store = (folder / "store").string();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) std::exit(run_rank(store, rank, size, body));
    pids.push_back(pid);
  }
  const auto deadline = std::chrono::steady_clock::now() + kHangs;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    int status = 0;
    while (waitpid(pids[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(pids[rank], SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(status, 0) << "of rank " << rank;
  }
}

void run_threads(const std::vector<std::function<void()>>& bodies) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const auto& body : bodies) {
    threads.emplace_back([&mutex, &first, &body] {
      try {
        body();
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

at::Tensor filled(std::int64_t count, double value) {
  return at::full({count}, value, at::kFloat);
}

WorkPtr all_reduce(Backend& group, at::Tensor& tensor) {
  Backend::Tensors tensors{tensor};
  return group.allreduce(tensors, {});
}

}  // namespace dtrain::torch_distributed
