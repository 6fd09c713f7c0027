#include "graph/device_graph.h"

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/module_file.h"
#include "graph/module_abi.h"

namespace dtrain::train {

std::unique_ptr<DeviceGraph> make_device_graph() {
  auto* const factory = reinterpret_cast<DeviceGraphFactory*>(open_module<ConfigError>(
      {.name = "dtrain_cuda_graph",
       .needs = {"libtorch_cuda.so"},
       .factory = kDeviceGraphFactory,
       .what = "the part of dtrain that captures CUDA graphs",
       .remedy_needs = "get it with: dtrain-get-libtorch --flavour full",
       .remedy_module = "build dtrain where the CUDA runtime's headers are (scripts/setup.sh fetches them)"}));
  std::unique_ptr<DeviceGraph> made;
  if (const int theirs = factory(kDeviceGraphAbi, made)) {
    throw ConfigError("the part of dtrain that captures CUDA graphs is of another build: it speaks version " +
                          std::to_string(theirs) + " of the interface, this dtrain version " +
                          std::to_string(kDeviceGraphAbi),
                      "install the two together");
  }
  return made;
}

}  // namespace dtrain::train
