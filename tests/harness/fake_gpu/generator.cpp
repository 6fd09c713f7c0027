#include "generator.h"

#include <array>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>

#include "streams.h"

namespace dtrain::test::fake_gpu {

namespace {

struct DeviceGenerator final : c10::GeneratorImpl {
  DeviceGenerator(c10::DeviceIndex device, c10::intrusive_ptr<at::CPUGeneratorImpl> cpu)
      : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        cpu(std::move(cpu)) {}

  void set_current_seed(std::uint64_t seed) override {
    cpu->set_current_seed(seed);
    offset = 0;
  }
  void set_offset(std::uint64_t value) override { offset = value; }
  std::uint64_t get_offset() const override { return offset; }
  std::uint64_t current_seed() const override { return cpu->current_seed(); }
  std::uint64_t seed() override { return cpu->seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu->get_state(); }
  DeviceGenerator* clone_impl() const override {
    auto* const copy = new DeviceGenerator(device().index(), c10::make_intrusive<at::CPUGeneratorImpl>());
    copy->set_state(*get_state());
    return copy;
  }

  const c10::intrusive_ptr<at::CPUGeneratorImpl> cpu;
  std::uint64_t offset = 0;  // kept, not used
};

c10::GeneratorImpl& default_cpu_generator() {
  return *at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl();
}

c10::intrusive_ptr<c10::TensorImpl> exchange_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) {
  const std::scoped_lock lock(generator.mutex_);
  auto before = generator.get_state();
  generator.set_state(state);
  return before;
}

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<DeviceGenerator>(device, c10::make_intrusive<at::CPUGeneratorImpl>());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::array<at::Generator, kMaxDevices>& all = *new std::array<at::Generator, kMaxDevices>([] {
    std::array<at::Generator, kMaxDevices> made;
    for (int d = 0; d < kMaxDevices; ++d) made[d] = new_generator(static_cast<c10::DeviceIndex>(d));
    return made;
  }());
  return all.at(device);
}

at::Generator for_cpu_kernel(const at::Generator& generator) {
  const auto* const own = dynamic_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  return own == nullptr ? generator : at::Generator(own->cpu);
}

AsDefaultGenerator::AsDefaultGenerator(c10::DeviceIndex device)
    : device_(device),
      before_(
          exchange_state(default_cpu_generator(), *default_generator(device).unsafeGetGeneratorImpl()->get_state())) {}

AsDefaultGenerator::~AsDefaultGenerator() {
  default_generator(device_).unsafeGetGeneratorImpl()->set_state(*exchange_state(default_cpu_generator(), *before_));
}

}  // namespace dtrain::test::fake_gpu
