#include "libtorch.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <regex>

#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHowToGet =
    "get it with: dtrain-get-libtorch; or set DTRAIN_LIBTORCH_DIR to the 'torch' folder of an installed "
    "PyTorch " DTRAIN_LIBTORCH " (pip install torch==" DTRAIN_LIBTORCH ".0)";

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

// The dynamic linker that started this process. It starts the ranks too.
std::string dynamic_linker() {
  std::string result;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type != PT_INTERP) continue;
          *static_cast<std::string*>(found) = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
        }
        return 1;  // the first entry is the program
      },
      &result);
  return result;
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

// The libraries that `program` (or a library) links, directly or indirectly, and the files that they are found in; no
// file for those that cannot be found. Empty for a script or a static program, which the linker does not know.
std::map<std::string, std::string> linked_libraries(const fs::path& program, const std::string& library_path) {
  const std::string linker = dynamic_linker();
  if (linker.empty()) return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions options;
  options.command = {linker, program.string()};
  options.environment["LD_TRACE_LOADED_OBJECTS"] = "1";  // load, list, and end before the program's first instruction
  if (!library_path.empty()) options.environment["LD_LIBRARY_PATH"] = library_path;
  options.fds = {{0, nothing.get()}, {1, writer.get()}, {2, nothing.get()}};
  Process process = Process::start(options);
  writer.reset();
  const std::string listing = read_all(reader.get());
  process.wait();
  std::map<std::string, std::string> libraries;
  for (const std::string& line : split(listing, '\n')) {  // "\tlibname.so => not found", "... => /path (0x7f...)"
    const auto arrow = line.find(" => ");
    const auto name = line.find_first_not_of("\t ");
    if (arrow == std::string::npos || name >= arrow) continue;
    const std::string target = line.substr(arrow + 4);
    const std::string file = target == "not found" ? "" : target.substr(0, target.rfind(" ("));
    // A library may be listed more than once: what one object that needs it cannot find is missing.
    const auto [known, is_new] = libraries.try_emplace(line.substr(name, arrow - name), file);
    if (!is_new && file.empty()) known->second.clear();
  }
  return libraries;
}

// ConfigError unless `torch` is the folder of a PyTorch whose libtorch the ranks can use.
void check_libtorch(const fs::path& torch, const std::string& where) {
  std::error_code code;
  if (!fs::is_regular_file(torch / "lib" / "libtorch_cpu.so", code)) {
    throw ConfigError(where + ": there is no lib/libtorch_cpu.so in " + torch.string(), kHowToGet);
  }
  if (!fs::is_regular_file(torch / "version.py", code)) return;  // the archive without Python has no version
  const std::string text = read_file(torch / "version.py");
  std::smatch version;
  if (std::regex_search(text, version, std::regex("__version__ = '([0-9.]+)")) &&
      version[1].str().rfind(DTRAIN_LIBTORCH ".", 0) != 0) {
    throw ConfigError(where + ": the libtorch in " + torch.string() + " is " + version[1].str() +
                          ", and dtrain is built for " DTRAIN_LIBTORCH,
                      kHowToGet);
  }
}

// Where dtrain-get-libtorch puts it: beside the installed libraries, or under the user's home if that folder cannot be
// written.
std::vector<fs::path> usual_places(const Variables& variables) {
  static const char inside_this_library = 0;
  const std::string data = value_of(variables, "XDG_DATA_HOME");
  const fs::path home = data.empty() ? fs::path(value_of(variables, "HOME")) / ".local" / "share" : fs::path(data);
  const fs::path rest = fs::path("dtrain") / "libtorch" / "torch";
  return {(library_folder(&inside_this_library) / ".." / "lib" / rest).lexically_normal(), home / rest};
}

}  // namespace

std::vector<std::string> missing_libraries(const fs::path& program, const std::string& library_path) {
  std::vector<std::string> missing;
  for (const auto& [name, file] : linked_libraries(program, library_path)) {
    if (file.empty()) missing.push_back(name);
  }
  return missing;
}

fs::path libtorch_folder(const fs::path& program, const std::string& library_path) {
  const std::map<std::string, std::string> libraries = linked_libraries(program, library_path);
  const auto found = libraries.find("libtorch_cpu.so");
  return found == libraries.end() ? fs::path() : fs::path(found->second).parent_path();
}

std::string why_no_cuda(const fs::path& program, const std::string& library_path) {
  constexpr const char* kLibrary = "libtorch_cuda.so";
  constexpr const char* kRemedy = " (dtrain-get-libtorch --flavour full gets all of it)";
  const fs::path torch = libtorch_folder(program, library_path);
  if (torch.empty()) return {};
  std::vector<std::string> folders =
      split(library_path.empty() ? value_of(process_variables(), "LD_LIBRARY_PATH") : library_path, ':');
  folders.push_back(torch.string());
  std::error_code code;
  const auto found = std::find_if(folders.begin(), folders.end(), [&](const std::string& folder) {
    return !folder.empty() && fs::exists(fs::path(folder) / kLibrary, code);
  });
  if (found == folders.end()) return "libtorch's CUDA part is not in " + torch.string() + kRemedy;
  std::vector<std::string> missing = missing_libraries(fs::path(*found) / kLibrary, library_path);
  if (missing.empty()) return {};
  constexpr std::size_t kShown = 3;
  const std::size_t more = missing.size() > kShown ? missing.size() - kShown : 0;
  missing.resize(missing.size() - more);
  return "libtorch's CUDA part needs libraries that are not there: " + join(missing, ", ") +
         (more > 0 ? " and " + std::to_string(more) + " more" : "") + kRemedy;
}

std::string find_libraries(const fs::path& program, const Variables& variables) {
  const std::string given = value_of(variables, "LD_LIBRARY_PATH");
  const auto with = [&](const fs::path& torch) {
    return fs::absolute(torch / "lib").string() + (given.empty() ? "" : ":" + given);
  };
  std::string path;
  if (const std::string named = value_of(variables, "DTRAIN_LIBTORCH_DIR"); !named.empty()) {
    check_libtorch(named, "environment: DTRAIN_LIBTORCH_DIR");
    path = with(named);
  }
  std::vector<std::string> missing = missing_libraries(program, path.empty() ? given : path);
  if (std::find(missing.begin(), missing.end(), "libtorch_cpu.so") != missing.end()) {
    const std::vector<fs::path> places = usual_places(variables);
    std::error_code code;
    const auto found =
        std::find_if(places.begin(), places.end(), [&](const fs::path& p) { return fs::exists(p, code); });
    if (found == places.end()) {
      throw ConfigError(program.string() + " needs libtorch " DTRAIN_LIBTORCH " (libtorch_cpu.so), which is not there",
                        kHowToGet);
    }
    check_libtorch(*found, "what dtrain-get-libtorch got");
    path = with(*found);
    missing = missing_libraries(program, path);
  }
  if (!missing.empty()) {
    throw ConfigError(program.string() + " needs libraries that are not there: " + join(missing, ", "),
                      "install them, or name their folder in LD_LIBRARY_PATH");
  }
  return path;
}

bool built_with_libtorch() {
  return DTRAIN_WITH_LIBTORCH;
}

MissingProgram missing_program(const std::string& name, bool with_libtorch) {
  if (!with_libtorch) {
    return {"this dtrain was built without libtorch, so that " + name + " is missing",
            "build dtrain with libtorch: scripts/setup.sh build, then cmake with DTRAIN_TORCH=ON"};
  }
  return {name + " is neither beside dtrain nor in PATH",
          "build it (make demo, or cmake --build build/release --target " + name + "), or install dtrain anew"};
}

}  // namespace dtrain::run
