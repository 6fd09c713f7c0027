#include "strategies/compressed.h"

#include "exchange/compression_setup.h"

namespace dtrain::train {

namespace {

constexpr int kComparedSteps = 3;

}  // namespace

Compressed::Compressed(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                       profile::Recorder& recorder, WindowScale& scale, const comm::Compression& compression,
                       std::uint64_t seed, int settled_steps)
    : parameters_(parameters),
      replicated_(parameters, optimizer, communicator, recorder, scale),
      scale_(scale),
      bases_(gradient_bases(parameters)),
      compressor_(compression_options(comm::codec_maker(compression), seed, kComparedSteps, settled_steps),
                  gradient_tensors(parameters, bases_), communicator),
      report_("gradient compression", "optimizations.gradient_compression") {}

std::string_view Compressed::operation() const {
  return operation_of(compressor_);
}

void Compressed::set_plan(const comm::FusionPlan& plan) {
  replicated_.set_plan(plan);
  report_.forget();  // other buckets hide more or less behind backward
  plan_ = &plan;
}

void Compressed::visit(StateVisitor& visitor) {
  visit_compressor(visitor, compressor_);
}

comm::Work Compressed::launch(std::size_t index) {
  if (works_.empty()) window_scale_ = scale_.full() * scale_.correction();
  works_.push_back(compressor_.exchange(gradient_bucket(parameters_, *plan_, index, bases_), window_scale_));
  return works_.back();
}

std::optional<at::Tensor> Compressed::update(const Update& update) {
  // A gradient that no rank used is not applied, but what the error feedback held of it has been sent.
  for (std::size_t i = 0; i < update.used.size(); ++i) {
    if (!update.used[i]) compressor_.not_applied(i);
  }
  Nanoseconds exposed{0};
  for (const comm::Work& work : works_) exposed += work.timing().exposed;
  works_.clear();
  report_.add(compressor_.compressing(), exposed);
  compressor_.end_step();
  Update corrected = update;
  corrected.correction = 1;  // has been applied
  return replicated_.update(corrected);
}

}  // namespace dtrain::train
