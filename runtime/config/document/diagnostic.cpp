#include "dtrain/config/diagnostic.h"

namespace dtrain::config {
namespace {

std::string to_text(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!text.empty()) text += '\n';
    text += diagnostic.to_string();
  }
  return text;
}

}  // namespace

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
