// What programs in C++ rely upon: when futures are complete, what aborted operations end with, memory of the group.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "dtrain/base/error.h"
#include "rank_process.h"

namespace dtrain::torch_distributed {
namespace {

// Returns what it throws; empty: nothing.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST(TorchDistributedBackend, FutureIsCompleteOnceTheOperationIs) {
  run_rank_processes(2, [](RankProcess& process) {
    const BackendPtr group = process.make_group("all");
    at::Tensor tensor = filled(1000, process.rank() + 1);
    if (process.rank() == 1) process.await("rank 0 has looked");
    const WorkPtr work = all_reduce(*group, tensor);
    const auto future = work->getFuture();
    if (process.rank() == 0) {
      require(!work->isCompleted() && !future->completed(), "it is complete without rank 1");
      process.tell("rank 0 has looked");
    }
    future->wait();
    require(at::equal(tensor, filled(1000, 3)), "the sum");
    require(at::equal(future->value().toTensorVector().at(0), tensor), "the future's value");
  });
}

TEST(TorchDistributedBackend, FuturesAreCompletedWithoutAThreadThatWaits) {
  run_rank_processes(2, [](RankProcess& process) {
    const BackendPtr group = process.make_group("all");
    at::Tensor tensor = filled(5, process.rank()), next = filled(5, process.rank() + 1);
    const auto sum = all_reduce(*group, tensor)
                         ->getFuture()
                         ->then(
                             [&](c10::ivalue::Future&) {
                               all_reduce(*group, next)->wait();
                               return c10::IValue(next);
                             },
                             c10::TensorType::get());
    sum->wait();  // the callback has issued an operation, and waited for it
    require(at::equal(tensor, filled(5, 1)) && at::equal(next, filled(5, 3)), "the sums");
  });
}

TEST(TorchDistributedBackend, AbortEndsWhatThreadsWaitFor) {
  run_rank_processes(2, [](RankProcess& process) {
    const BackendPtr group = process.make_group("all");
    at::Tensor tensor = filled(10, 1);
    if (process.rank() == 0) {
      const WorkPtr work = all_reduce(*group, tensor);
      const auto future = work->getFuture();
      std::string of_wait, of_future;
      run_threads({[&] { of_wait = error_of([&] { work->wait(); }); },
                   [&] { of_future = error_of([&] { future->waitAndThrow(); }); },
                   [&] {
                     process.await("rank 1 sees it");
                     group->abort();
                   }});
      require(of_wait.find("was aborted") != std::string::npos, "the error of wait(): " + of_wait);
      require(of_future.find("was aborted") != std::string::npos, "the error of the future: " + of_future);
      process.tell("it is aborted");
    } else {
      process.tell("rank 1 sees it");
      process.await("it is aborted");
    }
    const std::string of_next = error_of([&] { all_reduce(*group, tensor)->wait(); });
    require(of_next.find("was aborted") != std::string::npos, "the error of the next operation: " + of_next);
  });
}

TEST(TorchDistributedBackend, MemoryOfTheGroupIsUsedInPlaceUntilItIsFreed) {
  run_rank_processes(2, [](RankProcess& process) {
    const BackendPtr group = process.make_group("all");
    require(group->supportsTensorAlloc(0), "ranks of one host have memory in common");
    for (int round = 0; round < 20; ++round) {
      at::Tensor tensor = group->allocateTensor(1000 + 100 * (round % 3), at::kFloat).fill_(process.rank() + round);
      const void* const data = tensor.data_ptr();
      all_reduce(*group, tensor)->wait();
      require(tensor.data_ptr() == data, "the tensor stays where it is");
      require(at::equal(tensor, filled(tensor.numel(), 2 * round + 1)), "the sum");
    }
    at::Tensor tensor = group->allocateTensor(1000, at::kFloat).fill_(1);
    at::Tensor view = at::from_blob(tensor.data_ptr(), {1000}, at::kFloat);  // does not own it
    tensor.reset();
    const std::string error = error_of([&] { all_reduce(*group, view)->wait(); });
    require(error.find("the memory was freed") != std::string::npos, "the error of freed memory: " + error);
  });
}

}  // namespace
}  // namespace dtrain::torch_distributed
