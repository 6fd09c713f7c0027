#include "exchange/sharded.h"

#include <utility>

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

namespace {

std::size_t elements_of(const comm::FusionPlan::Bucket& bucket) {
  return static_cast<std::size_t>(bucket.end - bucket.begin);
}

}  // namespace

std::vector<std::vector<FlatRange>> parts_of_all(const FlatParameters& parameters, const comm::FusionPlan& plan,
                                                 int world_size) {
  std::vector<std::vector<FlatRange>> parts(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    for (const auto& bucket : plan.buckets) {
      const comm::DataType type = comm_type(parameters.groups()[bucket.group].gradient_dtype);
      const comm::Part part = comm::part_of(elements_of(bucket), type, rank, world_size);
      parts[static_cast<std::size_t>(rank)].push_back({bucket.group,
                                                       bucket.begin + static_cast<std::int64_t>(part.begin),
                                                       bucket.begin + static_cast<std::int64_t>(part.end)});
    }
  }
  return parts;
}

Sharded::Sharded(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                 profile::Recorder& recorder, const WindowScale& scale)
    : parameters_(parameters),
      optimizer_(optimizer),
      communicator_(communicator),
      recorder_(recorder),
      log_(communicator, recorder),
      scale_(scale),
      updater_(parameters, optimizer, communicator, recorder) {
  const at::NoGradGuard no_grad;
  move_to_common_memory();
  if (!one_copy_) move_values_to_buffers();
}

void Sharded::move_to_common_memory() {
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    std::vector<at::Tensor> moved;
    // All ranks hold the same bits, so it does not matter which rank writes them.
    const auto move = [&](const at::Tensor& from) {
      auto to = parameters_.memory().common(from.numel(), from.scalar_type());
      if (!to) return false;
      if (communicator_.rank() == 0) to->tensor.copy_(from);
      moved.push_back(std::move(to->tensor));
      memory_.push_back(std::move(to->buffer));
      return true;
    };
    if (!move(parameters_.groups()[g].values)) return;  // returns on every rank, for the first group
    for (const at::Tensor& state : optimizer_.state(g)) move(state);
    const bool has_shadow = parameters_.groups()[g].shadow.defined();
    if (has_shadow) move(parameters_.groups()[g].shadow);
    communicator_.barrier().wait();
    if (has_shadow) {
      parameters_.place_shadow(g, moved.back());
      moved.pop_back();
    }
    parameters_.place_values(g, moved.front());
    std::copy(moved.begin() + 1, moved.end(), optimizer_.state(g).begin());
  }
  one_copy_ = true;
}

void Sharded::move_values_to_buffers() {
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    const auto& group = parameters_.groups()[g];
    FlatMemory::Block block = parameters_.memory().exchanged(group.values.numel(), group.dtype);
    memory_.push_back(std::move(block.buffer));
    parameters_.place_values(g, block.tensor.copy_(group.values));
  }
}

Sharded::~Sharded() {
  const at::NoGradGuard no_grad;
  try {
    for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
      const auto& group = parameters_.groups()[g];
      parameters_.place_values(g, parameters_.memory().own_copy(group.values));
      if (group.shadow.defined()) parameters_.place_shadow(g, parameters_.memory().own_copy(group.shadow));
    }
  } catch (const std::exception&) {
    // The device has failed or is full. Training has failed with it, and no code reads the parameters any more.
  }
}

void Sharded::set_plan(const comm::FusionPlan& plan) {
  if (!one_copy_ && state_is_divided_) gather_state();
  plan_ = &plan;
  updater_.divide(parts_of_all(parameters_, plan, communicator_.world_size()));
  if (!one_copy_) keep_own_state();
}

void Sharded::gather_state() {
  optimizer_.keep_all();
  std::vector<comm::Work> works;
  for (std::size_t b = 0; b < plan_->buckets.size(); ++b) {
    const auto& bucket = plan_->buckets[b];
    const comm::DataType type = comm_type(parameters_.groups()[bucket.group].dtype);
    for (const at::Tensor& state : optimizer_.state(bucket.group)) {
      works.push_back(communicator_.gather_parts(FlatMemory::address(state, bucket.begin), elements_of(bucket), type,
                                                 static_cast<int>(b)));
    }
  }
  for (comm::Work& work : works) work.wait();
  state_is_divided_ = false;
}

