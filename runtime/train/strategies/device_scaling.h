// The scaling of gradients on a device: nothing waits for it.
#pragma once

#include "strategies/gradient_scaling.h"

namespace dtrain::train {

class DeviceScaling final : public GradientScaling {
 public:
  DeviceScaling(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder)
      : parameters_(parameters), communicator_(communicator), recorder_(recorder) {}

  void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) override;
  void set_local_norm() override { local_norm_ = true; }
  Scaled prepare(const Update& update) override;

 private:
  at::Tensor sum_of_squares();  // of all ranks' ranges, without the scale: one float64

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  bool others_have_parts_ = false;
  std::vector<FlatRange> own_;
};

}  // namespace dtrain::train
