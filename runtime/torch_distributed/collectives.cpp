// The collectives that the group's communicator carries out.
#include <algorithm>

#include "call.h"
#include "dtrain/torch_distributed/backend.h"

namespace dtrain::torch_distributed {
namespace {

using c10d::OpType;

void check_lists(const Call& call, std::size_t lists, int size, const std::vector<Tensors>& by_rank) {
  TORCH_CHECK(!call.inputs.empty() && lists == by_rank.size(), call.title,
              ": the lists of inputs and outputs must have the same length, and not be empty");
  for (const Tensors& tensors : by_rank) {
    TORCH_CHECK(tensors.size() == static_cast<std::size_t>(size), call.title, ": a list has ", tensors.size(),
                " tensors, and the group ", size, " ranks");
  }
}

Tensors flattened(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void check_same(const Call& call, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.scalar_type() == other.scalar_type(), call.title, ": the tensors have different types, ",
              one.scalar_type(), " and ", other.scalar_type());
}

// Of several tensors gloo would reduce one with the other.
void check_one(const Tensors& tensors, const char* title) {
  TORCH_CHECK(tensors.size() == 1, title, ": it takes one tensor of each rank, not ", tensors.size(),
              "; several go with all_reduce_coalesced(), or one by one");
}

// NCCL defines the average of integers, and libraries use it: the sum divided by the number of ranks, without the rest.
bool is_average_of_integers(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::AVG && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

}  // namespace

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const int size = group_->size();
  check_one(tensors, "dtrain:broadcast");
  TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size,
              "dtrain:broadcast: invalid root rank: ", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  Call call = call_of(OpType::BROADCAST, "dtrain:broadcast", tensors, tensors, options, *options_);
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor memory = receivable(tensor, parts);
      if (rank_ == root && !memory.is_same(tensor)) memory.copy_(tensor);
      parts.kept.push_back(memory);
      const Elements elements = elements_of(memory);
      parts.works.push_back(communicator.broadcast(memory.data_ptr(), elements.count, elements.type, root));
    }
  }));
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(tensors, "dtrain:all_reduce");
  if (tensors.front().is_sparse()) return allreduce_sparse(tensors, options);
  return reduce_all(call_of(OpType::ALLREDUCE, "dtrain:all_reduce", tensors, tensors, options, *options_),
                    options.reduceOp);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return reduce_all(call_of(OpType::ALLREDUCE_COALESCED, "dtrain:all_reduce", tensors, tensors, options, *options_),
                    options.reduceOp);
}

Backend::WorkPtr Backend::reduce_all(Call call, const c10d::ReduceOp& op) {
  TORCH_CHECK(!call.inputs.empty(), call.title, ": there is no tensor");
  std::vector<Reduction> reductions;
  Tensors averages;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const bool divides = is_average_of_integers(call.inputs[i], op);
    reductions.push_back(reduction_of(call.inputs[i], divides ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op, call.title));
    if (divides) averages.push_back(call.outputs[i]);
  }
  const Tensors outputs = call.outputs;
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    if (!averages.empty()) {
      parts.after = [averages, size = size_] {
        for (const at::Tensor& sum : averages) sum.div_(size, "trunc");
      };
    }
    for (std::size_t i = 0; i < reductions.size(); ++i) {
      const auto& [data, type, reduction] = reductions[i];
      const at::Tensor result = result_for(outputs[i], data, *group_, parts);
      parts.kept.push_back(data);
      parts.works.push_back(communicator.all_reduce(data.data_ptr(), result.data_ptr(),
                                                    static_cast<std::size_t>(data.numel()), type, reduction));
    }
  }));
}

