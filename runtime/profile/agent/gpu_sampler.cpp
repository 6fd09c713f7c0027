#include "agent/gpu_sampler.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <utility>

namespace dtrain::profile {
namespace {

constexpr std::chrono::seconds kEndPatience{1};

// True if this container sees the process. NVML has process numbers of the host. In a container with numbers of its
// own, no process is seen, so that a rank does not count as a program outside the run; such programs are then not seen
// either.
bool is_seen(pid_t pid) {
  return ::kill(pid, 0) == 0 || errno == EPERM;
}

GpuSample to_sample(const host::GpuReading& reading, const std::set<pid_t>& ranks) {
  GpuSample sample{reading.index,       reading.util, reading.free_memory,
                   reading.temperature, std::nullopt, reading.slowed_by_heat};
  if (reading.processes) {
    sample.foreign_processes =
        static_cast<std::size_t>(std::count_if(reading.processes->begin(), reading.processes->end(),
                                               [&](pid_t pid) { return !ranks.contains(pid) && is_seen(pid); }));
  }
  return sample;
}

}  // namespace

GpuSampler::GpuSampler(const std::string& library, const Logger& logger)
    : shared_(std::make_shared<Shared>()),
      thread_([shared = shared_, library, logger] { run(shared, library, logger); }) {}

GpuSampler::~GpuSampler() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kEndPatience, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void GpuSampler::run(const std::shared_ptr<Shared>& shared, const std::string& library, const Logger& logger) {
  try {
    host::Gpus gpus(library, [&](const std::string& text) { logger->warn("{}", text); });
    std::unique_lock lock(shared->mutex);
    shared->found = gpus.list();
    while (!gpus.list().empty()) {
      shared->changed.wait(lock, [&] { return shared->stop || shared->asked > shared->answered; });
      if (shared->stop) break;
      const std::uint64_t number = shared->asked;
      lock.unlock();
      auto readings = gpus.read();
      lock.lock();
      shared->readings = std::move(readings);
      shared->answered = number;
      shared->changed.notify_all();
    }
  } catch (const std::exception& error) {
    logger->warn("no more metrics of GPUs: {}", error.what());
  }
  const std::lock_guard lock(shared->mutex);
  shared->ended = true;
  shared->changed.notify_all();
}

std::vector<GpuSample> GpuSampler::sample(const std::set<pid_t>& ranks, std::chrono::milliseconds patience) {
  std::unique_lock lock(shared_->mutex);
  const std::uint64_t number = ++shared_->asked;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, patience, [&] { return shared_->ended || shared_->answered >= number; });
  std::vector<GpuSample> samples;
  // If a slow driver answers after the sample is over, the next sample has that answer.
  if (shared_->answered == shared_->given) return samples;
  shared_->given = shared_->answered;
  for (const host::GpuReading& reading : shared_->readings) {
    const GpuSample sample = to_sample(reading, ranks);
    if (sample.util || sample.free_memory || sample.temperature || sample.foreign_processes || sample.slowed_by_heat)
      samples.push_back(sample);
  }
  return samples;
}

std::vector<host::GpuInfo> GpuSampler::take_new() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->found, {});
}

}  // namespace dtrain::profile
