#include "exported/node_source.h"

#include <string_view>

#include "dtrain/base/text.h"

namespace dtrain::exported {

namespace {

// Reads a line of a Python traceback: File "net.py", line 12, in forward
bool read_place(std::string_view line, CodeLine& place) {
  constexpr std::string_view kFile = "File \"", kNumber = "\", line ", kFunction = ", in ";
  if (!line.starts_with(kFile)) return false;
  const auto number = line.rfind(kNumber);
  if (number == std::string_view::npos || number < kFile.size()) return false;
  const auto function = line.find(kFunction, number);
  if (function == std::string_view::npos) return false;
  const std::size_t digits = number + kNumber.size();
  place.file = line.substr(kFile.size(), number - kFile.size());
  place.number = line.substr(digits, function - digits);
  place.function = line.substr(function + kFunction.size());
  return true;
}

}  // namespace

std::string metadata_text(const Json& node, const char* key) {
  const auto metadata = node.find("metadata");
  if (metadata == node.end() || !metadata->is_object()) return {};
  const auto text = metadata->find(key);
  return text != metadata->end() && text->is_string() ? text->get<std::string>() : std::string();
}

std::vector<CodeLine> code_lines(const Json& node) {
  std::vector<CodeLine> lines;
  for (const std::string& line : split(metadata_text(node, "stack_trace"), '\n')) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const std::string_view text = std::string_view(line).substr(begin);
    CodeLine place;
    if (read_place(text, place)) {
      lines.push_back(std::move(place));
    } else if (!lines.empty() && lines.back().text.empty()) {
      lines.back().text = text;
    }
  }
  return lines;
}

std::vector<EnteredModule> entered_modules(const Json& node) {
  std::vector<EnteredModule> modules;
  for (const std::string& entry : split(metadata_text(node, "nn_module_stack"), ';')) {
    const std::vector<std::string> parts = split(entry, ',');
    if (parts.size() != 3 || parts[1] == "_empty_nn_module_stack_from_metadata_hook") continue;
    modules.push_back({parts[1], parts[2]});
  }
  return modules;
}

}  // namespace dtrain::exported
