// A file of a test, removed with its folder at the end.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "dtrain/base/unix_socket.h"

namespace dtrain::config {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content, const std::string& name = "experiment.yaml")
      : folder_(std::filesystem::temp_directory_path() / ("dtrain-config-" + random_hex(8))), path_(folder_ / name) {
    std::filesystem::create_directory(folder_);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove_all(folder_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
};

// The least that an experiment needs.
inline const std::string kLeast =
    "entrypoint: trial\n"
    "hyperparameters: {global_batch_size: 64}\n"
    "searcher: {max_length: {epochs: 2}}\n";

}  // namespace dtrain::config
