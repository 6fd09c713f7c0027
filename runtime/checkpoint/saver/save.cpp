#include "saver/save.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/units.h"
#include "saver/host_parts.h"
#include "saver/image_writer.h"
#include "saver/open_folder.h"
#include "saver/storage_care.h"
#include "storage_folder.h"

namespace dtrain::checkpoints {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kShortestPoll{2};
constexpr milliseconds kLongestPoll{100};
// The longest time that hosts wait for each other when their ranks have ended.
constexpr milliseconds kGrace{10'000};

double seconds_from(Steady::time_point begin, Steady::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string with_remedy(const std::exception& error) {
  const auto* typed = dynamic_cast<const Error*>(&error);
  return describe(error) + (typed && !typed->remedy().empty() ? "; " + typed->remedy() : "");
}

// Deletes the partial folder unless it has become a checkpoint.
class PartialGuard {
 public:
  explicit PartialGuard(const std::filesystem::path& path) : path_(path) {}
  ~PartialGuard() {
    if (path_.empty()) return;
    std::error_code code;
    std::filesystem::remove_all(path_, code);  // the next saver deletes the rest
  }
  PartialGuard(const PartialGuard&) = delete;
  PartialGuard& operator=(const PartialGuard&) = delete;
  void release() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

class Save {
 public:
  Save(const SaveOrder& order, const SaveEnvironment& environment)
      : order_(order),
        environment_(environment),
        storage_(environment.options.storage),
        partial_(storage_ / folder_name(kPartialPrefix, about().step)) {}

  void run(SaveResult& result) { environment_.options.host == 0 ? complete(result) : contribute(result); }
  double waited_s() const { return waited_s_; }
  // The time at which this host's files were durable; empty: they are not.
  std::optional<Steady::time_point> durable_at() const { return durable_at_; }

 private:
  const About& about() const { return order_.request.about; }
  milliseconds patience() const {
    return milliseconds(static_cast<std::int64_t>(std::max(order_.request.patience_s, 0.0) * 1000));
  }

  // Polls until `answered` is true; false when patience() is over, which ends soon after the rank. Adds to waited_s().
  bool wait_until(const std::function<bool()>& answered) {
    const auto begin = Steady::now();
    auto deadline = begin + patience();
    auto period = kShortestPoll;
    bool gone = false;
    bool there = answered();
    while (!there && Steady::now() < deadline) {
      if (environment_.wait_for_end_of_rank(period) && !std::exchange(gone, true)) {
        deadline = std::min(deadline, Steady::now() + kGrace);
      }
      if (gone) std::this_thread::sleep_for(period);
      period = std::min(2 * period, kLongestPoll);
      there = answered();
    }
    waited_s_ += seconds_from(begin, Steady::now());
    return there;
  }

  void take_lock() {
    if (wait_until([&] { return environment_.lock.try_take(); })) return;
    throw Error("another process writes checkpoints into " + storage_.string() + " (it holds " + kLockFile + ")",
                "end it if it is a saver of an earlier attempt; give each run a folder of its own");
  }

  // patience() does not apply, because a rank may need the time of its batch.
  void wait_for_copies() {
    const auto begin = Steady::now();
    bool gone = false;
    while (!environment_.memory.all_copied(order_.request.number)) {
      if (gone) throw Error("the run has ended before all ranks had copied their training state");
      gone = environment_.wait_for_end_of_rank(kShortestPoll);
    }
    waited_s_ += seconds_from(begin, Steady::now());
  }

  std::vector<ManifestFile> write_own_files(const OpenFolder& folder) {
    return write_images(folder, order_.request.files, environment_.memory, order_.request.number,
                        [&] { environment_.memory.mark_free(order_.request.number); });
  }

  std::vector<ManifestFile> collect(const OpenFolder& folder, const std::string& token, int host) {
    std::optional<std::vector<ManifestFile>> files;
    if (!wait_until([&] { return (files = find_host_part(folder, token, host)).has_value(); })) {
      throw Error("host " + std::to_string(host) + " has not written its files into " + partial_.string() + " in time",
                  "its saver's log says why; do all hosts see the same folder under this path?");
    }
    return *files;
  }

  void complete(SaveResult& result) {
    take_lock();
    clean_leftovers(storage_);
    const OpenFolder folder = make_partial(storage_, about().step);
    PartialGuard guard(partial_);
    const int hosts = environment_.options.hosts;
    const std::string token = hosts > 1 ? write_beginning(folder, about()) : std::string();
    wait_for_copies();

    Manifest manifest{about(), write_own_files(folder)};
    manifest.files.push_back(write_small_file(folder, kStateFile, order_.state));
    for (int host = 1; host < hosts; ++host) {
      const auto files = collect(folder, token, host);
      manifest.files.insert(manifest.files.end(), files.begin(), files.end());
    }
    std::sort(manifest.files.begin(), manifest.files.end(),
              [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; });
    const std::string text = to_text(manifest);
    parse_manifest(text);  // checks that it can be read: no two files of one name
    write_small_file(folder, kManifestFile, text);
    if (hosts > 1) remove_host_parts(folder, hosts);
    sync_folder(folder.fd.get(), folder.path);
    sync_companion();
    result.path = publish(storage_, manifest);
    durable_at_ = Steady::now();
    guard.release();
    result.bytes = total_bytes(manifest.files);
    result.not_finite = not_finite_weight(manifest.files);
    retire(result);
  }

  // Synchronises the companion file. A failure is only logged, because the checkpoint can be used without the file.
  void sync_companion() {
    const std::filesystem::path& path = order_.request.companion;
    if (path.empty()) return;
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file && ::fsync(file.get()) == 0) return;
    environment_.log->warn("{} may lack lines after a power cut: it cannot be synced: {}", path.string(),
                           std::generic_category().message(errno));
  }

  // Deletes superseded checkpoints. Failures are only logged, because the new checkpoint is durable.
  void retire(SaveResult& result) {
    try {
      std::vector<std::filesystem::path> gone;
      Retention retention = environment_.options.retention;
      retention.passed_over = order_.request.passed_over;
      for (const Entry& entry : superseded(list(storage_), about().step, retention)) {
        gone.push_back(entry.path);
      }
      remove_checkpoints(gone);
      for (const auto& path : gone) result.deleted.push_back(path.filename());
    } catch (const std::exception& error) {
      environment_.log->warn("checkpoints that are no longer wanted stay: {}", describe(error));
    }
  }

  void contribute(SaveResult& result) {
    std::optional<Beginning> beginning;
    if (!wait_until([&] { return (beginning = find_beginning(partial_, about())).has_value(); })) {
      throw Error(
          "host 0 has not begun the checkpoint in time: there is no " + partial_.string() + " as seen from here",
          "all hosts must see the same folder under this path: name a folder on a shared file system as "
          "checkpoint_storage");
    }
    const int host = environment_.options.host;
    try {
      wait_for_copies();
      const auto files = write_own_files(beginning->folder);
      sync_folder(beginning->folder.fd.get(), partial_);
      write_host_part(beginning->folder, beginning->token, host, files, "");
      durable_at_ = Steady::now();
      result.path = storage_ / step_folder(about().step);
      result.bytes = total_bytes(files);
    } catch (const std::exception& error) {
      report_failure(*beginning, host, with_remedy(error));
      throw;
    }
  }

  void report_failure(const Beginning& beginning, int host, const std::string& error) {
    try {
      write_host_part(beginning.folder, beginning.token, host, {}, error);
    } catch (const std::exception& second) {
      environment_.log->warn("cannot tell host 0 what has failed: {}", describe(second));
    }
  }

  const SaveOrder& order_;
  const SaveEnvironment& environment_;
  std::filesystem::path storage_;
  std::filesystem::path partial_;
  double waited_s_ = 0;
  std::optional<Steady::time_point> durable_at_;
};

}  // namespace

SaveResult save(const SaveOrder& order, const SaveEnvironment& environment) {
  SaveResult result;
  result.about = order.request.about;
  const auto begin = Steady::now();
  const double cpu_before = cpu_seconds();
  Save one(order, environment);
  try {
    one.run(result);
  } catch (const std::exception& error) {
    result.path.clear();
    result.error = with_remedy(error);
  }
  environment.memory.mark_free(order.request.number);
  result.wait_s = one.waited_s();
  result.write_s = seconds_from(begin, one.durable_at().value_or(Steady::now())) - result.wait_s;
  result.cpu_s = cpu_seconds() - cpu_before;
  if (result.error.empty()) {
    environment.log->info("batch {}: {} in {:.3f} s, after waiting for {:.3f} s; {:.3f} s of processor time",
                          result.about.step, format_bytes(static_cast<double>(result.bytes)), result.write_s,
                          result.wait_s, result.cpu_s);
  } else {
    environment.log->error("batch {}: {}", result.about.step, result.error);
  }
  return result;
}

}  // namespace dtrain::checkpoints
