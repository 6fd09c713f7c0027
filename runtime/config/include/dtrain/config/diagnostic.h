// All errors of a file that a user has written, each with its place.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::config {

struct Diagnostic {
  std::string file;  // as the user named it; "--set" for an override
  int line = 0;      // from 1; of an override, its number on the command line; 0: the file as a whole
  std::string key;   // "searcher.max_length"; empty: not about one key
  std::string message;

  // "file:line: key: message"
  std::string to_string() const;
};

// Thrown once with every error of a file; what() has one line for each, in the order of the file.
class ConfigErrors : public ConfigError {
 public:
  explicit ConfigErrors(std::vector<Diagnostic> diagnostics);
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

}  // namespace dtrain::config
