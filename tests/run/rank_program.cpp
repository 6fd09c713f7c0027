// A rank without torch: steps of one all-reduce and a sleep. What goes wrong, and where, are hyperparameters:
//   step_ms: 5                 how long a step sleeps
//   step_ms_by_ranks: {2: 9}   the same with so many ranks
//   until_file: path           steps sleep no longer once this file is there
//   metrics_bytes: 0           padding of each line of metrics.jsonl
//   show_place: false          prints its GPU, the visible ones, and the CPUs that it may use
//   trouble: {rank: 1, ranks: 2, batch: 7, kind: SIGKILL | SIGSEGV | abort | exit | quit | leave | leave_well |
//             long_file | memory | memory_of_thread | exception | data | hang | deadlock | spin | alone | late |
//             mismatch | agreed, once: false}
//             without a rank: on every rank; ranks: only with so many of them; once: not after a resume; after: 7 in
//             place of batch: so many batches after the start of each attempt; chance: 0.1, seed: 7 in place of batch:
//             at any batch, drawn anew in each attempt; times: 2: only in the first two attempts
//   checkpoint_every: 5        saves after so many batches and when it stops, and goes on from checkpoints; 0: never
// With --mock it leaves out what a trial would: the sleep, or the all-reduce. It prints "batch N" after each step that
// was recorded, and "leaving" when it has been asked to stop.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/cpu.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/resume.h"
#include "program_checkpoints.h"

namespace {

using namespace dtrain;

constexpr std::size_t kGradients = 4096;

[[gnu::noinline]] void lock_twice() {
  std::mutex mutex;
  mutex.lock();
  mutex.lock();
}

[[gnu::noinline]] void spin() {
  for (volatile bool goes_on = true; goes_on;) {
  }
}

void cause_trouble(rank::RankSession& session, const Json& trouble) {
  const std::string kind = trouble.value("kind", "SIGKILL");
  if (kind == "SIGKILL") ::raise(SIGKILL);
  if (kind == "SIGSEGV") {
    std::signal(SIGSEGV, SIG_DFL);  // sanitizers catch it, and turn it into an exit
    ::raise(SIGSEGV);
  }
  if (kind == "abort") throw 42;  // nobody catches it
  if (kind == "exit") std::_Exit(7);
  if (kind == "long_file") write_file_atomic(session.run_dir() / "long.bin", std::string(64u << 20, 'x'));
  const auto take_all_memory = [] {
    std::vector<std::string> taken;
    for (;;) taken.emplace_back(64u << 20, 'x');
  };
  if (kind == "memory") take_all_memory();
  if (kind == "memory_of_thread") std::thread(take_all_memory).join();
  if (kind == "leave") std::exit(7);
  if (kind == "leave_well") std::exit(0);
  if (kind == "quit") std::_Exit(0);
  if (kind == "agreed") throw rank::AgreedError("the ranks agree to differ", "agree to agree");
  if (kind == "exception") throw std::runtime_error("the model makes no sense");
  if (kind == "data") read_file(session.run_dir() / "no-such-data.idx");
  if (kind == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
  if (kind == "deadlock") lock_twice();
  if (kind == "spin") {
    const profile::PhaseScope loading(session.recorder(), profile::Phase::kDataloaderNext);
    spin();
  }
  if (kind == "alone") session.control().gather("what no other rank gathers", "");
  if (kind == "late") std::this_thread::sleep_for(std::chrono::seconds(5));
  if (kind == "mismatch") {
    auto value = std::numeric_limits<std::int64_t>::min();
    session.communicator().all_reduce(&value, 1, comm::DataType::kInt64).wait();
  }
}

void all_reduce(rank::RankSession& session, float* gradients) {
  const profile::PhaseScope waiting(session.recorder(), profile::Phase::kAllreduceWait);
  comm::Work work = session.communicator().all_reduce(gradients, kGradients, comm::DataType::kFloat32, {.bucket = 0});
  work.wait();
  profile::CollectiveRecord record{.sequence = work.sequence(), .bucket = 0, .bytes = work.bytes()};
  std::strcpy(record.operation, "all_reduce");
  record.world_size = session.world().size;
  record.enqueued_ns = work.timing().enqueued.count();
  record.started_ns = work.timing().started.count();
  record.ended_ns = work.timing().ended.count();
  record.exposed_ns = work.timing().exposed.count();
  session.recorder().collective(record);
}

// All ranks stop after the same batch: whether anybody was asked to goes through a sum.
bool agree_to_stop(rank::RankSession& session) {
  std::int32_t asked = session.stop_requested() ? 1 : 0;
  session.communicator().all_reduce(&asked, 1, comm::DataType::kInt32).wait();
  return asked > 0;
}

// "place: gpu 1 of GPU-a,GPU-b (PCI_BUS_ID), cpus 2 3"
void show_place(const rank::RankSession& session) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value ? value : "unset");
  };
  std::string text = session.gpu() ? "gpu " + std::to_string(*session.gpu()) : std::string("no gpu");
  text += " of " + variable("CUDA_VISIBLE_DEVICES") + " (" + variable("CUDA_DEVICE_ORDER") + "), cpus";
  std::vector<int> cpus = host::allowed_cpus();
  std::sort(cpus.begin(), cpus.end());
  for (const int cpu : cpus) text += " " + std::to_string(cpu);
  std::printf("place: %s\n", text.c_str());
}

