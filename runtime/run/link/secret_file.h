// The file that proves that a process belongs to a launch by mpirun or srun; only its user can read it. The launcher
// writes it on every host (remote_host.h), and each rank reads it when it starts. Plain functions; any thread.
#pragma once

#include <filesystem>
#include <string>

#include "environment.h"

namespace dtrain::run {

// The file's content: "<secret>.<ranks_secret>".
std::string to_text(const LaunchSecrets& secrets);

// Makes the file, mode 0600, in place of one that a killed launcher left. The destructor removes it. SystemError.
class SecretFile {
 public:
  SecretFile(std::filesystem::path path, const LaunchSecrets& secrets);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A random name in /tmp, a folder that every host has.
std::filesystem::path temporary_secret_path();

// ConfigError if there is none, or if others can read it or may have written it.
LaunchSecrets read_secret_file(const std::filesystem::path& path);

}  // namespace dtrain::run
