// A run's folder written by hand.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <spdlog/fmt/fmt.h>

namespace dtrain::analysis {

namespace fs = std::filesystem;

class RunFolder {
 public:
  RunFolder() {
    std::string name = (fs::temp_directory_path() / "dtrain-run-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
    fs::create_directories(path_ / "profile");
  }
  ~RunFolder() { fs::remove_all(path_); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const fs::path& path() const { return path_; }
  void append(const fs::path& file, const std::string& text) { std::ofstream(path_ / file, std::ios::app) << text; }
  fs::path rank_dump(int rank) const { return path_ / "profile" / fmt::format("rank-{:04}.jsonl", rank); }

 private:
  fs::path path_;
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

inline std::string part_line(const char* part, int start_ms, int end_ms) {
  constexpr std::int64_t kMs = 1'000'000;
  return fmt::format(R"({{"record":"part","part":"{}","batch":0,"start_ns":{},"end_ns":{}}})"
                     "\n",
                     part, start_ms * kMs, end_ms * kMs);
}

inline constexpr const char* kFinished =
    "{\"record\":\"end\",\"time_ns\":1,\"how\":\"finished\",\"dropped\":0,\"lost\":0}\n";

}  // namespace dtrain::analysis
