#include "worker_count.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtrain/base/text.h"

namespace dtrain::data {
namespace {

// A decision needs this number of batches, so that one odd batch does not make it, and this time of use or of reading.
constexpr std::int64_t kBatches = 8;
constexpr std::int64_t kTime = 50'000'000;
// Reading must be this much faster than training, because neither is steady.
constexpr double kHeadroom = 1.25;
// The share of a busy core that can still be used.
constexpr double kSpareOfBusyCores = 0.25;
// The count falls slowly: more workers help at once, while fewer only save a thread.
constexpr int kFewerInARow = 4;

std::int64_t number_at(std::string_view text, std::size_t at) {
  text.remove_prefix(std::min(text.find_first_not_of(' ', at), text.size()));
  return take_number<std::int64_t>(text).value_or(0);
}

std::int64_t number_behind(std::string_view text, std::string_view name) {
  const auto at = text.find(name);
  return at == std::string_view::npos ? 0 : number_at(text, at + name.size());
}

// The kernel is asked after each piece of this length, and otherwise once per kPeriod.
constexpr std::chrono::microseconds kLongPiece{200};
constexpr std::chrono::milliseconds kPeriod{5};

std::int64_t cpu_ns_of_thread() {
  timespec cpu{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  return cpu.tv_sec * 1'000'000'000 + cpu.tv_nsec;
}

// A read from the beginning of a file in /proc returns current values.
std::string_view read_whole(int fd, std::span<char> into) {
  const auto got = fd < 0 ? 0 : ::pread(fd, into.data(), into.size(), 0);
  return {into.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

}  // namespace

WorkerCount::WorkerCount(double free_cores, int most)
    : free_cores_(std::max(0.0, free_cores)), most_(std::max(1, most)) {}

int WorkerCount::after_batch(std::int64_t used_ns, const ReadUsage& usage) {
  ++batches_;
  used_ns_ += used_ns;
  usage_ += usage;
  if (batches_ < kBatches || std::max(used_ns_, usage_.time_ns) < kTime) return count_;
  const int wanted = this->wanted();
  if (wanted >= count_) {
    fewer_wanted_ = 0;
    count_ = wanted;
  } else if (++fewer_wanted_ == kFewerInARow) {
    fewer_wanted_ = 0;
    --count_;
  }
  batches_ = used_ns_ = 0;
  usage_ = {};
  return count_;
}

int WorkerCount::wanted() const {
  const auto reading = static_cast<double>(usage_.time_ns);
  if (reading <= 0) return 1;
  // The time without a core does not count as work: a worker with a free core would not have it.
  const auto on_core = static_cast<double>(usage_.cpu_ns);
  const double work = std::max(on_core, reading - static_cast<double>(usage_.no_core_ns));
  const double needed = kHeadroom * work / std::max(1.0, static_cast<double>(used_ns_));
  const double cores_of_one = std::max(0.01, on_core / std::max(1.0, work));
  const double allowed = (free_cores_ + kSpareOfBusyCores) / cores_of_one;
  return static_cast<int>(std::clamp(std::min(std::ceil(needed), std::floor(allowed)), 1.0, double(most_)));
}

ReadUsage& ReadUsage::operator+=(const ReadUsage& other) {
  time_ns += other.time_ns;
  fields([](const char*, std::int64_t& sum, std::int64_t value) { sum += value; }, *this, other);
  return *this;
}

ReadUsage ReadUsage::operator-(const ReadUsage& other) const {
  ReadUsage rest = *this;
  rest.time_ns -= other.time_ns;
  fields([](const char*, std::int64_t& left, std::int64_t value) { left -= value; }, rest, other);
  return rest;
}

ThreadUsage::ThreadUsage(bool is_of_reading)
    : is_of_reading_(is_of_reading),
      schedule_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)),
      input_(::open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC)),
      last_(of_kernel()),
      asked_(std::chrono::steady_clock::now()) {}

void ThreadUsage::begin() {
  if (!is_of_reading_) last_ = of_kernel();
  begun_ = std::chrono::steady_clock::now();
  begun_cpu_ns_ = cpu_ns_of_thread();
}

ReadUsage ThreadUsage::end() {
  const auto now = std::chrono::steady_clock::now();
  ReadUsage used;
  if (!is_of_reading_ || now - begun_ >= kLongPiece || now - asked_ >= kPeriod) {
    const ReadUsage all = of_kernel();
    used = all - last_;
    last_ = all;
    asked_ = now;
  }
  used.time_ns = (now - begun_).count();
  used.cpu_ns = cpu_ns_of_thread() - begun_cpu_ns_;
  return used;
}

ReadUsage ThreadUsage::of_kernel() {
  ReadUsage usage;
  rusage resources{};
  ::getrusage(RUSAGE_THREAD, &resources);
  std::array<char, 512> buffer{};
  const std::string_view schedule = read_whole(schedule_.get(), buffer);  // "time on a core, time without, slices"
  if (const auto space = schedule.find(' '); space != std::string_view::npos) {
    usage.no_core_ns = number_at(schedule, space);
  }
  const auto schedule_bytes = static_cast<std::int64_t>(schedule.size());
  const std::string_view input = read_whole(input_.get(), buffer);
  usage.bytes = number_behind(input, "rchar:") - own_bytes_ - schedule_bytes;
  usage.disk_bytes = number_behind(input, "read_bytes:");
  usage.requests = number_behind(input, "syscr:") - own_requests_ - 1 + resources.ru_majflt;
  own_bytes_ += schedule_bytes + static_cast<std::int64_t>(input.size());
  own_requests_ += 2;
  return usage;
}

}  // namespace dtrain::data
