#include "dtrain/rank/libtorch.h"

#include <algorithm>
#include <map>
#include <regex>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"

namespace dtrain::rank {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibtorch = "libtorch_cpu.so";

using Libraries = std::map<std::string, std::string>;  // the files by their names; no file: not found

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

// Returns the dynamic linker that started this process. It starts the ranks too.
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

// Returns the libraries that `program` (or a library) links, directly or indirectly, and the files that they are found
// in; no file for those that cannot be found. Empty for a script or a static program, which the linker does not know.
Libraries linked_libraries(const fs::path& program, const std::string& library_path) {
  const std::string linker = dynamic_linker();
  if (linker.empty()) return {};
  Pipe pipe = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions options;
  options.command = {linker, program.string()};
  options.environment["LD_TRACE_LOADED_OBJECTS"] = "1";  // load, list, and end before the program's first instruction
  // The linker of glibc 2.35 (Ubuntu 22.04) crashes where a library of a library is missing, unless it sorts as before.
  options.environment["GLIBC_TUNABLES"] = "glibc.rtld.dynamic_sort=1";
  if (!library_path.empty()) options.environment["LD_LIBRARY_PATH"] = library_path;
  options.fds = {{0, nothing.get()}, {1, pipe.writer.get()}, {2, nothing.get()}};
  Process process = Process::start(options);
  pipe.writer.reset();
  const std::string listing = read_to_end(pipe.reader.get()).value_or("");
  process.wait();
  Libraries libraries;
  for (const std::string& line : split(listing, '\n')) {  // "\tlibname.so => not found", "... => /path (0x7f...)"
    const auto arrow = line.find(" => ");
    const auto name = line.find_first_not_of("\t ");
    if (arrow == std::string::npos || name >= arrow) continue;
    const std::string target = line.substr(arrow + 4);
    const std::string file = target == "not found" ? "" : target.substr(0, target.rfind(" ("));
    // A library may be listed more than once: it is missing if one object that needs it cannot find it.
    const auto [known, is_new] = libraries.try_emplace(line.substr(name, arrow - name), file);
    if (!is_new && file.empty()) known->second.clear();
  }
  return libraries;
}

std::vector<std::string> without_file(const Libraries& libraries) {
  std::vector<std::string> missing;
  for (const auto& [name, file] : libraries) {
    if (file.empty()) missing.push_back(name);
  }
  return missing;
}

bool has_libtorch(const fs::path& torch) {
  std::error_code code;
  return fs::is_regular_file(torch / "lib" / kLibtorch, code);
}

// Returns "2.15" for "2.15.0".
std::string minor_of_version(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

// Returns "2.15.0"; empty: the folder does not say. The archive for C++ has the second file.
std::string version_of(const fs::path& torch) {
  for (const char* name : {"version.py", "build-version"}) {
    std::error_code code;
    if (!fs::is_regular_file(torch / name, code)) continue;
    const std::string text = read_file(torch / name);
    std::smatch version;
    if (std::regex_search(text, version, std::regex("(?:__version__ = '|^)([0-9]+[.][0-9]+[.0-9]*)")))
      return version[1];
  }
  return {};
}

// Returns "2.15" for libdtrain_train.so.0.1-torch2.15: its C++ interface is that of the libtorch for which it is
// compiled. Empty: another library.
std::string minor_in(const std::string& library) {
  constexpr std::string_view kTorch = "-torch";
  const auto torch = library.find(kTorch);
  const bool is_ours = library.starts_with("libdtrain_train.so.") && torch != std::string::npos;
  return is_ours ? library.substr(torch + kTorch.size()) : "";
}

// Returns the libtorch for which a program is built; empty: it links no library of dtrain that says so.
std::string minor_of(const Libraries& libraries) {
  for (const auto& [name, file] : libraries) {
    if (std::string minor = minor_in(name); !minor.empty()) return minor;
  }
  return {};
}

// In a wheel, the programs that link libtorch lie in a folder for each minor version, as in torch2.15.
struct MinorFolder {
  std::pair<int, int> version;
  fs::path path;
  std::string minor() const { return std::to_string(version.first) + "." + std::to_string(version.second); }
};

// Returns {2, 15} for "2.15"; {0, 0}: the text is no version.
std::pair<int, int> version_numbers(const std::string& minor) {
  static const std::regex kMinor("([0-9]{1,4})[.]([0-9]{1,4})");
  std::smatch found;
  if (!std::regex_match(minor, found, kMinor)) return {};
  return {std::stoi(found[1]), std::stoi(found[2])};
}

// Returns the folders, the newest last. Empty: this dtrain is no wheel, and the programs are beside it.
std::vector<MinorFolder> minor_folders() {
  static const char inside_this_library = 0;
  constexpr std::string_view kTorch = "torch";
  std::vector<MinorFolder> found;
  const fs::path package = (library_folder(&inside_this_library) / "..").lexically_normal();
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(package, code)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kTorch)) continue;
    const auto version = version_numbers(name.substr(kTorch.size()));
    if (version.first > 0) found.push_back({version, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.version < b.version; });
  return found;
}

