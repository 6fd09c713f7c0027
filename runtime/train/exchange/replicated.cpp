#include "exchange/replicated.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "model/precision.h"

namespace dtrain::train {

Replicated::Replicated(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                       profile::Recorder& recorder, const WindowScale& scale)
    : parameters_(parameters),
      communicator_(communicator),
      scale_(scale),
      updater_(parameters, optimizer, communicator, recorder) {
  const std::vector<FlatRange> everything = whole_groups(parameters);
  updater_.divide({&everything, 1});
}

comm::Work Replicated::launch(std::size_t index) {
  const auto& bucket = plan_->buckets[index];
  const auto& group = parameters_.groups()[bucket.group];
  return communicator_.all_reduce(
      FlatMemory::address(group.gradients, bucket.begin), static_cast<std::size_t>(bucket.end - bucket.begin),
      comm_type(group.gradient_dtype),
      {.op = comm::ReduceOp::kSum, .post_scale = scale_.full(), .bucket = static_cast<int>(index)});
}

std::optional<at::Tensor> Replicated::update(const Update& update) {
  return updater_.update(update, [](std::size_t) {});
}

std::optional<std::vector<FlatRange>> Replicated::copied_ranges() const {
  std::vector<FlatRange> ranges;
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    const auto& group = parameters_.groups()[g];
    const comm::Part part = comm::part_of(static_cast<std::size_t>(group.values.numel()), comm_type(group.dtype),
                                          communicator_.rank(), communicator_.world_size());
    ranges.push_back({g, static_cast<std::int64_t>(part.begin), static_cast<std::int64_t>(part.end)});
  }
  return ranges;
}

namespace {

std::vector<at::Tensor> gradients_of(const FlatParameters& parameters) {
  std::vector<at::Tensor> flats;
  for (const auto& group : parameters.groups()) flats.push_back(group.gradients);
  return flats;
}

}  // namespace

Compressed::Compressed(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                       profile::Recorder& recorder, WindowScale& scale, const comm::Compression& compression,
                       std::uint64_t seed, std::int64_t settled_steps)
    : replicated_(parameters, optimizer, communicator, recorder, scale),
      scale_(scale),
      flats_(gradients_of(parameters)),
      compressor_(make_bucket_compressor(parameters, flats_, communicator,
                                         for_gradients(compression, seed, settled_steps,
                                                       /*undoes_steps=*/scale.inverse_of_loss_scale().defined()))) {}

std::string_view Compressed::operation() const {
  return compressor_->operation();
}

void Compressed::set_plan(const comm::FusionPlan& plan) {
  replicated_.set_plan(plan);
  // Error feedback and factors belong to parameters, not to buckets: they stay as they are.
  compressor_->forget_times();  // with other buckets, backward hides another share of the times
  plan_ = &plan;
}

void Compressed::visit(StateVisitor& visitor) {
  compressor_->visit(visitor);
}

comm::Work Compressed::launch(std::size_t index) {
  if (!std::exchange(launched_, true)) {
    window_scale_ = scale_.full() * scale_.correction();
    inverse_of_loss_scale_ = scale_.inverse_of_loss_scale();
  }
  if (inverse_of_loss_scale_.defined()) {
    const at::NoGradGuard no_grad;
    const auto& bucket = plan_->buckets[index];
    at::Tensor values = flats_[bucket.group].narrow(0, bucket.begin, bucket.end - bucket.begin);
    values.mul_(inverse_of_loss_scale_);
  }
  return compressor_->exchange(*plan_, index, window_scale_);
}

std::optional<at::Tensor> Compressed::update(const Update& update) {
  // A gradient that no rank used is not applied, but the error feedback that it held has been sent.
  for (std::size_t i = 0; i < update.used.size(); ++i) {
    if (!update.used[i]) compressor_->not_applied(i);
  }
  launched_ = false;
  compressed_last_ = compressor_->compressing();
  compressor_->end_step();
  Update corrected = update;
  corrected.correction = 1;  // the exchange has applied it
  corrected.unscaled = true;
  std::optional<at::Tensor> norm = replicated_.update(corrected);
  if (update.scaler) compressor_->undo_step_where(update.scaler->found_inf());
  return norm;
}

}  // namespace dtrain::train
