#include "adversaries.h"

#include "report.h"

namespace dtrain::test::fake_gpu {

void Adversaries::heal() {
  *this = {};
}

void Adversaries::launched(c10::DeviceIndex device) {
  if (operations_left_ > 0 && --operations_left_ == 0) lost_.insert(device);
}

void Adversaries::check(c10::DeviceIndex device) const {
  if (lost_.count(device) > 0) throw_cuda_error(719, "unspecified launch failure");  // cudaErrorLaunchFailure
}

}  // namespace dtrain::test::fake_gpu
