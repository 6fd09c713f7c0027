#include "exchange/autotune.h"

#include <cstdio>
#include <utility>

#include "dtrain/base/file.h"
#include "dtrain/base/numeric.h"

namespace dtrain::train {
namespace {

// FNV-1a, 64 bits: the hash names the file, which has the whole key.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

// Returns second() after this number of steps.
bool TurnComparison::second_at(int steps) {
  return steps > kWarmUpSteps && (steps - kWarmUpSteps) / kStepsOfATurn % 2 == 1;
}

void TurnComparison::go_on_after(int steps) {
  steps_ = steps;
  second_ = second_at(steps);
}

bool TurnComparison::end_step(std::int64_t batch, double milliseconds) {
  if (done_) return false;
  const bool before = second_;
  const int step = steps_++ - kWarmUpSteps;
  if (step < 0) return false;
  if (step % kStepsOfATurn > 0) {
    times_[second_ ? 1 : 0].push_back(milliseconds);
    if (step % kStepsOfATurn == 1 || turns_.empty()) turns_.push_back({second_, batch, batch});
    turns_.back().last_batch = batch;
  }
  second_ = second_at(steps_);
  if (step + 1 == kTurns * kStepsOfATurn) decide();
  return second_ != before;
}

void TurnComparison::decide() {
  done_ = true;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    auto& times = times_[i];
    if (times.empty()) continue;
    // The all-reduce makes the times, and so the decision, the same on every rank.
    communicator_.all_reduce(times.data(), times.size(), comm::DataType::kFloat64, {.op = comm::ReduceOp::kMax}).wait();
    medians_[i] = median_high(times);
  }
  second_ = !times_[0].empty() && !times_[1].empty() && medians_[1] <= medians_[0] * enough_;
}

RunCache::RunCache(const std::filesystem::path& folder, const std::string& question, Json key) : key_(std::move(key)) {
  if (folder.empty()) return;
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of(to_line(key_))));
  file_ = folder / question / name.data();
}

std::optional<Json> RunCache::find(const Logger& log) const {
  if (file_.empty() || !std::filesystem::exists(file_)) return std::nullopt;
  try {
    Json json = read_json(file_);
    if (json.at("key") == key_) return json;
  } catch (const std::exception& error) {
    log->warn("what an earlier run remembered is not used: {}: {}", file_.string(), error.what());
  }
  return std::nullopt;
}

bool RunCache::store(Json answer, const Logger& log) const {
  if (file_.empty()) return false;
  try {
    std::filesystem::create_directories(file_.parent_path());
    answer["key"] = key_;
    write_file_atomic(file_, to_line(answer) + "\n");
    return true;
  } catch (const std::exception& error) {
    log->warn("later runs will have to find out again what this one has: {}", error.what());
    return false;
  }
}

}  // namespace dtrain::train
