#include "dtrain/base/module_file.h"

#include <algorithm>

#include <dlfcn.h>
#include <link.h>

#include "dtrain/base/subprocess.h"

namespace dtrain {
namespace {

std::string loader_error() {
  const char* const text = ::dlerror();
  return text ? text : "no reason given";
}

// Looks beside this library, and beside the other libraries of dtrain that this process has loaded: in a wheel, modules
// that depend on the version of libtorch have a folder of their own.
std::filesystem::path find_module(const std::string& file) {
  static const char inside_this_library = 0;
  std::vector<std::filesystem::path> candidates{library_folder(&inside_this_library) / file};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::filesystem::path library = info->dlpi_name;
        auto& all = *static_cast<std::vector<std::filesystem::path>*>(found);
        if (library.filename().string().starts_with("libdtrain_")) {
          all.push_back(library.parent_path() / all.front().filename());
        }
        return 0;
      },
      &candidates);
  std::error_code code;
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const auto& path) { return std::filesystem::exists(path, code); });
  return found == candidates.end() ? candidates.front() : *found;
}

}  // namespace

OpenedModule try_open_module(const ModuleFile& file) {
  const std::filesystem::path path = find_module("lib" + file.name + ".so");
  std::error_code code;
  if (!std::filesystem::exists(path, code)) {
    return {nullptr, file.what + " is not part of this dtrain: there is no " + path.string(), file.remedy_module};
  }
  for (const std::string& library : file.needs) {
    if (!::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      return {nullptr, file.what + " needs " + library + ", which cannot be opened: " + loader_error(),
              file.remedy_needs};
    }
  }
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) return {nullptr, file.what + " cannot be opened: " + loader_error(), file.remedy_module};
  void* const factory = ::dlsym(module, file.factory.c_str());
  if (factory) return {factory, {}, {}};
  return {nullptr, path.string() + " is not a module of dtrain: it has no " + file.factory, file.remedy_module};
}

}  // namespace dtrain
