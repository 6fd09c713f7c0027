// The replicated strategy with compressed gradients: a GradientCompressor stands where all_reduce stood, and every rank
// updates all parameters with what it makes of them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "dtrain/comm/compression.h"
#include "dtrain/config/optimizations.h"
#include "exchange/compression_report.h"
#include "strategies/replicated.h"

namespace dtrain::train {

class Compressed final : public GradientStrategy {
 public:
  // Collective. `scale`: as for Replicated, which does the update. `correction`: what Update will say of the window
  // under way, asked for when its first bucket is launched: what the codecs hold back must be in the units of what is
  // applied, or it would count more than once where data ends. `settled_steps`: after so many the plan is final.
  Compressed(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
             profile::Recorder& recorder, double scale, std::function<double()> correction,
             const config::Compression& compression, std::uint64_t seed, int settled_steps);

  std::string_view operation() const override;
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;
  std::optional<double> update(const Update& update) override;

  const comm::GradientCompressor& compressor() const { return compressor_; }
  const CompressionReport& report() const { return report_; }

 private:
  FlatParameters& parameters_;
  Replicated replicated_;
  const double scale_;
  const std::function<double()> correction_;
  double window_scale_ = 1;  // of the window under way, once a bucket is launched
  const std::vector<std::byte*> bases_;
  comm::GradientCompressor compressor_;
  CompressionReport report_;
  const comm::FusionPlan* plan_ = nullptr;
  std::vector<comm::Work> works_;  // of this step
};

}  // namespace dtrain::train
