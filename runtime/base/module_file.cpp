#include "dtrain/base/module_file.h"

#include <dlfcn.h>

#include "dtrain/base/subprocess.h"

namespace dtrain {
namespace {

std::string loader_error() {
  const char* const text = ::dlerror();
  return text ? text : "no reason given";
}

}  // namespace

OpenedModule try_open_module(const ModuleFile& file) {
  static const char inside_this_library = 0;
  const std::filesystem::path path = library_folder(&inside_this_library) / ("lib" + file.name + ".so");
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
