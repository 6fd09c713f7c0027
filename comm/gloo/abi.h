// The interface between the library comm and the module comm_gloo. Raise the version with every change to GlooModule,
// Communicator or the types of their members: a module of another build is then refused instead of called.
#pragma once

#include <memory>

#include "dtrain/comm/gloo.h"

namespace dtrain::comm {

inline constexpr int kGlooModuleAbi = 2;
inline constexpr const char* kGlooModule = "dtrain_comm_gloo";
inline constexpr const char* kGlooModuleFactory = "dtrain_comm_gloo_module";

// The module's functions; they last as long as the process. See dtrain/comm/gloo.h.
class GlooModule {
 public:
  virtual ~GlooModule() = default;
  virtual std::unique_ptr<RendezvousStore> open_store(const RendezvousStore::Options& options) const = 0;
};

// Sets `module` and returns 0; or returns the version the module was built for.
using GlooModuleFactory = int(int abi, const GlooModule*& module);

}  // namespace dtrain::comm
