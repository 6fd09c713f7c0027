// The scaling of gradients on a CPU.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/gradient_norm.h"
#include "strategies/gradient_scaling.h"

namespace dtrain::train {

class HostScaling final : public GradientScaling {
 public:
  HostScaling(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
              GradientLimits limits)
      : parameters_(parameters), communicator_(communicator), recorder_(recorder), limits_(std::move(limits)) {}

  void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) override;
  void set_local_norm() override { local_norm_ = true; }
  Scaled prepare(const Update& update) override;

 private:
  // Returns the norm of each set; 0 if its norm is not limited.
  std::vector<double> gradient_norms(const GradientLimits::Limit& common);
  void multiply(const FlatRange& range, double factor);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  const GradientLimits limits_;
  std::vector<RangeOfSet> own_;
  // The branches of all ranks, in the order of set, group and line; their sets; and 1 for those of this rank.
  std::vector<NormBranch> branches_;
  std::vector<std::size_t> sets_;
  std::vector<std::uint8_t> mine_;
};

}  // namespace dtrain::train
