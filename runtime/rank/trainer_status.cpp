#include "dtrain/rank/trainer_status.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/profile/event_file.h"
#include "https_post.h"

namespace dtrain::rank {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPostPeriod{5};  // at least: what Kubeflow asks of its clients
constexpr std::chrono::seconds kPostPatience{5};
constexpr std::chrono::seconds kPatienceAtEnd{3};
constexpr std::chrono::milliseconds kGivesUp{300};
constexpr std::int64_t kEndOfMetrics = 64 << 10;

struct Sent {
  Progress progress;
  std::filesystem::path metrics;
  bool done = false;
};

std::string value_text(double value) {
  return std::isfinite(value) ? Json(value).dump() : non_finite_text(value);
}

// The values of the last lines of metrics.jsonl, of training and of validation.
std::map<std::string, std::string> last_metrics(const std::filesystem::path& file) {
  std::map<std::string, std::string> values;
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return values;
  const std::int64_t size = ::lseek(fd.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp<std::int64_t>(size, 0, kEndOfMetrics)), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), size - static_cast<std::int64_t>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  for (const std::string& line : split(text, '\n')) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    for (const auto& [name, value] : profile::scalars_of(json)) values[name] = value_text(value);
  }
  return values;
}

Json body_of(const Sent& sent) {
  const Progress& progress = sent.progress;
  Json status = Json::object();
  if (sent.done) {
    status["progressPercentage"] = 100;
    status["estimatedRemainingSeconds"] = 0;
  } else if (progress.total_batches > 0) {
    status["progressPercentage"] = std::clamp<std::int64_t>(progress.batch * 100 / progress.total_batches, 0, 99);
    constexpr double kMost = std::numeric_limits<std::int32_t>::max();
    if (progress.seconds_left >= 0) {
      status["estimatedRemainingSeconds"] = static_cast<std::int64_t>(std::min(progress.seconds_left, kMost));
    }
  }
  Json metrics = Json::array();
  const auto add = [&](const std::string& name, const std::string& value) {
    metrics.push_back({{"name", name}, {"value", value}});
  };
  add("batch", std::to_string(progress.batch));
  add("epoch", std::to_string(progress.epoch));
  if (progress.loss) add("loss", value_text(*progress.loss));
  for (const auto& [name, value] : last_metrics(sent.metrics)) add(name, value);
  status["metrics"] = std::move(metrics);
  status["lastUpdatedTime"] = format_utc(SystemClock().wall());
  return {{"trainerStatus", std::move(status)}};
}

}  // namespace

class TrainerStatus::Poster {
 public:
  Poster(std::string url, std::filesystem::path ca_file, std::filesystem::path token_file)
      : url_(std::move(url)), ca_file_(std::move(ca_file)), token_file_(std::move(token_file)) {}

  void take(Sent sent) {
    const std::lock_guard lock(mutex_);
    newest_ = std::move(sent);
    changed_.notify_all();
  }

  // Waits until the last value is posted, but not for long. False: the thread still waits for the server's name.
  bool end(bool done, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (done && !newest_) newest_ = last_;
    if (done) newest_->done = true;
    ends_ = true;
    changed_.notify_all();
    const auto is_gone = [this] { return gone_; };
    if (changed_.wait_for(lock, patience, is_gone)) return true;
    abandoned_ = true;
    return changed_.wait_for(lock, kGivesUp, is_gone);
  }

  // Why the first post failed; empty after the first call, and if none has.
  std::string take_problem() {
    const std::lock_guard lock(mutex_);
    return std::exchange(problem_, {});
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (wait(lock)) {
      last_ = *std::exchange(newest_, std::nullopt);
      lock.unlock();
      const std::string problem = post(last_);
      lock.lock();
      next_ = SteadyClock::now() + kPostPeriod;
      if (!problem.empty() && !std::exchange(has_failed_, true)) problem_ = problem;
    }
    gone_ = true;
    changed_.notify_all();
  }

  std::thread thread;

 private:
  // False: the run has ended, and nothing is left to post.
  bool wait(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] { return newest_ || ends_; });
    changed_.wait_until(lock, next_, [this] { return ends_; });
    return newest_ && !abandoned_;
  }

  // The token and the certificates are read each time: Kubernetes renews the files.
  std::string post(const Sent& sent) const {
    try {
      const std::string token(trimmed(read_file(token_file_, 1u << 20)));
      send({.url = url_, .ca_file = ca_file_, .token = token, .body = to_line(body_of(sent))}, kPostPatience,
           abandoned_);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  const std::string url_;
  const std::filesystem::path ca_file_, token_file_;
  std::atomic<bool> abandoned_{false};
  std::mutex mutex_;  // of these
  std::condition_variable changed_;
  std::optional<Sent> newest_;
  Sent last_;  // the last one that was posted
  SteadyClock::time_point next_{};
  std::string problem_;
  bool has_failed_ = false;
  bool ends_ = false;
  bool gone_ = false;
};

TrainerStatus::TrainerStatus(const Variables& variables, Warn warn) : warn_(std::move(warn)) {
  const std::string* const url = find(variables, "KUBEFLOW_TRAINER_SERVER_URL");
  if (!url || url->empty()) return;
  const auto file = [&](const char* name) {
    const std::string* const path = find(variables, name);
    return std::filesystem::path(path ? *path : std::string());
  };
  const auto poster =
      std::make_shared<Poster>(*url, file("KUBEFLOW_TRAINER_SERVER_CA_CERT"), file("KUBEFLOW_TRAINER_SERVER_TOKEN"));
  const BlockedSignals inherited;
  try {
    poster->thread = start_thread("what tells Kubeflow of the progress", [poster] { poster->run(); });
    poster_ = poster;
  } catch (const SystemError& error) {
    warn(error.what());
  }
}

// A run that has failed is not held up.
TrainerStatus::~TrainerStatus() {
  end(false, std::chrono::milliseconds(0));
}

void TrainerStatus::take(const Progress& progress, const std::filesystem::path& metrics) {
  if (!poster_) return;
  poster_->take({.progress = progress, .metrics = metrics});
  warn(poster_->take_problem());
}

void TrainerStatus::end(bool done) {
  end(done, kPatienceAtEnd);
}

void TrainerStatus::end(bool done, std::chrono::milliseconds patience) {
  if (!poster_) return;
  poster_->end(done, patience) ? poster_->thread.join() : poster_->thread.detach();
  warn(poster_->take_problem());
  poster_.reset();
}

void TrainerStatus::warn(const std::string& problem) const {
  if (!problem.empty()) warn_("Kubeflow does not get the progress of the run: " + problem + "; training goes on");
}

}  // namespace dtrain::rank
