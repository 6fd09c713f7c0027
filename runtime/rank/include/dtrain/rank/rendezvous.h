// How the processes of a run find each other and prove that they belong to it: files that only this user can read, and
// the wait for a host that has no name or no listener yet.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/rank/environment.h"

namespace dtrain::rank {

// The address and secret by which the ranks of one host find rank 0: rank 0 writes them into a file, which is removed
// once all ranks have connected. The secret is fresh. One thread.
struct Contact {
  std::string address;
  std::uint16_t port = 0;
  std::string secret;
};

// Rank 0's side. The file appears complete, with mode 0600, and is removed with this object.
class RendezvousFile {
 public:
  RendezvousFile(std::filesystem::path path, const Contact& contact);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::filesystem::path path_;
};

// The other ranks' side: waits for a file whose writer lives, and ignores one that a dead job left. CommError names the
// file at the deadline; DataError if the file is malformed.
Contact await_contact(const std::filesystem::path& path, std::chrono::milliseconds timeout);

// Returns the rendezvous file of `job` in `folder`.
std::filesystem::path rendezvous_path(const std::filesystem::path& folder, const std::string& job);

// The file that proves that a process belongs to a launch by mpirun or srun. The launcher writes it on every host
// (runtime/launcher/launch/run_job.cpp), and each rank reads it when it starts. Any thread.
// Its content: "<secret>.<ranks_secret>".
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

// Returns a random name in /tmp, a folder that every host has.
std::filesystem::path temporary_secret_path();

// ConfigError if there is none, or if others can read it or may have written it.
LaunchSecrets read_secret_file(const std::filesystem::path& path);

// Returns the secret in the file that the user gives to all ranks (DTRAIN_RUN_SECRET_FILE), such as a Secret that
// Kubernetes mounts: its text without the space around it. Empty: no file is given. ConfigError if it cannot be read,
// if others can read it or may have written it, or if it is too short. A file of root's may be readable to its group,
// which is how Kubernetes gives one to a user (fsGroup).
std::string read_run_secret(const std::filesystem::path& path);

// Returns the secret by which this rank joins: its own of the file, or the one that rank 0 has told. ConfigError unless
// all ranks have the file, or none.
std::string secret_to_join(const std::string& own, const std::string& told);

// Waiting for a host of the run that has no name or no listener yet: pods start in any order, and the name of one
// resolves only once it runs. Blocks; any thread.

// The addresses of a host's name, as the resolver orders them; `why` is the reason if there are none.
struct Resolved {
  std::vector<std::string> addresses;
  std::string why;
};
Resolved resolve(const std::string& name);

struct HostWait {
  std::string name;  // of the host, or its address
  std::uint16_t port = 0;
  std::chrono::milliseconds timeout{600'000};
  std::string waiter;  // "rank 3": for the log and for errors
  Logger log;          // gets a line after 2 s, and then every 15 s
};

// Waits until the name resolves and something listens there. Returns its address. CommError at the deadline says
// whether the name does not resolve, or which error the connection gives.
std::string await_listener(const HostWait& wait);

// Waits until the name resolves to an address of this machine, and returns the address. CommError at the deadline.
std::string await_own_address(const HostWait& wait);

}  // namespace dtrain::rank