// Returns the ways to get libtorch. Empty `minor`: dtrain is built without libtorch.
std::string how_to_get(const std::string& minor) {
  const std::string or_set =
      "or set DTRAIN_LIBTORCH_DIR to the 'torch' folder of an installed PyTorch" + (minor.empty() ? "" : " " + minor);
  if (const std::vector<MinorFolder> folders = minor_folders(); !folders.empty()) {
    // pip takes the newest one that there is for the user's Python: PyTorch 2.15 has nothing for Python 3.10.
    const auto [major, newest] = folders.back().version;
    return "pip install --upgrade 'torch<" + std::to_string(major) + "." + std::to_string(newest + 1) + "'; " + or_set;
  }
  return "get it with: dtrain-get-libtorch; " + or_set +
         (minor.empty() ? " (pip install torch)" : " (pip install 'torch==" + minor + ".*')");
}

std::string newest_of(const std::vector<std::string>& minors) {
  return minors.empty() ? std::string() : minors.back();
}

// Returns the folders into which dtrain-get-libtorch puts libtorch: beside the installed libraries, or under the user's
// home if that folder cannot be written.
std::vector<fs::path> usual_places(const Variables& variables) {
  static const char inside_this_library = 0;
  const std::string data = value_of(variables, "XDG_DATA_HOME");
  const fs::path home = data.empty() ? fs::path(value_of(variables, "HOME")) / ".local" / "share" : fs::path(data);
  const fs::path rest = fs::path("dtrain") / "libtorch" / "torch";
  return {(library_folder(&inside_this_library) / ".." / "lib" / rest).lexically_normal(), home / rest};
}

// Returns the 'torch' folder whose libtorch `program` would use; empty: there is none.
fs::path libtorch_of(const fs::path& program, const Variables& variables) {
  if (std::string named = value_of(variables, "DTRAIN_LIBTORCH_DIR"); !named.empty()) return named;
  if (const fs::path found = libtorch_folder(program, value_of(variables, "LD_LIBRARY_PATH")); !found.empty()) {
    return found.parent_path();
  }
  for (const fs::path& place : usual_places(variables)) {
    if (has_libtorch(place)) return place;
  }
  return {};
}

// ConfigError if `program` is compiled for another libtorch than the one in `torch`. A program that does not say for
// which one it is gets a libtorch that fits dtrain.
void check_version(const fs::path& program, const Libraries& libraries, const fs::path& torch, const std::string& where,
                   const Variables& variables) {
  const std::string version = version_of(torch);
  const std::string minor = minor_of_version(version);
  // A file in `torch` that is no library ends the linker's list.
  const std::string own = minor_of(libraries.empty() ? linked_libraries(program, {}) : libraries);
  if (version.empty() || own == minor) return;
  const std::vector<std::string> all = libtorch_minors(variables);
  const bool fits = std::find(all.begin(), all.end(), minor) != all.end();
  if (own.empty() && (fits || all.empty())) return;
  const std::vector<MinorFolder> folders = minor_folders();
  const bool of_wheel = std::any_of(folders.begin(), folders.end(),
                                    [&](const MinorFolder& folder) { return folder.path == program.parent_path(); });
  const std::string is = where + ": the libtorch in " + torch.string() + " is " + version + ", and ";
  if (!own.empty() && (fits || !of_wheel)) {
    throw ConfigError(is + program.string() + " is built for " + own, how_to_get(own));
  }
  std::string remedy = how_to_get(newest_of(all));
  if (!folders.empty() && version_numbers(minor) > folders.front().version) {
    remedy += "; or build dtrain for " + minor + " from its source distribution (pip install dtrain-*.tar.gz)";
  }
  throw ConfigError(is + "dtrain is built for " + join_with_and(all), remedy);
}

// ConfigError if `program` is compiled for another libtorch than this dtrain, which therefore lacks its library.
void check_train(const fs::path& program, const Libraries& libraries, const Variables& variables) {
  for (const auto& [name, file] : libraries) {
    const std::string minor = minor_in(name);
    if (minor.empty() || !file.empty()) continue;
    const std::vector<std::string> minors = libtorch_minors(variables);
    if (minors.empty() || std::find(minors.begin(), minors.end(), minor) != minors.end()) continue;
    throw ConfigError(program.string() + " is built for libtorch " + minor + " (" + name + "), and dtrain for " +
                          join_with_and(minors),
                      "build it anew with this dtrain, or install a dtrain for libtorch " + minor);
  }
}

}  // namespace

