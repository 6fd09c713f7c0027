#include "document/collector.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

std::string leaf_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

std::string section_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string to_text(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!text.empty()) text += '\n';
    text += diagnostic.to_string();
  }
  return text;
}

}  // namespace

std::string join_path(const std::string& section, const std::string& key) {
  return section.empty() ? key : section + "." + key;
}

void Collector::add(Location at, std::string key, std::string message) {
  const std::string& source = at.in_override ? override_name_ : file_;
  diagnostics_.emplace_back(at, Diagnostic{source, at.line, std::move(key), std::move(message)});
}

std::string Collector::place(Location at) const {
  return (at.in_override ? override_name_ : file_) + ":" + std::to_string(at.line);
}

void Collector::add_unknown(Location at, std::string section, std::string key) {
  unknown_.push_back({at, std::move(section), std::move(key)});
}

std::string Collector::message_for(const Unknown& unknown) const {
  if (explain_) {
    if (std::string why = explain_(join_path(unknown.section, unknown.key)); !why.empty()) return why;
  }
  std::vector<std::string> siblings;
  for (const std::string& path : known_) {
    if (section_of(path) == unknown.section) siblings.push_back(leaf_of(path));
  }
  std::set<std::string> homes;  // a key of many sections ("threshold") belongs under none in particular
  for (const std::string& path : known_) {
    if (leaf_of(path) == unknown.key) homes.insert(section_of(path));
  }
  if (homes.size() == 1) {
    const std::string& home = *homes.begin();
    return "unknown key here; it belongs " + (home.empty() ? "at the top level" : "under '" + home + "'");
  }
  if (const auto near = nearest(unknown.key, siblings)) return "unknown key; did you mean '" + *near + "'?";
  std::sort(siblings.begin(), siblings.end());
  return "unknown key; known here: " + join(siblings, ", ");
}

void Collector::throw_if_any() {
  for (const Unknown& unknown : unknown_) {
    add(unknown.at, quote(join_path(unknown.section, unknown.key)), message_for(unknown));
    // The key is quoted only to make it safe to print; keys are shown bare.
    std::string& key = diagnostics_.back().second.key;
    key = key.substr(1, key.size() - 2);
  }
  unknown_.clear();
  if (diagnostics_.empty()) return;
  std::stable_sort(diagnostics_.begin(), diagnostics_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.in_override, a.first.line) < std::tie(b.first.in_override, b.first.line);
  });
  std::vector<Diagnostic> sorted;
  for (auto& [at, diagnostic] : diagnostics_) sorted.push_back(std::move(diagnostic));
  diagnostics_.clear();
  throw ConfigErrors(std::move(sorted));
}

std::string Diagnostic::to_string() const {
  std::string text = file;
  if (line > 0) text += ":" + std::to_string(line);
  text += ": ";
  if (!key.empty()) text += key + ": ";
  return text + message;
}

ConfigErrors::ConfigErrors(std::vector<Diagnostic> diagnostics)
    : ConfigError(to_text(diagnostics)), diagnostics_(std::move(diagnostics)) {}

}  // namespace dtrain::config
