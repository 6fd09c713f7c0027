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
  void unscale(LossScaler& scaler, const Update& update);
  // Multiplies the gradients, then limits each element.
  void limit(double factor, double max_value);
  // Over the ranks, where others have a part: then true.
  bool add_up(const at::Tensor& values);
  // Of all ranks' ranges: one float64. Brings found_inf of `scaler`, if there is one, to all ranks.
  at::Tensor sum_of_squares(const LossScaler* scaler);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  bool others_have_parts_ = false;
  std::vector<FlatRange> own_;
};

}  // namespace dtrain::train