struct TrainingEnd {
  bool stopped = false;  // because it was asked to
  bool saved = false;    // there is a checkpoint of its end
};

TrainingEnd train_steps(rank::RankSession& session) {
  const Json& settings = session.experiment().hyperparameters;
  const std::string ranks = std::to_string(session.world().size);
  const Json by_ranks = settings.value("step_ms_by_ranks", Json::object());
  const auto step_time = std::chrono::milliseconds(by_ranks.value(ranks, settings.value("step_ms", 5)));
  const std::string until_file = settings.value("until_file", "");
  const std::string padding(settings.value("metrics_bytes", std::size_t{0}), 'x');
  Json trouble = settings.value("trouble", Json::object());
  const std::int64_t every = settings.value("checkpoint_every", std::int64_t{0});
  const std::int64_t batches =
      config::in_batches(session.experiment().searcher.max_length, session.experiment().global_batch_size, 100);
  const auto buffer = session.communicator().allocate(kGradients * sizeof(float));
  auto* gradients = reinterpret_cast<float*>(buffer->bytes().data());
  if (settings.value("show_place", false)) show_place(session);
  std::vector<float> weights(kGradients, 1.0F);
  std::optional<rank::ProgramCheckpoints> checkpoints;
  std::int64_t done = 0;
  if (every > 0) {
    checkpoints.emplace(session, weights);
    done = checkpoints->resume();
  }
  if (trouble.value("once", false) && done > 0) trouble = Json::object();
  if (trouble.value("ranks", session.world().size) != session.world().size) trouble = Json::object();
  const int attempt = rank::attempt_number({session.run_dir()});
  if (trouble.value("times", attempt) < attempt) trouble = Json::object();
  std::seed_seq seed{trouble.value("seed", 0), attempt, session.world().rank};
  std::mt19937 dice(seed);
  session.recorder().mark(profile::RunMark::kInitializationEnd);
  bool stopped = false;
  bool saved = false;
  for (std::int64_t batch = done + 1; batch <= batches && !stopped; ++batch) {
    session.set_step(batch);
    session.recorder().begin_step(batch);
    {
      const profile::PhaseScope forward(session.recorder(), profile::Phase::kForward);
      const bool sleeps = until_file.empty() || !std::filesystem::exists(until_file);
      if (!session.mock().train && sleeps) std::this_thread::sleep_for(step_time);
      if (trouble.value("rank", session.world().rank) == session.world().rank &&
          (trouble.value("batch", 0) == batch || std::bernoulli_distribution(trouble.value("chance", 0.0))(dice) ||
           trouble.value("after", 0) == batch - done)) {
        cause_trouble(session, trouble);
      }
    }
    for (std::size_t i = 0; i < kGradients; ++i) gradients[i] = static_cast<float>(session.world().rank + 1);
    if (session.mock().alone()) {
      stopped = session.stop_requested();
    } else {
      all_reduce(session, gradients);
      const int size = session.world().size;
      if (gradients[kGradients - 1] != static_cast<float>(size * (size + 1) / 2)) throw std::runtime_error("wrong sum");
      stopped = agree_to_stop(session);
    }
    for (std::size_t i = 0; i < kGradients; ++i) {
      weights[i] = 0.99F * weights[i] + gradients[i] * static_cast<float>(batch % 7);
    }
    session.recorder().end_step({{session.batch_per_rank()}, true, (batch - 1) / 100});
    std::printf("batch %lld\n", static_cast<long long>(batch));
    std::fflush(stdout);
    if (session.world().rank == 0) {
      session.write_metrics(
          {{"kind", "training"}, {"batch", batch}, {"loss", 1.0 / static_cast<double>(batch)}, {"padding", padding}});
    }
    session.report_progress({.batch = batch,
                             .total_batches = batches,
                             .epoch = (batch - 1) / 100,
                             .epoch_batch = (batch - 1) % 100 + 1,
                             .batches_per_epoch = 100,
                             .loss = 1.0 / static_cast<double>(batch),
                             .samples_per_second = 1000});
    if (!checkpoints || session.mock().alone()) continue;
    if (stopped) session.begin_last_save();
    if (stopped || batch % every == 0) saved = checkpoints->save(batch, stopped ? "stop" : "period");
  }
  std::printf("weights %s\n", rank::hash_of(weights).c_str());
  session.recorder().mark(profile::RunMark::kLoopEnd);
  if (stopped) std::printf("leaving\n");
  return {stopped, saved};
}

}  // namespace

int main(int argc, char** argv) {
  const rank::RankOptions options = rank::parse_rank_arguments(argc, argv);
  std::unique_ptr<rank::RankSession> session;
  try {
    session = rank::RankSession::start(options);
  } catch (const std::exception& error) {
    return rank::exit_code_of(error);
  }
  try {
    const TrainingEnd end = train_steps(*session);
    return session->finish(end.stopped, end.saved);
  } catch (const std::exception& error) {
    return session->fail(error);
  }
}