std::vector<std::string> missing_libraries(const fs::path& program, const std::string& library_path) {
  return without_file(linked_libraries(program, library_path));
}

fs::path libtorch_folder(const fs::path& program, const std::string& library_path) {
  const Libraries libraries = linked_libraries(program, library_path);
  const auto found = libraries.find(kLibtorch);
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

fs::path find_training_program(const std::string& name, const Variables& variables) {
  const fs::path folder = executable_path().parent_path();
  const std::vector<MinorFolder> folders = minor_folders();
  if (folders.empty() || is_program(folder / name)) return find_program(name, folder, variables);
  fs::path newest = folders.back().path / name;
  const std::string minor = minor_of_version(version_of(libtorch_of(newest, variables)));
  for (const MinorFolder& of_minor : folders) {
    if (of_minor.minor() == minor) return of_minor.path / name;
  }
  return newest;  // find_libraries() says what is wrong
}

TrainingProgram training_program(const std::string& name) {
  const Variables variables = process_variables();
  const fs::path file = find_training_program(name, variables);
  if (file.empty()) {
    const MissingProgram missing = missing_program(name);
    throw Error(missing.text, missing.remedy);
  }
  return {file, find_libraries(file, variables)};
}

std::vector<std::string> libtorch_minors(const Variables& variables) {
  std::vector<std::string> minors;
  for (const MinorFolder& folder : minor_folders()) minors.push_back(folder.minor());
  if (!minors.empty()) return minors;
  const fs::path worker = find_program("dtrain-worker", executable_path().parent_path(), variables);
  if (worker.empty()) return minors;
  if (std::string minor = minor_of(linked_libraries(worker, {})); !minor.empty()) minors.push_back(minor);
  return minors;
}

std::string libtorch_minor(const Variables& variables) {
  std::string loaded;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::string minor = minor_in(fs::path(info->dlpi_name).filename());
        if (!minor.empty()) *static_cast<std::string*>(found) = minor;
        return static_cast<int>(!minor.empty());
      },
      &loaded);
  if (!loaded.empty()) return loaded;
  const fs::path worker = find_training_program("dtrain-worker", variables);
  return worker.empty() ? std::string() : minor_of(linked_libraries(worker, {}));
}

std::string find_libraries(const fs::path& program, const Variables& variables) {
  const std::string given = value_of(variables, "LD_LIBRARY_PATH");
  const auto with = [&](const fs::path& torch) {
    return fs::absolute(torch / "lib").string() + (given.empty() ? "" : ":" + given);
  };
  const auto check_folder = [&](const fs::path& torch, const std::string& where) {
    if (has_libtorch(torch)) return;
    throw ConfigError(where + ": there is no lib/libtorch_cpu.so in " + torch.string(),
                      how_to_get(newest_of(libtorch_minors(variables))));
  };
  const std::string named = value_of(variables, "DTRAIN_LIBTORCH_DIR");
  if (!named.empty()) check_folder(named, "environment: DTRAIN_LIBTORCH_DIR");
  std::string path = named.empty() ? "" : with(named);
  Libraries libraries = linked_libraries(program, path.empty() ? given : path);
  check_train(program, libraries, variables);
  const auto libtorch = libraries.find(kLibtorch);
  if (!named.empty()) {
    check_version(program, libraries, named, "environment: DTRAIN_LIBTORCH_DIR", variables);
  } else if (libtorch != libraries.end() && libtorch->second.empty()) {
    const std::vector<fs::path> places = usual_places(variables);
    std::error_code code;
    const auto found =
        std::find_if(places.begin(), places.end(), [&](const fs::path& p) { return fs::exists(p, code); });
    if (found == places.end()) {
      std::string minor = minor_of(libraries);
      if (minor.empty()) minor = newest_of(libtorch_minors(variables));
      throw ConfigError(program.string() + " needs libtorch " + minor + " (libtorch_cpu.so), which is not there",
                        how_to_get(minor));
    }
    check_folder(*found, "what dtrain-get-libtorch got");
    check_version(program, libraries, *found, "what dtrain-get-libtorch got", variables);
    path = with(*found);
    libraries = linked_libraries(program, path);
  } else if (libtorch != libraries.end() && !minor_of(libraries).empty()) {
    const fs::path torch = fs::path(libtorch->second).parent_path().parent_path();
    check_version(program, libraries, torch.lexically_normal(), program.string(), variables);
  }
  if (const std::vector<std::string> missing = without_file(libraries); !missing.empty()) {
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

std::string version() {
  return DTRAIN_VERSION;
}

}  // namespace dtrain::rank
