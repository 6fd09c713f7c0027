// Ranks of torch.distributed as programs in C++ have them: each is a process, forked from the test, without Python.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "dtrain/torch_distributed/backend.h"

namespace dtrain::torch_distributed {

using BackendPtr = c10::intrusive_ptr<Backend>;
using WorkPtr = Backend::WorkPtr;

class RankProcess {
 public:
  RankProcess(const std::string& store, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Collective over the members, which are ranks of the test. A null pointer for other ranks.
  BackendPtr make_group(const std::string& name, const std::vector<int>& members) const;
  BackendPtr make_group(const std::string& name) const;  // of all ranks
  // What a rank tells, the others may wait for. Neither is an operation of a group.
  void tell(const std::string& what) const;
  void await(const std::string& what) const;

 private:
  const int rank_;
  const int size_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// Ends the rank with an error unless it holds.
void require(bool holds, const std::string& what);

// Calls `body` in a process for each rank, which then ends by exit(). The test fails if one of them does.
void run_rank_processes(int size, const std::function<void(RankProcess&)>& body);

// Calls each on a thread of its own; the first exception is thrown again.
void run_threads(const std::vector<std::function<void()>>& bodies);

at::Tensor filled(std::int64_t count, double value);
WorkPtr all_reduce(Backend& group, at::Tensor& tensor);

}  // namespace dtrain::torch_distributed