std::vector<at::Tensor> Sharded::gather_state(std::size_t index) {
  if (one_copy_ || !state_is_divided_) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> whole;
  for (const auto& group : parameters_.groups()) {
    whole.push_back(parameters_.memory().own(group.values.numel(), group.dtype));
  }
  for (const FlatRange& range : updater_.own()) {
    whole[range.group].narrow(0, range.begin, range.size()).copy_(optimizer_.state_slice(range, index));
  }
  std::vector<comm::Work> works;
  for (std::size_t b = 0; b < plan_->buckets.size(); ++b) {
    const auto& bucket = plan_->buckets[b];
    works.push_back(communicator_.gather_parts(FlatMemory::address(whole[bucket.group], bucket.begin),
                                               elements_of(bucket), comm_type(parameters_.groups()[bucket.group].dtype),
                                               static_cast<int>(b)));
  }
  for (comm::Work& work : works) work.wait();
  return whole;
}

void Sharded::keep_own_state() {
  const at::NoGradGuard no_grad;
  state_is_divided_ = true;
  // A page of host memory that is not written takes no memory; a device has no such pages.
  if (!parameters_.memory().on_host()) return optimizer_.keep_parts({updater_.own().begin(), updater_.own().end()});
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    for (at::Tensor& state : optimizer_.state(g)) {
      const at::Tensor own = parameters_.memory().own(state.numel(), state.scalar_type());
      for (const FlatRange& range : updater_.own()) {
        if (range.group != g) continue;
        own.narrow(0, range.begin, range.size()).copy_(state.narrow(0, range.begin, range.size()));
      }
      state = own;
    }
  }
}

comm::Work Sharded::launch(std::size_t index) {
  const auto& bucket = plan_->buckets[index];
  const auto& group = parameters_.groups()[bucket.group];
  return communicator_.reduce_parts(
      FlatMemory::address(group.gradients, bucket.begin), elements_of(bucket), comm_type(group.gradient_dtype),
      {.op = comm::ReduceOp::kSum, .post_scale = scale_.full(), .bucket = static_cast<int>(index)});
}

std::vector<FlatRange> Sharded::spare_gradients(std::size_t index) const {
  const auto& bucket = plan_->buckets[index];
  const FlatRange& own = updater_.own()[index];  // this rank has one range for each bucket, in order
  return {{bucket.group, bucket.begin, own.begin}, {bucket.group, own.end, bucket.end}};
}

std::optional<at::Tensor> Sharded::update(const Update& update) {
  std::vector<std::pair<std::size_t, comm::Work>> gathers;  // by bucket
  const auto norm =
      updater_.update(update, [&](std::size_t index) {  // this rank has one range for each bucket, in order
        const auto& bucket = plan_->buckets[index];
        if (one_copy_ || (!update.in_step.empty() && !update.in_step[bucket.items.front()])) return;
        const PhaseScope phase(recorder_, Phase::kAllreduceWait, profile::PhaseOf::kHost);
        const auto& group = parameters_.groups()[bucket.group];
        gathers.emplace_back(
            index, communicator_.gather_parts(FlatMemory::address(group.values, bucket.begin), elements_of(bucket),
                                              comm_type(group.dtype), static_cast<int>(index)));
      });
  // Only this rank's parts of the gradients are sums. The rest must not be taken for gradients.
  for (auto& parameter : parameters_.parameters()) parameter.tensor.mutable_grad() = at::Tensor();
  const PhaseScope phase(recorder_, Phase::kAllreduceWait);
  if (one_copy_) {
    comm::Work all_updated = communicator_.barrier();
    all_updated.wait();
    log_.record("barrier", -1, all_updated);
  }
  for (auto& [bucket, gather] : gathers) {
    gather.join();
    log_.record("all_gather", static_cast<int>(bucket), gather);
  }
  // The update has written the shadow in this rank's parts alone.
  if (!one_copy_) parameters_.refresh();
  return norm;
}

void Sharded::begin_visit() {
  if (!one_copy_ && state_is_divided_) gather_state();
}

void Sharded::end_visit(bool replaced) {
  if (!one_copy_) {
    keep_own_state();
  } else if (replaced) {
    communicator_.barrier().wait();  // a rank that goes on reads values that another may still be replacing
  }
}

void Sharded::complete_state() {
  if (!one_copy_ && state_is_divided_) gather_state();
  const at::NoGradGuard no_grad;
  if (!parameters_.memory().on_host()) return;  // a device's state is in memory of its own
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    for (at::Tensor& state : optimizer_.state(g)) state = parameters_.memory().own_copy(state);
  }
  // No rank writes the common state before all have copied it: the next update comes after the next exchange.
}

}  // namespace dtrain::train
