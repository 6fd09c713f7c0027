// The output of `dtrain version`.
#include <dlfcn.h>
#include <unistd.h>

#include "doctor/checks.h"
#include "doctor/gpu_checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"
#include "dtrain/launcher/doctor.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

// Returns the folder of libtorch's libraries that dtrain-worker would use; empty: none is found.
fs::path workers_libtorch(const rank::Variables& variables) {
  const fs::path worker = rank::find_training_program("dtrain-worker", variables);
  try {
    return worker.empty() ? fs::path() : rank::libtorch_folder(worker, rank::find_libraries(worker, variables));
  } catch (const Error&) {  // check_libtorch() says why
    return {};
  }
}

std::string nccl_text(const fs::path& libtorch) {
  for (const std::string& path : cuda_candidates(libtorch).nccl) {
    void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) continue;
    int code = 0;
    const auto get_version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
    if (get_version != nullptr && get_version(&code) == 0) return nccl_version(code) + ", " + path;
  }
  return "not found; training on GPUs needs it (dtrain-get-libtorch --flavour full)";
}

std::string cpu_text() {
  const std::string name = host::processor().name;
  return (name.empty() ? "not known" : name) + ", " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + " CPUs";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> versions() {
  const rank::Variables variables = rank::process_variables();
  const std::vector<std::string> minors = rank::libtorch_minors(variables);
  std::vector<std::pair<std::string, std::string>> all{
      {"dtrain", rank::version() + ", commit " DTRAIN_COMMIT},
      {"libtorch",
       (minors.empty() ? "" : "built for " + join_with_and(minors) + "; ") + check_libtorch(variables).text}};
  for (const Finding& backend : check_backends(false, variables)) all.emplace_back(backend.check, backend.text);
  all.emplace_back("NCCL", nccl_text(workers_libtorch(variables)));
  all.emplace_back("CPU", cpu_text());
  return all;
}

}  // namespace dtrain::launcher
