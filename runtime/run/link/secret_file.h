// What proves that a process belongs to a launch by mpirun or srun, in a file that its user alone can read. The
// launcher writes it on every host (remote_host.h), each rank reads it when it comes up. Plain functions; any thread.
#pragma once

#include <filesystem>
#include <string>

#include "environment.h"

namespace dtrain::run {

// "<secret>.<ranks_secret>", as the file holds it.
std::string to_text(const LaunchSecrets& secrets);

// Makes the file, mode 0600, in the place of one that a killed launcher has left; removes it at its end. SystemError.
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

// A name for it that nobody guesses, in the folder for temporary files that every host has.
std::filesystem::path temporary_secret_path();

// ConfigError where there is none, or one that others can read or have written.
LaunchSecrets read_secret_file(const std::filesystem::path& path);

}  // namespace dtrain::run
