// The operations that are made of messages.
#include <algorithm>

#include "call.h"
#include "dtrain/torch_distributed/backend.h"

namespace dtrain::torch_distributed {
namespace {

using c10d::OpType;

// Tags of these are their own: those of send() and recv() are not negative.
constexpr int kGatherTag = -1, kScatterTag = -2, kAllToAllTag = -3;

int root_of(std::int64_t root, int size, const char* title) {
  TORCH_CHECK(root >= 0 && root < size, title, ": invalid root rank: ", root);
  return static_cast<int>(root);
}

const at::Tensor& only(const Tensors& tensors, const char* title) {
  TORCH_CHECK(tensors.size() == 1, title, ": it takes one tensor");
  return tensors.front();
}

// Checks what gather and scatter have on their root, and nowhere else: a list with a tensor of each rank, like `own`.
Tensors list_of(const std::vector<Tensors>& lists, const at::Tensor& own, bool is_root, int size, const char* title) {
  if (!is_root) {
    TORCH_CHECK(lists.empty() || lists.front().empty(), title, ": only the root has a list of tensors");
    return {};
  }
  TORCH_CHECK(lists.size() == 1 && lists.front().size() == static_cast<std::size_t>(size), title,
              ": the root needs a list with ", size, " tensors");
  for (const at::Tensor& one : lists.front()) {
    TORCH_CHECK(one.scalar_type() == own.scalar_type() && one.sizes() == own.sizes(), title,
                ": the tensors differ in type or size");
  }
  return lists.front();
}

comm::Block block_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.nbytes()};
}

std::vector<comm::Block> memory_of(const Tensors& tensors, GroupWork::Parts& parts) {
  std::vector<comm::Block> blocks;
  for (const at::Tensor& tensor : tensors) {
    parts.kept.push_back(receivable(tensor, parts));
    blocks.push_back(block_of(parts.kept.back()));
  }
  return blocks;
}

std::vector<comm::ConstBlock> values_of(const Tensors& tensors, GroupWork::Parts& parts) {
  std::vector<comm::ConstBlock> blocks;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor values = sendable(tensor, parts);
    blocks.push_back({values.data_ptr(), values.nbytes()});
  }
  return blocks;
}

Tensors split_of(const at::Tensor& whole, const std::vector<std::int64_t>& sizes, int size) {
  if (!sizes.empty()) return whole.split_with_sizes(sizes);
  return whole.split_with_sizes(std::vector<std::int64_t>(static_cast<std::size_t>(size), whole.size(0) / size));
}

}  // namespace

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  constexpr const char* kTitle = "dtrain:gather";
  const int root = root_of(options.rootRank, size_, kTitle);
  const at::Tensor input = only(inputs, kTitle);
  const Tensors list = list_of(outputs, input, rank_ == root, size_, kTitle);
  Call call = call_of(OpType::GATHER, kTitle, inputs, list, options, *options_);
  return issued(deliver(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Mailbox& mailbox) {
    const std::vector<comm::Block> out = memory_of(list, parts);
    const at::Tensor values = sendable(input, parts);
    parts.works.push_back(comm::gather(mailbox, group_->members(), {values.data_ptr(), values.nbytes()}, out, root,
                                       group_->channel(kGatherTag)));
  }));
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  constexpr const char* kTitle = "dtrain:scatter";
  const int root = root_of(options.rootRank, size_, kTitle);
  const at::Tensor output = only(outputs, kTitle);
  const Tensors list = list_of(inputs, output, rank_ == root, size_, kTitle);
  Call call = call_of(OpType::SCATTER, kTitle, list, outputs, options, *options_);
  return issued(deliver(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Mailbox& mailbox) {
    const std::vector<comm::ConstBlock> in = values_of(list, parts);
    const std::vector<comm::Block> out = memory_of({output}, parts);
    parts.works.push_back(
        comm::scatter(mailbox, group_->members(), in, out.front(), root, group_->channel(kScatterTag)));
  }));
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  constexpr const char* kTitle = "dtrain:all_to_all";
  TORCH_CHECK(inputs.size() == static_cast<std::size_t>(size_) && outputs.size() == inputs.size(), kTitle,
              ": the lists must have ", size_, " tensors");
  return exchange(call_of(OpType::ALLTOALL, kTitle, inputs, outputs, options, *options_), outputs, inputs);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  constexpr const char* kTitle = "dtrain:all_to_all";
  c10d::checkSplitSizes(input_sizes, input, size_);
  c10d::checkSplitSizes(output_sizes, output, size_);
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), kTitle, ": the tensors have different types");
  return exchange(call_of(OpType::ALLTOALL_BASE, kTitle, {input}, {output}, options, *options_),
                  split_of(output, output_sizes, size_), split_of(input, input_sizes, size_));
}

Backend::WorkPtr Backend::exchange(Call call, const Tensors& to, const Tensors& from) {
  return issued(deliver(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Mailbox& mailbox) {
    const std::vector<comm::ConstBlock> in = values_of(from, parts);
    const std::vector<comm::Block> out = memory_of(to, parts);
    parts.works.push_back(comm::all_to_all(mailbox, group_->members(), in, out, group_->channel(kAllToAllTag)));
  }));
}

Backend::WorkPtr Backend::send(Tensors& tensors, int to, int tag) {
  constexpr const char* kTitle = "dtrain:send";
  const at::Tensor tensor = only(tensors, kTitle);
  TORCH_CHECK(to >= 0 && to < size_, kTitle, ": there is no rank ", to);
  Call call{.type = OpType::SEND, .title = kTitle, .inputs = tensors, .outputs = tensors, .timeout = options_->timeout};
  return issued(deliver(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Mailbox& mailbox) {
    const at::Tensor values = sendable(tensor, parts);
    parts.works.push_back(mailbox.send(values.data_ptr(), values.nbytes(),
                                       group_->members().at(static_cast<std::size_t>(to)), group_->channel(tag)));
  }));
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int from, int tag) {
  TORCH_CHECK(from >= 0 && from < size_, "dtrain:recv: there is no rank ", from);
  Call call{.type = OpType::RECV,
            .title = "dtrain:recv",
            .inputs = tensors,
            .outputs = tensors,
            .timeout = options_->timeout};
  return receive(std::move(call), group_->members().at(static_cast<std::size_t>(from)), tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  Call call{.type = OpType::RECVANYSOURCE,
            .title = "dtrain:recvAnySource",
            .inputs = tensors,
            .outputs = tensors,
            .timeout = options_->timeout};
  return receive(std::move(call), comm::kAnyRank, tag);
}

Backend::WorkPtr Backend::receive(Call call, int from, int tag) {
  const at::Tensor tensor = only(call.outputs, call.title);
  return issued(deliver(group_, std::move(call), [&](GroupWork::Parts& parts, comm::Mailbox& mailbox) {
    const at::Tensor memory = receivable(tensor, parts);
    parts.kept.push_back(memory);
    parts.works.push_back(mailbox.receive(memory.data_ptr(), memory.nbytes(), from, group_->channel(tag)));
  }));
}

}  // namespace dtrain::torch_distributed
