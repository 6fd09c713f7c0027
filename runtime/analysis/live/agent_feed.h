// One agent's dump, of which the last sample is kept. One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/run_profile.h"
#include "live/file_tail.h"
#include "read/dump_line.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

class AgentFeed final : private DumpHandler {
 public:
  // A few samples are enough, however much was written before.
  AgentFeed(const std::string& agent, const std::filesystem::path& path)
      : tail_(path, {.head = 64 << 10, .most = 64 << 10, .again = 0}) {
    profile_.agent = agent;
  }

  void poll() {
    if (newer_) return;
    tail_.poll([&](std::string_view line) {
      if (!newer_) newer_ = reader_.read(line, *this) == LineKind::kNewerSchema;
    });
  }

  // Of `samples` the last one.
  const AgentProfile& profile() const { return profile_; }
  bool is_newer() const { return newer_; }
  const FileTail& tail() const { return tail_; }

 private:
  void header(const Json& json) override {
    profile_.header = json.is_object() ? json : Json::object();
    profile_.host = text(profile_.header, "host");
    profile_.end.reset();
  }
  void system(const SystemLine& line) override { profile_.samples = {line}; }
  void gpu(const GpuLine& line) override {
    for (GpuLine& known : profile_.gpus) {
      if (known.index == line.index) return void(known = line);
    }
    profile_.gpus.push_back(line);
  }
  void lost(std::int64_t count, const std::string&) override { add_to(profile_.lost, count); }
  void end(const EndLine& line) override { profile_.end = line; }

  AgentProfile profile_;
  FileTail tail_;
  DumpLineReader reader_;
  bool newer_ = false;
};

}  // namespace dtrain::analysis
