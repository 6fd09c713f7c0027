// A run's folder written by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "../harness/temporary_folder.h"

namespace dtrain::analysis {

namespace fs = std::filesystem;

class RunFolder {
 public:
  RunFolder() { fs::create_directories(path() / "profile"); }

  const fs::path& path() const { return folder_.path(); }
  void append(const fs::path& file, const std::string& text) { std::ofstream(folder_ / file, std::ios::app) << text; }
  fs::path rank_dump(int rank) const { return folder_ / "profile" / fmt::format("rank-{:04}.jsonl", rank); }

 private:
  const TemporaryFolder folder_;
};

inline std::string header_line(int rank, int world_size) {
  return fmt::format(
      R"({{"record":"header","schema":1,"kind":"rank","rank":{},"world_size":{},"host":"node","agent":"a"}})"
      "\n",
      rank, world_size);
}

// Milliseconds: forward 4, backward 6 (train_batch 11 with its own 1), optimizer 2, `data` and `wait` as given,
// other 1.
inline std::string step_line(int batch, int start_ms, int data_ms, int wait_ms, int samples = 10,
                             bool exchanged = true) {
  constexpr std::int64_t kMs = 1'000'000;
  return fmt::format(
      R"({{"record":"step","batch":{},"epoch":0,"start_ns":{},"wall_ns":{},"samples":{},"exchanged":{},)"
      R"("phases":{{"dataloader_next":{},"to_device":0,"train_batch":11000000,"train_batch.forward":4000000,)"
      R"("train_batch.backward":6000000,"allreduce_wait":{},"optimizer_step":2000000,"step_lr_schedulers":0,)"
      R"("from_device":0,"reduce_metrics":0,"callbacks":0,"checkpoint":0,"validation":0,"other":1000000}}}})"
      "\n",
      batch, start_ms * kMs, (14 + data_ms + wait_ms) * kMs, samples, exchanged, data_ms * kMs, wait_ms * kMs);
}

inline std::string scope_line(int batch, const std::string& path, int calls, const std::string& phases) {
  return fmt::format(R"({{"record":"scope","batch":{},"scope":"{}","calls":{},"wall_ns":1,"phases":{{{}}}}})"
                     "\n",
                     batch, path, calls, phases);
}

inline std::string part_line(const char* part, int start_ms, int end_ms) {
  constexpr std::int64_t kMs = 1'000'000;
  return fmt::format(R"({{"record":"part","part":"{}","batch":0,"start_ns":{},"end_ns":{}}})"
                     "\n",
                     part, start_ms * kMs, end_ms * kMs);
}

inline constexpr const char* kFinished =
    "{\"record\":\"end\",\"time_ns\":1,\"how\":\"finished\",\"dropped\":0,\"lost\":0}\n";

}  // namespace dtrain::analysis
