// Gathers the errors of one file while it is read, so that all of them are reported at once. Private to config, one
// thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "document/value.h"
#include "dtrain/config/diagnostic.h"

namespace dtrain::config {

class Collector {
 public:
  // `override_name`: the option that overrides come with.
  explicit Collector(std::string file, std::string override_name = "--set")
      : file_(std::move(file)), override_name_(std::move(override_name)) {}

  void add(Location at, std::string key, std::string message);
  // Adds a key of the schema that the reading has asked for, with its whole path.
  void add_known(std::string path) { known_.push_back(std::move(path)); }
  // Adds a key that was not read. Its message is made at the end, when all keys of the schema are known.
  void add_unknown(Location at, std::string section, std::string key);
  // Returns a sentence about an unknown key, by its whole path; empty: there is none.
  using Explain = std::string (*)(std::string_view path);
  void explain_with(Explain explain) { explain_ = explain; }
  // "file:line", or "--set:line"
  std::string place(Location at) const;
  // Returns an absolute path, so that plan.json and checkpoints have the same paths however the file is named.
  std::filesystem::path folder() const { return std::filesystem::absolute(file_).parent_path(); }
  bool empty() const { return diagnostics_.empty() && unknown_.empty(); }
  // Throws ConfigErrors if anything was added.
  void throw_if_any();

 private:
  struct Unknown {
    Location at;
    std::string section;
    std::string key;
  };
  std::string message_for(const Unknown& unknown) const;

  std::string file_;
  std::string override_name_;
  std::vector<std::pair<Location, Diagnostic>> diagnostics_;
  std::vector<Unknown> unknown_;
  std::vector<std::string> known_;
  Explain explain_ = nullptr;
};

// "a" + "b" -> "a.b", "" + "b" -> "b"
std::string join_path(const std::string& section, const std::string& key);

}  // namespace dtrain::config
