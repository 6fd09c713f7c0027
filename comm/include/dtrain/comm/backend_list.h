// The backends, which carry a communicator's messages: the list. Each is a struct with the word by which an experiment
// names it, its requirements, and the functions that comm/NAME/backend.cpp defines. To add one: a struct here, its
// folder there, and docs/experiment.md. The backend for data on GPUs (dtrain/comm/nccl.h) is not in the list, because
// no experiment names it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"

namespace dtrain::comm {

class Communicator;   // dtrain/comm/communicator.h
struct BackendParts;  // dtrain/comm/backends.h

// The distribution of a run's ranks over hosts.
struct RankSpread {
  std::size_t hosts = 1;
  int most_on_a_host = 1;
  bool has_mpi = true;  // mpirun, or srun with PMIx, has started them
};

// The result of checking a machine for the programs and libraries that a backend needs.
struct BackendCheck {
  std::string name;  // the software that is needed: "MPI"
  bool usable = false;
  std::string text;     // the software that was found, or that is missing
  std::string remedy;   // empty if it is usable
  std::string used_by;  // the runs that need it
};

// Shared memory between processes of one host.
struct ShmBackend {
  static constexpr const char* kWord = "shm";
  static constexpr const char* kText = "";    // its text in the document besides kAutoBackendText
  static constexpr bool kSpansHosts = false;  // false: all ranks must be on one host
  static constexpr bool kNeedsMpi = false;    // true: mpirun, or srun with PMIx, must have started the ranks
  // True if `auto` may choose the backend for these ranks. `auto` never chooses a backend without this function.
  static constexpr bool suits(const RankSpread& ranks) { return ranks.hosts == 1; }
  // Makes the communicator; every struct has this function. Collective over the members.
  std::unique_ptr<Communicator> make(const BackendParts& parts) const;
  bool operator==(const ShmBackend&) const = default;
};

// Open MPI between all ranks.
struct MpiBackend {
  static constexpr const char* kWord = "mpi";
  static constexpr const char* kText = "";
  static constexpr bool kSpansHosts = true;
  static constexpr bool kNeedsMpi = true;
  static constexpr bool suits(const RankSpread& ranks) {
    return ranks.has_mpi && ranks.hosts > 1 && ranks.most_on_a_host == 1;
  }
  std::unique_ptr<Communicator> make(const BackendParts& parts) const;
  // Checks this machine, for `dtrain doctor`. A backend without own requirements does not have this function.
  // `variables`: the process's environment variables.
  BackendCheck check(const std::map<std::string, std::string>& variables) const;
  bool operator==(const MpiBackend&) const = default;
};

// ShmBackend inside each host, MpiBackend between the hosts.
struct HierarchicalBackend {
  static constexpr const char* kWord = "hierarchical";
  static constexpr const char* kText = "shared memory inside each host and MPI between hosts";
  static constexpr bool kSpansHosts = true;
  static constexpr bool kNeedsMpi = true;
  static constexpr bool suits(const RankSpread& ranks) { return ranks.has_mpi && ranks.hosts > 1; }
  std::unique_ptr<Communicator> make(const BackendParts& parts) const;
  bool operator==(const HierarchicalBackend&) const = default;
};

// ShmBackend inside each host, TCP connections between the hosts.
struct TcpBackend {
  static constexpr const char* kWord = "tcp";
  static constexpr const char* kText = "shared memory inside each host and TCP between hosts, without MPI";
  static constexpr bool kSpansHosts = true;
  static constexpr bool kNeedsMpi = false;
  static constexpr bool suits(const RankSpread& ranks) { return ranks.hosts > 1; }
  std::unique_ptr<Communicator> make(const BackendParts& parts) const;
  bool operator==(const TcpBackend&) const = default;
};

// `auto` chooses the first that suits the ranks.
using Backend = std::variant<ShmBackend, MpiBackend, HierarchicalBackend, TcpBackend>;

inline constexpr const char* kAutoBackend = "auto";
inline constexpr const char* kAutoBackendText =
    "shared memory on one host; MPI between several hosts, with shared memory inside hosts that have several ranks; "
    "tcp in place of MPI where neither mpirun nor srun with PMIx has started the ranks";

// Returns all backends in the order of the list.
inline std::vector<Backend> all_backends() {
  std::vector<Backend> all;
  for (const std::string& word : words_of<Backend>()) all.push_back(choice_named<Backend>(word));
  return all;
}

inline bool spans_hosts(const Backend& backend) {
  return std::visit([](const auto& held) { return held.kSpansHosts; }, backend);
}

inline bool needs_mpi(const Backend& backend) {
  return std::visit([](const auto& held) { return held.kNeedsMpi; }, backend);
}

inline bool suits(const Backend& backend, const RankSpread& ranks) {
  return std::visit(
      [&](const auto& held) {
        if constexpr (requires { held.suits(ranks); }) return held.suits(ranks);
        return false;
      },
      backend);
}

// Returns the backend that `auto` chooses.
inline Backend automatic_backend(const RankSpread& ranks) {
  for (const Backend& backend : all_backends()) {
    if (suits(backend, ranks)) return backend;
  }
  return {};
}

// Returns the words of the backends for which `holds`, for example needs_mpi(), is true.
inline std::vector<std::string> words_of_backends(bool (*holds)(const Backend&)) {
  std::vector<std::string> words;
  for (const Backend& backend : all_backends()) {
    if (holds(backend)) words.emplace_back(word_of(backend));
  }
  return words;
}

// Returns the document's text: "`hierarchical`: shared memory inside each host and MPI between hosts."
inline std::string backend_texts() {
  std::string texts;
  for (const Backend& backend : all_backends()) {
    const std::string text = std::visit([](const auto& held) { return held.kText; }, backend);
    if (!text.empty()) texts += std::string(texts.empty() ? "`" : " `") + word_of(backend) + "`: " + text + ".";
  }
  return texts;
}

}  // namespace dtrain::comm
