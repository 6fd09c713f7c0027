#include "entrypoint.h"

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"

namespace dtrain::run {

namespace fs = std::filesystem;

fs::path find_entrypoint(const config::Experiment& experiment, const Variables& variables) {
  const std::string& name = experiment.entrypoint.front();
  const fs::path beside = executable_path().parent_path();
  const std::string where = experiment.file.string() + ": entrypoint: ";
  if (name.find('/') == std::string::npos) {
    fs::path found = find_program(name, beside, variables);
    if (!found.empty()) return found;
    if (experiment.model) {
      throw ConfigError(
          experiment.file.string() + ": model: `model:` experiments are carried out by the program " + name +
              ", which is neither in " + beside.string() + " nor in PATH",
          "it comes with every build that has libtorch: scripts/setup.sh, then cmake with DTRAIN_TORCH=ON");
    }
    if (name.find(':') != std::string::npos) {
      throw ConfigError(where + "'" + name + "' is no program; it looks like a Python class, which dtrain does not run",
                        "name a program of your own, or export the model to TorchScript (docs/experiment.md: model)");
    }
    std::vector<std::string> names;
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(beside, code)) names.push_back(entry.path().filename());
    const auto near = nearest(name, names);
    throw ConfigError(where + "there is no program '" + name + "' in " + beside.string() + " or in PATH" +
                          (near ? "; did you mean " + *near + "?" : ""),
                      "build it there, or write its path (./" + name + " is beside the experiment file)");
  }
  const fs::path path = fs::absolute(experiment.file).parent_path() / name;
  std::error_code code;
  if (!fs::is_regular_file(path, code)) {
    throw ConfigError(where + "there is no program " + path.lexically_normal().string(),
                      "a path with a slash is relative to the experiment file");
  }
  if (::access(path.c_str(), X_OK) != 0) {
    throw ConfigError(where + path.lexically_normal().string() + " is not executable", "chmod +x it");
  }
  // A link stays a link: the Python of a virtual environment finds its packages by the path that it is started by.
  return fs::canonical(path.parent_path()) / path.filename();
}

}  // namespace dtrain::run
