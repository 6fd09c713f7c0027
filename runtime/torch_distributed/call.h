// One call of PyTorch's: how its tensors are handed to a communicator or the mailbox.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/mailbox.h"
#include "dtrain/comm/types.h"
#include "group.h"
#include "work.h"

namespace dtrain::torch_distributed {

struct Call {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  // in PyTorch's profiler and in errors: "dtrain:all_reduce"
  Tensors inputs, outputs;
  milliseconds timeout{};
  bool is_async = true;  // false: the caller waits at once
  int peer = -1;         // of a message: a rank of the group; -1: any
};

template <class Options>
Call call_of(c10d::OpType type, const char* title, Tensors inputs, Tensors outputs, const Options& options,
             const c10d::Backend::Options& defaults) {
  return {.type = type,
          .title = title,
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .timeout = options.timeout == c10d::kUnsetTimeout ? defaults.timeout : options.timeout,
          .is_async = options.asyncOp};
}

// Issues operations of the group's communicator, or of its mailbox, and records them. Throws c10::Error if a tensor is
// not in host memory.
WorkPtr run(const std::shared_ptr<Group>& group, Call call,
            const std::function<void(GroupWork::Parts& parts, comm::Communicator& communicator)>& issue);
WorkPtr deliver(const std::shared_ptr<Group>& group, Call call,
                const std::function<void(GroupWork::Parts& parts, comm::Mailbox& mailbox)>& issue);

// The elements of a contiguous tensor as a communicator copies them: complex numbers are pairs; bytes for types that
// communicators do not know.
struct Elements {
  comm::DataType type;
  std::size_t count;
};
Elements elements_of(const at::Tensor& tensor);

// A tensor as a communicator reduces it: contiguous, complex numbers as pairs, narrow types that communicators do not
// know as wider ones. Shares the tensor's memory if it can.
struct Reduction {
  at::Tensor data;
  comm::DataType type = comm::DataType::kFloat32;
  comm::ReduceOptions options;
};
// c10::Error if the reduction is not defined for the tensor's type; `title` begins the text.
Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* title);
// Returns the memory for a result with the form of `like`, which is `target` itself if it can be. Otherwise `parts`
// copies the result to the target at the end.
at::Tensor result_for(const at::Tensor& target, const at::Tensor& like, const Group& group, GroupWork::Parts& parts);

// Returns a contiguous tensor with these values: itself, or a copy that `parts` keeps.
at::Tensor sendable(const at::Tensor& tensor, GroupWork::Parts& parts);
// Returns contiguous memory that becomes these values: the tensor's own, or one that is copied to it at the end.
at::Tensor receivable(const at::Tensor& tensor, GroupWork::Parts& parts);

// True if the tensors, which have equal sizes, follow each other in memory: then they are one.
bool follow_each_other(const Tensors& tensors);
bool have_equal_sizes(const Tensors& tensors);

}  // namespace dtrain::torch_distributed
