#include "folder/next_steps.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// Relative to the current folder if it is below it; quoted if a shell would not take it for one word.
std::string shown_path(const fs::path& path) {
  std::error_code code;
  const fs::path relative = fs::relative(path, code);
  const std::string shown = code || relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
  const bool plain = std::all_of(shown.begin(), shown.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._/+-,:=@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? shown : shell_quoted(shown);
}

}  // namespace

std::string own_command() {
  const fs::path program = executable_path();
  const std::string name = program.filename();
  const char* variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  std::error_code code;
  const fs::path found = fs::canonical(find_in_path(name, variable == nullptr ? nullptr : &path), code);
  return !code && found == program ? name : shown_path(program);
}

std::string reference_of(const RunFolder& folder) {
  std::error_code code;
  if (folder.path.parent_path() == fs::current_path(code) / "runs") {
    const std::string name = folder.path.filename();
    const std::size_t digits = name.find_first_not_of("0123456789");
    if (digits > 0 && digits != std::string::npos && name[digits] == '-') {
      const std::size_t first = name.find_first_not_of('0');
      if (first < digits) return name.substr(first, digits - first);
    }
  }
  return shown_path(folder.path);
}

std::string example_path() {
  const fs::path bin = executable_path().parent_path();
  std::error_code code;
  for (const char* from : {"../share/dtrain", "../../.."}) {
    const fs::path readme = (bin / from / "examples/fashion_mnist/README.md").lexically_normal();
    if (fs::exists(readme, code)) return shown_path(readme);
  }
  return {};
}

std::string next_steps(const RunFolder& folder, bool recorded) {
  std::vector<std::string> lines;
  if (recorded) {
    const std::string command = own_command(), run = reference_of(folder);
    lines.push_back(command + " report " + run + "    the same with charts, in one file for a browser");
    lines.push_back(command + " analyze " + run + "   what to change, and what each change would bring");
  }
  if (const std::string example = example_path(); !example.empty()) lines.push_back("your own model: " + example);
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "next        " : "            ") + line + "\n";
  return text;
}

}  // namespace dtrain::run
