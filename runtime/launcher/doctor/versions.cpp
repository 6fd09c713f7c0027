// The output of `dtrain version`.
#include <dlfcn.h>
#include <unistd.h>

#include <variant>

#include "doctor/checks.h"
#include "doctor/gpu_checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/host/cpu.h"
#include "dtrain/launcher/doctor.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::run {

namespace {

namespace fs = std::filesystem;

// Returns the folder of libtorch's libraries that dtrain-worker would use; empty: none is found.
fs::path workers_libtorch(const Variables& variables) {
  const fs::path worker = find_training_program("dtrain-worker", variables);
  try {
    return worker.empty() ? fs::path() : libtorch_folder(worker, find_libraries(worker, variables));
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
  const Variables variables = process_variables();
  const std::vector<std::string> minors = libtorch_minors(variables);
  std::vector<std::pair<std::string, std::string>> all{
      {"dtrain", version() + ", commit " DTRAIN_COMMIT},
      {"libtorch",
       (minors.empty() ? "" : "built for " + join_with_and(minors) + "; ") + check_libtorch(variables).text}};
  for (const Finding& backend : check_backends(false, variables)) all.emplace_back(backend.check, backend.text);
  all.emplace_back("NCCL", nccl_text(workers_libtorch(variables)));
  all.emplace_back("CPU", cpu_text());
  return all;
}

// The programs and libraries of a run: libtorch, those of the backends, Slurm. GPUs: gpus.cpp.

namespace {

namespace fs = std::filesystem;

Finding finding_of(const comm::BackendCheck& check, bool needed) {
  if (check.usable) return ok(check.name, check.text);
  if (needed) return problem(check.name, check.text, check.remedy);
  return ok(check.name, check.text + "; " + check.used_by + " need it");
}

}  // namespace

Finding check_libtorch(const Variables& variables) {
  const fs::path worker = find_training_program("dtrain-worker", variables);
  if (worker.empty()) {
    const MissingProgram missing = missing_program("dtrain-worker");
    return warning("libtorch", missing.text + "; `model:` experiments need it", missing.remedy);
  }
  try {
    const std::string path = find_libraries(worker, variables);
    return ok("libtorch", path.empty() ? "found by " + worker.string() : split(path, ':').front());
  } catch (const Error& error) {
    return problem("libtorch", error.what(), error.remedy());
  }
}

std::vector<Finding> check_backends(bool mpi_is_needed, const Variables& variables) {
  std::vector<Finding> findings;
  for (const comm::Backend& backend : comm::all_backends()) {
    std::visit(
        [&](const auto& held) {
          if constexpr (requires { held.check(variables); }) {
            findings.push_back(finding_of(held.check(variables), held.kNeedsMpi && mpi_is_needed));
          }
        },
        backend);
  }
  return findings;
}

Finding check_slurm(const Variables& variables) {
  const auto path = variables.find("PATH");
  const fs::path srun = find_in_path("srun", path == variables.end() ? nullptr : &path->second);
  if (srun.empty()) {
    return problem("Slurm", "there is no srun in PATH", "launch from a node that has Slurm's commands");
  }
  const std::string said = first_output_line({srun.string(), "--version"});
  return said.empty() ? problem("Slurm", srun.string() + " fails", "srun --version says why") : ok("Slurm", said);
}

}  // namespace dtrain::run
