#include "matmul/matmul_path.h"

#include <dlfcn.h>

#include <atomic>
#include <optional>
#include <utility>

#include "dtrain/host/cpu.h"

namespace {

using Answer = int();
constexpr const char* kQuestion = "mkl_serv_intel_cpu_true";

std::atomic<bool> says_yes{false};
std::atomic<bool> was_asked{false};

// MKL's own function; null where libtorch was built without MKL.
Answer* mkls_own() {
  static auto* const own = reinterpret_cast<Answer*>(::dlsym(RTLD_NEXT, kQuestion));
  return own;
}

}  // namespace

// MKL calls it by this name, from any thread.
extern "C" __attribute__((visibility("default"))) int mkl_serv_intel_cpu_true() {
  was_asked = true;
  if (says_yes) return 1;
  Answer* const own = mkls_own();
  return own ? own() : 0;
}

namespace dtrain::train {
namespace {

MatmulChoice stays_default(std::string reason, std::string warning = {}) {
  return {profile::MatmulPath::kDefault, std::move(reason), std::move(warning)};
}

// Why the fast path cannot be taken; empty: it can.
std::optional<MatmulChoice> why_default() {
  if (!host::is_amd_with_avx2()) return stays_default("this is no processor of AMD with AVX2 and FMA");
  if (!mkls_own()) return stays_default("this libtorch has no MKL");
  if (::dlsym(RTLD_DEFAULT, kQuestion) != reinterpret_cast<void*>(&mkl_serv_intel_cpu_true)) {
    return stays_default("libtorch comes before libdtrain_train",
                         "the program links libtorch before dtrain::train; link dtrain::train first");
  }
  return std::nullopt;
}

}  // namespace

bool has_fast_matmul() {
  return !why_default();
}

MatmulChoice choose_matmul(config::Matmul wanted) {
  if (says_yes) return {profile::MatmulPath::kFast, "this process has chosen it before", {}};
  if (wanted == config::Matmul::kDefault) return stays_default("optimizations.matmul: default");
  if (const auto why = why_default()) return *why;
  if (was_asked) {
    return stays_default(
        "libtorch had computed before",
        "libtorch has computed something before run_trial(), and MKL has chosen; compute in the trial");
  }
  says_yes = true;
  return {profile::MatmulPath::kFast, "this is a processor of AMD with AVX2 and FMA", {}};
}

}  // namespace dtrain::train
