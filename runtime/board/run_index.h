// The runs in the board's folders, as a list that is always at hand: a thread reads what has changed. What it has read
// is kept in a file of the user's cache, so the list of a thousand runs is there when the board begins.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"
#include "run_views.h"

namespace dtrain::board {

class RunIndex {
 public:
  // `cache`: of the file of what was read; empty: none. The clock must outlive this.
  RunIndex(std::vector<std::filesystem::path> folders, std::filesystem::path cache, const Clock& clock);
  ~RunIndex();
  RunIndex& operator=(RunIndex&&) = delete;

  // --- any thread ---
  // Grows with each change of the list.
  std::uint64_t version() const;
  // Returns {version, folders, reading: {done, total} or null, runs: [...], differs: [{key, values}]}. The values of a
  // difference are in the order of the runs.
  Json list() const;
  // Empty: it was not read yet.
  std::optional<KnownLine> line(const std::string& id) const;
  // ConfigError: no run in the folders has this name.
  rank::RunFolder find(const std::string& id) const;

 private:
  // The sizes and times of the files that a line is read from.
  using Signature = std::vector<std::int64_t>;
  struct Entry {
    rank::RunFolder folder;
    Signature signature;
    Json line;  // null: not read yet
    analysis::Settings settings;
    bool ended = false;
    double read_s = 0;  // which reading it took
    std::chrono::steady_clock::time_point next{};
    std::unique_ptr<analysis::LiveRun> live;  // while it runs
  };

  void run();
  void look_for_runs();
  bool is_due(const Entry& entry, const Signature& now) const;
  void read(const std::string& id, const Signature& now);
  void follow(const std::string& id);
  std::vector<std::string> ids() const;
  void load_cache();
  void save_cache();
  Json differences() const;

  const std::vector<std::filesystem::path> folders_;
  const std::filesystem::path cache_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, Entry> entries_;  // by id; the thread alone adds and removes
  std::uint64_t version_ = 1;
  std::size_t unread_ = 0;
  bool saved_ = true, ends_ = false;
  std::thread thread_;
};

}  // namespace dtrain::board
