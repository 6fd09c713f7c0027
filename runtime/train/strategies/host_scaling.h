// The scaling of gradients on a CPU.
#pragma once

#include <cstdint>

#include "model/gradient_norm.h"
#include "strategies/gradient_scaling.h"

namespace dtrain::train {

class HostScaling final : public GradientScaling {
 public:
  HostScaling(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder)
      : parameters_(parameters), communicator_(communicator), recorder_(recorder) {}

  void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) override;
  void set_local_norm() override { local_norm_ = true; }
  Scaled prepare(const Update& update) override;

 private:
  double gradient_norm();
  void multiply(double factor);
  void limit(double max_value);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  std::vector<FlatRange> own_;
  // Of all ranks, in the order of group and line; and which of them are this rank's.
  std::vector<NormBranch> branches_;
  std::vector<std::uint8_t> mine_;
};

}  // namespace dtrain::train