// The ranks exchange how many values each has, then the values, which every rank adds in rank order.
Backend::WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  constexpr const char* kTitle = "dtrain:sparse_all_reduce";
  TORCH_CHECK(tensors.size() == 1, kTitle, ": it takes one tensor");
  TORCH_CHECK(options.reduceOp.op_ == c10d::ReduceOp::SUM, kTitle, ": only SUM is supported for sparse tensors");
  const at::Tensor own = tensors[0].coalesce();
  TORCH_CHECK(own.device().is_cpu(), kTitle, ": the tensor is on ", own.device());
  const int size = group_->size();
  const auto counts = at::empty({size}, at::kLong);
  auto own_count = at::full({1}, own._nnz(), at::kLong);
  auto counts_of_all = counts;
  _allgather_base(counts_of_all, own_count, {})->wait();

  const std::int64_t most = counts.max().item<std::int64_t>();
  const at::Tensor indices = own.indices(), values = own.values();
  std::vector<std::int64_t> row = values.sizes().vec();
  row[0] = most;
  const at::Tensor padded_indices = at::zeros({indices.size(0), most}, indices.options());
  const at::Tensor padded_values = at::zeros(row, values.options());
  padded_indices.narrow(1, 0, own._nnz()).copy_(indices);
  padded_values.narrow(0, 0, own._nnz()).copy_(values);
  row.insert(row.begin(), size);
  const at::Tensor all_indices = group_->allocate({size, indices.size(0), most}, indices.options());
  const at::Tensor all_values = group_->allocate(row, values.options());

  Call call = call_of(OpType::_ALLREDUCE_SPARSE, kTitle, {padded_indices, padded_values}, tensors, options, *options_);
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    for (const auto& [from, to] : {std::pair(padded_indices, all_indices), std::pair(padded_values, all_values)}) {
      const Elements elements = elements_of(from);
      parts.works.push_back(communicator.all_gather(from.data_ptr(), to.data_ptr(), elements.count, elements.type));
      parts.kept.insert(parts.kept.end(), {from, to});
    }
    parts.after = [counts, all_indices, all_values, target = tensors[0]] {
      at::Tensor sum;
      for (std::int64_t rank = 0; rank < counts.size(0); ++rank) {
        const std::int64_t count = counts[rank].item<std::int64_t>();
        const at::Tensor one = at::sparse_coo_tensor(all_indices[rank].narrow(1, 0, count),
                                                     all_values[rank].narrow(0, 0, count), target.sizes());
        sum = sum.defined() ? sum + one : one.clone();
      }
      target.copy_(sum.coalesce());
    };
  }));
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  TORCH_CHECK(tensors.size() == 1, "dtrain:reduce: it takes one tensor");
  TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_,
              "dtrain:reduce: invalid root rank: ", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  Call call = call_of(OpType::REDUCE, "dtrain:reduce", tensors, tensors, options, *options_);
  const Reduction reduction = reduction_of(tensors[0], options.reduceOp, call.title);
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const at::Tensor& data = reduction.data;
    void* const result = rank_ == root ? result_for(tensors[0], data, *group_, parts).data_ptr() : nullptr;
    parts.kept.push_back(data);
    parts.works.push_back(communicator.reduce(data.data_ptr(), result, static_cast<std::size_t>(data.numel()),
                                              reduction.type, root, reduction.options));
  }));
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  Call call = call_of(OpType::ALLGATHER, "dtrain:all_gather", inputs, flattened(outputs), options, *options_);
  return gather_lists(std::move(call), outputs);
}

// PyTorch gives one list for each rank here, with a tensor for each input.
Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  Call call = call_of(OpType::ALLGATHER_COALESCED, "dtrain:all_gather", inputs, flattened(outputs), options, *options_);
  std::vector<Tensors> by_input(inputs.size());
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK(of_rank.size() == inputs.size(), call.title, ": each rank has ", inputs.size(), " tensors");
    for (std::size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank[i]);
  }
  return gather_lists(std::move(call), by_input);
}

Backend::WorkPtr Backend::gather_lists(Call call, const std::vector<Tensors>& outputs) {
  const Tensors inputs = call.inputs;
  check_lists(call, inputs.size(), size_, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (const at::Tensor& output : outputs[i]) check_same(call, inputs[i], output);
    TORCH_CHECK(outputs[i][static_cast<std::size_t>(rank_)].numel() == inputs[i].numel(), call.title,
                ": the input has ", inputs[i].numel(), " elements, and its place among the outputs ",
                outputs[i][static_cast<std::size_t>(rank_)].numel());
  }
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor input = sendable(inputs[i], parts);
      const Elements elements = elements_of(input);
      if (!have_equal_sizes(outputs[i])) {
        for (int rank = 0; rank < size_; ++rank) {
          const at::Tensor memory = receivable(outputs[i][static_cast<std::size_t>(rank)], parts);
          if (rank == rank_) memory.copy_(input.view(memory.sizes()));
          parts.kept.push_back(memory);
          const Elements part = elements_of(memory);
          parts.works.push_back(communicator.broadcast(memory.data_ptr(), part.count, part.type, rank));
        }
        continue;
      }
      at::Tensor all = outputs[i].front();
      if (!follow_each_other(outputs[i])) {
        all = group_->allocate({size_, input.numel()}, input.options());
        for (int rank = 0; rank < size_; ++rank) {
          parts.copies.emplace_back(outputs[i][static_cast<std::size_t>(rank)], all[rank]);
        }
      }
      parts.works.push_back(communicator.all_gather(input.data_ptr(), all.data_ptr(), elements.count, elements.type));
    }
  }));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  return gather_all(call_of(OpType::_ALLGATHER_BASE, "dtrain:_all_gather_base", {input}, {output}, options, *options_));
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  return gather_all(call_of(OpType::COALESCED, "dtrain:_all_gather_base", inputs, outputs, options, *options_));
}

