// Where do random numbers on a device come from?
//
// Each device has a generator of its own, as with CUDA, which draws the numbers of a CPU generator: after
// at::manual_seed both draw the same.
#pragma once

#include <ATen/core/Generator.h>

namespace dtrain::test::fake_gpu {

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
// What a CPU kernel can draw from; other generators stay as they are.
at::Generator for_cpu_kernel(const at::Generator& generator);

// While it lives, CPU kernels that ask for the default generator draw from the device's: for operators that take none.
// Other threads must not draw from the CPU's meanwhile.
class AsDefaultGenerator {
 public:
  explicit AsDefaultGenerator(c10::DeviceIndex device);
  ~AsDefaultGenerator();
  AsDefaultGenerator(const AsDefaultGenerator&) = delete;
  AsDefaultGenerator& operator=(const AsDefaultGenerator&) = delete;

 private:
  c10::DeviceIndex device_;
  c10::intrusive_ptr<c10::TensorImpl> before_;
};

}  // namespace dtrain::test::fake_gpu
