// The scaling of gradients on a device, without waiting for the device.
#pragma once

#include <utility>
#include <vector>

#include "model/gradient_norm.h"
#include "strategies/gradient_scaling.h"

namespace dtrain::train {

class DeviceScaling final : public GradientScaling {
 public:
  DeviceScaling(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
                GradientLimits limits)
      : parameters_(parameters), communicator_(communicator), recorder_(recorder), limits_(std::move(limits)) {}

  void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) override;
  void set_local_norm() override { local_norm_ = true; }
  Scaled prepare(const Update& update) override;

 private:
  void unscale(LossScaler& scaler, const Update& update);
  at::Tensor gradients(const FlatRange& range) const;
  // Multiplies the gradients, then limits each element of the sets with such a limit. Returns true if there are any.
  bool limit(double factor, const GradientLimits::Limit& common);
  // Sums over the ranks, if others have a part: then returns true.
  bool add_up(const at::Tensor& values);
  // Sums over all ranks' ranges: one float64 for each set. Brings found_inf of `scaler`, if not null, to all ranks.
  at::Tensor sums_of_squares(const LossScaler* scaler);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  bool others_have_parts_ = false;
  const GradientLimits limits_;
  std::vector<RangeOfSet> own_;
};

}  // namespace dtrain::train
