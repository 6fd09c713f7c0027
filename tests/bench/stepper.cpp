#include "stepper.h"

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain::bench {

namespace {

std::FILE* open_or_throw(const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (!file) throw SystemError("open " + path, errno);
  return file;
}

std::int64_t now_ns() {
  return SystemClock().monotonic().count();
}

}  // namespace

SteppedSource::SteppedSource(Loader inner, const std::string& commands, const std::string& replies,
                             std::function<void(const std::string&)> set_mode)
    : inner_(std::move(inner)),
      set_mode_(std::move(set_mode)),
      commands_(open_or_throw(commands, "r")),
      replies_(open_or_throw(replies, "w")) {}

SteppedSource::~SteppedSource() {
  std::fclose(commands_);
  std::fclose(replies_);
}

void SteppedSource::wait_for_turn() {
  if (!times_.empty()) {
    for (const std::int64_t time : times_) std::fprintf(replies_, "%lld ", static_cast<long long>(time));
    std::fprintf(replies_, "\n");
    std::fflush(replies_);
    times_.clear();
  }
  long long steps = 0;
  char mode[16] = {};
  if (std::fscanf(commands_, " %15[a-z]", mode) == 1) set_mode_(mode);
  if (std::fscanf(commands_, "%lld", &steps) != 1) steps = 0;
  left_ = steps;
  over_ = steps == 0;
}

std::optional<Batch> SteppedSource::next() {
  if (started_ns_ >= 0) times_.push_back(now_ns() - started_ns_);
  if (left_ == 0 && !over_) wait_for_turn();
  if (over_) return std::nullopt;
  --left_;
  started_ns_ = now_ns();
  auto batch = inner_->next();
  if (!batch) {
    inner_->start_epoch(++epoch_);
    batch = inner_->next();
  }
  return batch;
}

}  // namespace dtrain::bench