Backend::WorkPtr Backend::gather_all(Call call) {
  const Tensors inputs = call.inputs, outputs = call.outputs;
  TORCH_CHECK(!inputs.empty() && inputs.size() == outputs.size(), call.title,
              ": the lists of inputs and outputs must have the same length, and not be empty");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_same(call, inputs[i], outputs[i]);
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * size_, call.title, ": the output has ", outputs[i].numel(),
                " elements, and not ", size_, " times the input's ", inputs[i].numel());
  }
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor input = sendable(inputs[i], parts);
      const at::Tensor output = receivable(outputs[i], parts);
      parts.kept.push_back(output);
      const Elements elements = elements_of(input);
      parts.works.push_back(
          communicator.all_gather(input.data_ptr(), output.data_ptr(), elements.count, elements.type));
    }
  }));
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  Call call = call_of(OpType::REDUCE_SCATTER, "dtrain:reduce_scatter", flattened(inputs), outputs, options, *options_);
  check_lists(call, outputs.size(), size_, inputs);
  if (outputs.size() == 1 && !have_equal_sizes(inputs[0])) {
    return reduce_each(std::move(call), inputs[0], options.reduceOp);
  }
  Tensors wholes;
  for (const Tensors& parts : inputs) {
    TORCH_CHECK(have_equal_sizes(parts), call.title, ": several inputs must have parts of equal sizes");
    const at::Tensor whole = group_->allocate({size_, parts.front().numel()}, parts.front().options());
    for (int rank = 0; rank < size_; ++rank) {
      const at::Tensor& part = parts[static_cast<std::size_t>(rank)];
      whole[rank].view(part.sizes()).copy_(part);
    }
    wholes.push_back(whole);
  }
  call.inputs = std::move(wholes);
  return reduce_parts(std::move(call), options.reduceOp);
}

// Parts of different sizes: each is reduced to the rank that gets it.
Backend::WorkPtr Backend::reduce_each(Call call, const Tensors& of_rank, const c10d::ReduceOp& op) {
  std::vector<Reduction> reductions;
  for (const at::Tensor& part : of_rank) reductions.push_back(reduction_of(part, op, call.title));
  const at::Tensor output = call.outputs.front();
  TORCH_CHECK(output.numel() == of_rank[static_cast<std::size_t>(rank_)].numel(), call.title, ": the output has ",
              output.numel(), " elements, and the part of this rank ",
              of_rank[static_cast<std::size_t>(rank_)].numel());
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    for (int root = 0; root < size_; ++root) {
      const auto& [data, type, reduction] = reductions[static_cast<std::size_t>(root)];
      void* const result = root == rank_ ? result_for(output, data, *group_, parts).data_ptr() : nullptr;
      parts.kept.push_back(data);
      parts.works.push_back(
          communicator.reduce(data.data_ptr(), result, static_cast<std::size_t>(data.numel()), type, root, reduction));
    }
  }));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  return reduce_parts(
      call_of(OpType::_REDUCE_SCATTER_BASE, "dtrain:_reduce_scatter_base", {input}, {output}, options, *options_),
      options.reduceOp);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  return reduce_parts(call_of(OpType::COALESCED, "dtrain:_reduce_scatter_base", inputs, outputs, options, *options_),
                      options.reduceOp);
}

Backend::WorkPtr Backend::reduce_parts(Call call, const c10d::ReduceOp& op) {
  const Tensors outputs = call.outputs;
  TORCH_CHECK(!outputs.empty() && call.inputs.size() == outputs.size(), call.title,
              ": the lists of inputs and outputs must have the same length, and not be empty");
  std::vector<Reduction> reductions;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_same(call, call.inputs[i], outputs[i]);
    TORCH_CHECK(call.inputs[i].numel() == outputs[i].numel() * size_, call.title, ": the input has ",
                call.inputs[i].numel(), " elements, and not ", size_, " times the output's ", outputs[i].numel());
    reductions.push_back(reduction_of(call.inputs[i], op, call.title));
  }
  return issued(run(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Communicator& communicator) {
    const comm::Group together(communicator);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto& [data, type, reduction] = reductions[i];
      const at::Tensor result = result_for(outputs[i], data, *group_, parts);
      parts.kept.insert(parts.kept.end(), {data, result});
      parts.works.push_back(communicator.reduce_scatter(data.data_ptr(), result.data_ptr(),
                                                        static_cast<std::size_t>(result.numel()), type, reduction));
    }
  }));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  Call call = call_of(OpType::BARRIER, "dtrain:barrier", {}, {}, options, *options_);
  return issued(run(group_, std::move(call), [](GroupWork::Parts& parts, comm::Communicator& communicator) {
    parts.works.push_back(communicator.barrier());
  }));
}

}  // namespace dtrain::torch_distributed
