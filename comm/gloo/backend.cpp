#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/comm/gloo.h"
#include "gloo/abi.h"

namespace dtrain::comm {
namespace {

const GlooModule& gloo_module() {
  auto* const factory = reinterpret_cast<GlooModuleFactory*>(
      open_module<CommError>({.name = kGlooModule,
                              .needs = {},
                              .factory = kGlooModuleFactory,
                              .what = "the store of MASTER_ADDR",
                              .remedy_needs = {},
                              .remedy_module = "it is built with dtrain's programs that train (DTRAIN_TORCH=ON), and "
                                               "needs the libtorch that those find"}));
  const GlooModule* module = nullptr;
  if (const int theirs = factory(kGlooModuleAbi, module)) {
    throw CommError("the store of MASTER_ADDR is of another build of dtrain: it speaks version " +
                        std::to_string(theirs) + " of the interface, this dtrain version " +
                        std::to_string(kGlooModuleAbi),
                    "install the two together");
  }
  return *module;
}

}  // namespace

std::unique_ptr<RendezvousStore> RendezvousStore::open(const Options& options) {
  return gloo_module().open_store(options);
}

}  // namespace dtrain::comm
